"""Hypothesis strategies: Arrow tables of any type that can be passed through."""

import datetime
import decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa

_INTS = [(pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)]
_UINTS = [(pa.uint8(), 8), (pa.uint16(), 16), (pa.uint32(), 32), (pa.uint64(), 64)]

Column = tuple[pa.DataType, st.SearchStrategy[Any]]

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
_bytes = st.binary(max_size=9)
_moment = st.integers(0, 2**40)


def _leaf_types() -> list[Column]:
    leaves: list[Column] = [
        (pa.null(), st.none()),
        (pa.bool_(), st.booleans()),
        (pa.float16(), st.floats(width=16, allow_nan=False)),
        (pa.float32(), st.floats(width=32)),
        (pa.float64(), st.floats()),
        (pa.date32(), st.dates()),
        (pa.date64(), st.dates()),
        (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
        (pa.time64("ns"), st.times()),
        (pa.decimal32(9, 2), st.integers(-(10**8), 10**8).map(lambda i: decimal.Decimal(i).scaleb(-2))),
        (pa.decimal128(20, 3), st.integers(-(10**19), 10**19).map(lambda i: decimal.Decimal(i).scaleb(-3))),
        (pa.decimal256(50, 0), st.integers(-(10**27), 10**27).map(decimal.Decimal)),
        (pa.duration("s"), st.integers(-(10**6), 10**6).map(lambda s: datetime.timedelta(seconds=s))),
        (pa.binary(3), st.binary(min_size=3, max_size=3)),
        (pa.dictionary(pa.int16(), pa.string()), _text),
    ]
    leaves += [(type_, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)) for type_, bits in _INTS]
    leaves += [(type_, st.integers(0, 2**bits - 1)) for type_, bits in _UINTS]
    leaves += [(type_, _text) for type_ in (pa.string(), pa.large_string(), pa.string_view())]
    leaves += [(type_, _bytes) for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())]
    leaves += [(pa.timestamp(unit, zone), _moment) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
    return leaves


def _nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def _nested(inner: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    def lists(column: Column) -> Column:
        return pa.list_(column[0]), st.lists(_nullable(column[1]), max_size=3)

    def large_lists(column: Column) -> Column:
        return pa.large_list(column[0]), st.lists(_nullable(column[1]), max_size=3)

    def pairs(column: Column) -> Column:
        return pa.list_(column[0], 2), st.lists(_nullable(column[1]), min_size=2, max_size=2)

    def maps(column: Column) -> Column:
        return pa.map_(pa.string(), column[0]), st.lists(st.tuples(_text, _nullable(column[1])), max_size=3)

    def structs(columns: list[Column]) -> Column:
        names = [f"f{index}" for index in range(len(columns))]
        types = pa.struct(list(zip(names, (column[0] for column in columns), strict=True)))
        return types, st.fixed_dictionaries(
            {name: _nullable(column[1]) for name, column in zip(names, columns, strict=True)}
        )

    plain = [inner.map(kind) for kind in (lists, large_lists, pairs, maps)]
    return st.one_of(*plain, st.lists(inner, min_size=1, max_size=3).map(structs))


columns = st.recursive(st.sampled_from(_leaf_types()), _nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """One to four columns, up to seven rows, in one chunk or sliced out of a longer table."""
    chosen = draw(st.lists(columns, min_size=1, max_size=4))
    size = draw(st.integers(0, 7))
    arrays = [
        pa.array(draw(st.lists(_nullable(values), min_size=size, max_size=size)), type_) for type_, values in chosen
    ]
    table = pa.table(arrays, names=[f"c{index}" for index in range(len(arrays))])
    start = draw(st.integers(0, size))
    return table.slice(start)
