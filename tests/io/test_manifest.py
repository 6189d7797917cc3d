import hashlib
import json
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
import rfc8785
from pydantic import JsonValue

from batchgen.errors import RunError
from batchgen.io.manifest import (
    InputRecord,
    Manifest,
    PlanRecord,
    ReuseRecord,
    ShardRecord,
    Tally,
    manifest_schema,
    part_name,
    read_manifest,
    write_manifest,
)

ROOT = Path(__file__).parents[2]
SPEC: dict[str, JsonValue] = {"name": "é", "sampling": {"temperature": 1.0, "stop": ["@", None]}}


def shard(index: int, start: int, stop: int) -> ShardRecord:
    return ShardRecord(index, start, stop, "d" * 64, "k" * 64, Tally(2 * (stop - start), 1, 1, 0, 9, 5), probes=1)


def manifest(*shards: ShardRecord) -> Manifest:
    empty = Manifest(
        schema_version=2,
        batchgen_version="0.1.0",
        fingerprint={"job_fingerprint": hashlib.sha256(rfc8785.dumps(SPEC)).hexdigest()},
        spec=SPEC,
        job_yaml_sha256="j",
        inputs=(InputRecord("in.parquet", "s", 5),),
        plan=PlanRecord(rows=5, n=2, rows_per_shard=2, digest="p"),
        columns=(("row_key", "string"), ("token_ids", ["list", "int32"])),
        run_config={"threads": None},
        engine={"threads": 2, "self_test": {"ops": ["linear"]}},
    )
    return empty.with_shards(shards)


@pytest.mark.parametrize("shards", [(), (shard(0, 0, 2),), (shard(2, 4, 5), shard(0, 0, 2), shard(1, 2, 4))])
def test_round_trip(tmp_path: Path, shards: tuple[ShardRecord, ...]) -> None:
    written = manifest(*shards)
    write_manifest(tmp_path, written)
    assert read_manifest(tmp_path) == written
    jsonschema.validate(json.loads((tmp_path / "manifest.json").read_text()), manifest_schema())


def test_shards_are_sorted_counted_and_one_a_line() -> None:
    two = manifest(shard(1, 2, 4), shard(0, 0, 2))
    assert [record.index for record in two.shards] == [0, 1]
    assert two.counts == Tally(8, 2, 2, 0, 18, 10)
    assert two.probes == 2
    assert sum('"index"' in line for line in two.to_json().splitlines()) == 2


def test_shards_one_by_one_are_the_same_as_all_at_once() -> None:
    shards = [shard(2, 4, 5), shard(0, 0, 2), shard(1, 2, 4)]
    grown = manifest()
    for number, each in enumerate(shards, 1):
        grown = grown.with_shard(each)
        assert grown == manifest(*shards[:number])
        assert grown.to_json() == manifest(*shards[:number]).to_json()


def test_what_was_written_before_is_not_taken_for_what_is_new() -> None:
    first = shard(0, 0, 2)
    texts = {replace(first, probes=probes) for probes in range(3)}
    assert len({manifest(each).to_json() for each in texts}) == 3
    other = replace(manifest(first), inputs=(InputRecord("in.parquet", "s", 6),))
    assert json.loads(other.to_json())["inputs"] == [{"path": "in.parquet", "sha256": "s", "rows": 6}]


def test_the_json_is_that_of_the_whole() -> None:
    found = manifest(shard(0, 0, 2), shard(1, 2, 4))
    whole = json.loads(json.dumps(asdict(found)))
    for file in whole["inputs"]:
        del file["run_root"]  # only where there is one
    for record in whole["shards"]:
        del record["reused"]
    assert json.loads(found.to_json()) == {name: value for name, value in whole.items() if name != "reuse"}
    assert list(json.loads(found.to_json())) == [field.name for field in fields(Manifest) if field.name != "reuse"]


def test_runs_of_which_samples_were_taken(tmp_path: Path) -> None:
    runs = ReuseRecord("../a", "r" * 64), ReuseRecord("../b", None)
    shards = replace(shard(0, 0, 2), reused=(1,)), replace(shard(1, 2, 4), reused=(0, 3))
    found = replace(manifest(*shards), reuse=runs)
    write_manifest(tmp_path, found)
    assert read_manifest(tmp_path) == found
    assert found.reused == [(runs[0], 1), (runs[1], 3)]
    odd = replace(found, reuse=runs[:1]), found.with_shards([shards[0], replace(shards[1], reused=(4, -1))])
    for each in odd:
        wrong = [text for text in each.contradictions() if "earlier runs" in text]
        assert wrong == ["shard 1 has samples of earlier runs that it cannot have"]


