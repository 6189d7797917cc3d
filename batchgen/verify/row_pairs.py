"""Pairs of rows, one of each run -> in which respect they differ. Floats are compared by their bits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from batchgen.io.canonical import encode

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]  # -1: nowhere

LOGPROBS = ("logprobs", "top_logprobs_ids", "top_logprobs_values")
CORE = (
    "row_key",
    "sample_index",
    "seed",
    "status",
    "error_code",
    "error_message",
    "prompt_token_ids",
    "text",
    "token_ids",
    "finish_reason",
    "stop_reason",
    *LOGPROBS,
    "params_hash",
    "row_hash",
)
_ANSWER = ("text", "finish_reason", "stop_reason")


class Ragged(NamedTuple):
    """Rows of values, one after another; row i is the next `lens[i]` of `values`."""

    values: NDArray[Any]  # [sum of lens], of a type whose == compares bits
    lens: NDArray[np.int64]  # [rows]


@dataclass(frozen=True, slots=True)
class Compared:
    """Of each pair, in order: in which respects its rows differ. Masks and positions are of the pairs' number."""

    prompt: Positions  # first index where the prompt ids differ, where both have any
    seed: Mask
    params: Mask
    failed_a: Mask
    failed_b: Mask
    error: Mask  # another error_code or error_message
    tokens: Positions  # first index where the output ids differ; the shorter length where one begins with the other
    logprobs: Positions  # first token whose logprobs or alternatives have other bits, where the tokens are the same
    answer: dict[str, Mask]  # text, finish_reason, stop_reason


def compare(a: pa.Table, b: pa.Table) -> Compared:
    """Row i of `a` against row i of `b`; both hold the columns of CORE, those of LOGPROBS if their run has any."""
    failed_a, failed_b = (pc.equal(table["status"], "error").to_numpy() for table in (a, b))
    both = ~(failed_a | failed_b)
    tokens = np.where(both, first_difference(ragged(a["token_ids"]), ragged(b["token_ids"])), -1)
    prompt = first_difference(ragged(a["prompt_token_ids"]), ragged(b["prompt_token_ids"]))
    asked = (pc.is_valid(a["prompt_token_ids"]).to_numpy()) & (pc.is_valid(b["prompt_token_ids"]).to_numpy())
    return Compared(
        prompt=np.where(asked, prompt, -1),
        seed=a["seed"].to_numpy() != b["seed"].to_numpy(),
        params=_other_text(a["params_hash"], b["params_hash"]),
        failed_a=failed_a,
        failed_b=failed_b,
        error=_other_text(a["error_code"], b["error_code"]) | _other_text(a["error_message"], b["error_message"]),
        tokens=tokens,
        logprobs=_logprobs(a, b, both & (tokens < 0)),
        answer={name: _other_text(a[name], b[name]) for name in _ANSWER},
    )


def first_difference(a: Ragged, b: Ragged) -> Positions:
    """Of each row: the first index at which two values differ; the shorter length, if all before are equal; else -1."""
    common = np.minimum(a.lens, b.lens)
    row = np.repeat(np.arange(len(common)), common)
    within = np.arange(len(row)) - np.repeat(np.cumsum(common) - common, common)
    left, right = ((np.cumsum(side.lens) - side.lens)[row] + within for side in (a, b))
    hits = np.flatnonzero(a.values[left] != b.values[right])
    rows, at = np.unique(row[hits], return_index=True)  # hits ascend, so this is the first of each row
    found = np.where(a.lens == b.lens, -1, common)
    found[rows] = within[hits[at]]
    return found


def ragged(column: pa.ChunkedArray) -> Ragged:
    """A column of lists of integers or float32, floats as their bits; null is an empty row."""
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return Ragged(values.view(np.uint32) if values.dtype == np.float32 else values, _lens(lists))


def at(column: pa.ChunkedArray, positions: Positions) -> pa.Array:
    """Of each list the element at its position; null where there is none."""
    lists = column.combine_chunks()
    lens = _lens(lists)
    inside = (positions >= 0) & (positions < lens)
    index = np.where(inside, np.cumsum(lens) - lens + positions, 0)
    return lists.flatten().take(pa.array(index, mask=~inside))


def differing_columns(a: pa.Table, b: pa.Table) -> Iterator[tuple[str, Mask]]:
    """For each column of both: the rows whose values differ, as canonical bytes know them."""
    for name in a.column_names:
        if name in b.column_names:
            left, right = (encode(table[name].combine_chunks()) for table in (a, b))
            yield name, first_difference(Ragged(left.words, left.lens), Ragged(right.words, right.lens)) >= 0


def _logprobs(a: pa.Table, b: pa.Table, same: Mask) -> Positions:
    """The first token at which any logprob column differs, for the rows `same`, whose lists are of one length."""
    found = np.full(len(same), -1)
    rows = np.flatnonzero(same)
    for name in LOGPROBS:
        if name not in a.column_names or name not in b.column_names:
            continue
        left, right = (table[name].combine_chunks().take(pa.array(rows)) for table in (a, b))
        here = _first_in_nested(left, right) if name != "logprobs" else _first(left, right)
        known = found[rows]
        found[rows] = np.where((here >= 0) & ((known < 0) | (here < known)), here, known)
    return found


def _first(a: pa.Array, b: pa.Array) -> Positions:
    return first_difference(ragged(pa.chunked_array([a])), ragged(pa.chunked_array([b])))


def _first_in_nested(a: pa.Array, b: pa.Array) -> Positions:
    """Of lists of lists: the first element of the outer list whose inner list differs."""
    lens_a, lens_b = _lens(a), _lens(b)
    found = np.where(lens_a == lens_b, -1, np.minimum(lens_a, lens_b))
    rows = np.flatnonzero(lens_a == lens_b)
    inner_a, inner_b = (lists.take(pa.array(rows)).flatten() for lists in (a, b))
    odd = _first(inner_a, inner_b) >= 0
    found[rows] = first_difference(Ragged(odd, lens_a[rows]), Ragged(np.zeros_like(odd), lens_a[rows]))
    return found


def _lens(lists: pa.Array) -> NDArray[np.int64]:
    lens: NDArray[np.int64] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lens.astype(np.int64)


def _other_text(a: pa.ChunkedArray, b: pa.ChunkedArray) -> Mask:
    """Where two text columns differ; null is equal to null alone."""
    differ = pc.fill_null(pc.not_equal(a, b), False).to_numpy()
    one_null = pc.is_null(a).to_numpy() != pc.is_null(b).to_numpy()
    mask: Mask = differ | one_null
    return mask
