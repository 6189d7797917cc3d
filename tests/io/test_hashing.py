import hashlib
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from support.arrow_tables import tables

from batchgen.io.canonical import to_plain
from batchgen.io.hashing import MerkleTree, leaves, params_hash, shard_digest
from batchgen.records import SamplingParams, StructuredOutputs


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def rfc6962(leaves_: list[bytes]) -> bytes:
    """The root as RFC 6962 defines it, top down."""
    if not leaves_:
        return sha256(b"")
    if len(leaves_) == 1:
        return sha256(b"\0" + leaves_[0])
    half = 1
    while half * 2 < len(leaves_):
        half *= 2
    return sha256(b"\1" + rfc6962(leaves_[:half]) + rfc6962(leaves_[half:]))


LEAVES = [bytes([i, i // 256]) * 8 for i in range(70)]


@pytest.mark.parametrize("size", range(70))
def test_the_root_is_that_of_rfc_6962(size: int) -> None:
    tree = MerkleTree()
    tree.add(0, LEAVES[:size])
    assert tree.root(size) == rfc6962(LEAVES[:size]).hex()


@pytest.mark.parametrize("seed", range(20))
def test_leaves_may_come_in_stretches_of_any_size_and_order(seed: int) -> None:
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, 70), chance.randint(0, 12)))
    stretches = list(zip([0, *cuts], [*cuts, 70], strict=True))
    chance.shuffle(stretches)
    tree = MerkleTree()
    for start, stop in stretches:
        tree.add(start, LEAVES[start:stop])
    assert tree.root(70) == rfc6962(LEAVES).hex()


def test_memory_is_logarithmic() -> None:
    tree = MerkleTree()
    for start in range(0, 4096, 16):
        tree.add(start, [b"x" * 16] * 16)
        assert len(tree._nodes) <= 13


@pytest.mark.parametrize("size", [0, 69, 71])
def test_a_root_of_other_leaves_than_came_is_refused(size: int) -> None:
    tree = MerkleTree()
    tree.add(0, LEAVES)
    with pytest.raises(ValueError, match="not those of"):
        tree.root(size)


def test_a_gap_is_refused() -> None:
    tree = MerkleTree()
    tree.add(0, LEAVES[:10])
    tree.add(11, LEAVES[11:20])
    tree.add(20, LEAVES[:1])
    with pytest.raises(ValueError, match="not those of"):
        tree.root(20)


def test_the_order_of_leaves_counts() -> None:
    roots = set()
    for order in (LEAVES[:5], LEAVES[:5][::-1]):
        tree = MerkleTree()
        tree.add(0, order)
        roots.add(tree.root(5))
    assert len(roots) == 2


def test_a_shard_digest_is_of_its_leaves() -> None:
    assert shard_digest(LEAVES) == hashlib.sha256(b"".join(LEAVES)).hexdigest()


@given(tables())
@settings(max_examples=100, deadline=None)
def test_parquet_and_its_layout_cannot_be_seen(table: pa.Table) -> None:
    columns = [to_plain(table[name].combine_chunks()) for name in table.column_names]
    stored = pa.table(columns, names=table.column_names)
    expected = leaves(stored)
    for options in ({"compression": "zstd"}, {"compression": "none", "row_group_size": 2, "use_dictionary": False}):
        sink = pa.BufferOutputStream()
        pq.write_table(stored, sink, version="2.6", **options)
        assert leaves(pq.read_table(pa.BufferReader(sink.getvalue()))) == expected


def test_many_row_groups_and_a_foreign_writer(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    count = range(3000)
    table = pa.table({"row_key": [f"r{i}" for i in count], "token_ids": [list(range(i % 7)) for i in count]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=97)
    duckdb.sql(f"COPY (FROM '{tmp_path}/a.parquet') TO '{tmp_path}/b.parquet'")
    assert leaves(pq.read_table(tmp_path / "b.parquet")) == leaves(table)


def test_row_hash_is_not_hashed() -> None:
    table = pa.table({"a": [1, 2]})
    assert leaves(table.append_column("row_hash", pa.array(["x", "y"]))) == leaves(table)


def test_params_hash_is_of_the_parameters_without_n() -> None:
    base = SamplingParams(temperature=0.5, logit_bias={7: 1.0}, stop=("a",))
    assert params_hash(base) == params_hash(SamplingParams(n=8, temperature=0.5, logit_bias={7: 1.0}, stop=("a",)))
    others = [SamplingParams(), SamplingParams(temperature=0.5), SamplingParams(temperature=0.5, logit_bias={7: 2.0})]
    assert len({params_hash(params) for params in (base, *others)}) == 4


def test_params_hash_knows_of_no_field_that_came_later() -> None:
    """Runs that were made before there were grammars keep their hashes."""
    assert params_hash(SamplingParams()) == "c23427dab74e60f5715812648291ec7c"


def test_params_hash_is_of_the_grammar() -> None:
    """With its order: properties are generated in the order of the schema."""
    forms = [
        StructuredOutputs(json_schema='{"properties":{"a":{},"b":{}}}'),
        StructuredOutputs(json_schema='{"properties":{"b":{},"a":{}}}'),
        StructuredOutputs(regex="a"),
        StructuredOutputs(grammar="a"),
        StructuredOutputs(choice=("a",)),
        StructuredOutputs(choice=("a", "b")),
    ]
    hashes = {params_hash(SamplingParams(structured_outputs=form)) for form in (None, *forms)}
    assert len(hashes) == 1 + len(forms)


def test_short_rows_are_hashed_fast() -> None:
    """The aim is 200,000 a second, which an idle core does with room to spare; the bar is for a busy one."""
    count = 20_000
    chance = np.random.default_rng(0)

    def lists(size: int, dtype: type) -> pa.Array:
        values = pa.array(chance.integers(0, 1000, count * size).astype(dtype))
        return pa.ListArray.from_arrays(np.arange(0, count * size + 1, size, dtype=np.int32), values)

    table = pa.table(
        {
            "row_key": [f"row-{i}" for i in range(count)],
            "sample_index": pa.array(np.zeros(count, np.int32)),
            "seed": pa.array(chance.integers(0, 2**63, count).astype(np.uint64)),
            "status": ["ok"] * count,
            "error_code": pa.nulls(count, pa.string()),
            "prompt_token_ids": lists(12, np.int32),
            "text": ["The answer is forty-two, as ever."] * count,
            "token_ids": lists(16, np.int32),
            "logprobs": lists(16, np.float32),
            "params_hash": ["ab" * 32] * count,
        }
    )
    started = time.process_time()
    tree = MerkleTree()
    tree.add(0, leaves(table))
    tree.root(count)
    assert count / (time.process_time() - started) > 60_000