def test_a_thousand_shards_cost_no_more_than_their_text() -> None:
    """Every shard is written down again at each commit; to make its text again took more than all of the rows."""
    full = manifest(*(shard(index, 0, 2) for index in range(1000)))
    full.to_json()
    started = time.process_time()
    for index in range(1000, 1050):
        full = full.with_shard(shard(index, 0, 2))
        full.to_json()
    assert time.process_time() - started < 50 * 0.005


def test_finished_is_all_shards_and_a_root() -> None:
    full = manifest(shard(0, 0, 2), shard(1, 2, 4), shard(2, 4, 5))
    assert not full.finished
    assert replace(full, root="r").finished
    assert not replace(manifest(shard(0, 0, 2)), root="r").finished


def test_a_spec_that_no_json_can_be_hashed_of() -> None:
    edited = replace(manifest(), spec={**SPEC, "seed": 1 << 60})
    assert list(edited.contradictions()) == ["job_fingerprint is not that of its spec"]


def test_tally_of_rows() -> None:
    table = pa.table(
        {
            "finish_reason": ["stop", "error", "length", "stop"],
            "num_prompt_tokens": pa.array([1, None, 3, 4], pa.int32()),
            "num_output_tokens": pa.array([5, None, 6, 0], pa.int32()),
        }
    )
    assert Tally.of(table) == Tally(4, 2, 1, 1, 8, 11)
    assert Tally.of(table.slice(0, 0)) == Tally()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema_version": 3},
            "has schema version 3, newer than 2, .*\n  batchgen 0.1.0 began",
        ),
        ({"schema_version": 1}, "has schema version 1, older than 2"),
        ({"schema_version": "2"}, "is damaged: it has no schema_version"),
        ({"shards": [{"index": 0}]}, r"shards\.0\.start: is damaged"),
        ({"surprise": 1}, "surprise: is damaged"),
        ({"root": 7}, "root: is damaged"),
        ({"plan": {"rows": 5, "n": 0, "rows_per_shard": 2, "digest": "p"}}, "plan: is damaged: not a plan of rows"),
        ({"plan": {"rows": 10**30, "n": 1, "rows_per_shard": 2, "digest": "p"}}, "plan: is damaged: not a plan"),
        ({"plan": {"rows": "5", "n": 2, "rows_per_shard": 2, "digest": "p"}}, r"plan\.rows: is damaged"),
    ],
)
def test_a_manifest_that_is_not_one(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document = json.loads(manifest().to_json()) | change
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no schema_version"),
        (b"{}", "no schema_version"),
    ],
)
def test_a_manifest_that_is_torn(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(RunError, match=f"is damaged.*{message}"):
        read_manifest(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(RunError, match="is not a run folder"):
            read_manifest(path)


def test_a_sound_manifest_does_not_contradict_itself() -> None:
    assert list(manifest(shard(0, 0, 2), shard(2, 4, 5)).contradictions()) == []


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        (replace(manifest(), spec={**SPEC, "name": "other"}), "job_fingerprint is not that of its spec"),
        (replace(manifest(shard(0, 0, 2)), counts=Tally(3)), "not the sum"),
        (manifest(shard(0, 0, 3)), "shard 0 is not one of the plan's"),
        (manifest(shard(3, 6, 8)), "shard 3 is not one of the plan's"),
        (manifest(shard(0, 0, 2), shard(0, 0, 2)), "shard 0 is not one of the plan's"),
        (manifest(replace(shard(0, 0, 2), probes=5)), "shard 0 has 5 probes of 4 rows"),
        (manifest(replace(shard(0, 0, 2), probes=-1)), "shard 0 has -1 probes of 4 rows"),
    ],
)
def test_contradictions(edited: Manifest, message: str) -> None:
    [found] = edited.contradictions()
    assert message in found


def test_part_names_hang_on_the_index_alone() -> None:
    assert [part_name(index) for index in (0, 12, 123456)] == [
        "rows/part-00000.parquet", "rows/part-00012.parquet", "rows/part-123456.parquet",
    ]  # fmt: skip


def test_the_published_schema_is_the_code() -> None:
    published = json.loads((ROOT / "schemas" / "manifest.schema.json").read_text(encoding="utf-8"))
    assert published == manifest_schema()
