"""docs/formats.md, followed by hand."""

import hashlib
import json
import re
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from support.fake_jobs import make_job, run, write_input

from batchgen.io.events import read_events
from batchgen.io.hashing import leaves
from batchgen.io.manifest import manifest_schema, part_name
from batchgen.io.schema import rows_schema
from batchgen.verify.sorting import KINDS, SCHEMA

DOC = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def table_keys(heading: str) -> set[str]:
    """The first cells of the table below a heading."""
    section = DOC.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"[a-z_0-9]+", cell.strip()) if "passthrough" not in cell}


def test_the_row_in_the_text() -> None:
    by_hand = xxhash.xxh3_128_digest(b'[["a","int32"]]') + struct.pack("<2I", 1, 7)
    assert leaves(pa.table({"a": pa.array([7], pa.int32())})) == [xxhash.xxh3_128_digest(by_hand)]


def test_a_seed_and_a_plan_by_hand(tmp_path: Path) -> None:
    run(make_job(write_input(tmp_path / "in", 9), seed=2**64 - 1), tmp_path / "run")
    row = pq.read_table(tmp_path / "run" / part_name(0)).slice(3, 1).to_pylist()[0]
    key = row["row_key"].encode()
    identity = struct.pack("<QQ", 2**64 - 1, len(key)) + key + struct.pack("<I", row["sample_index"])
    assert row["seed"] == xxhash.xxh3_64_intdigest(b"batchgen.sample_seed.v1\0" + identity)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    plan, parts = manifest["plan"], [manifest["fingerprint"][name] for name in ("job_fingerprint", "inputs_digest")]
    text = json.dumps([*parts, plan["rows"], plan["n"], plan["rows_per_shard"]], separators=(",", ":"))
    assert plan["digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_tables_name_every_column_and_key() -> None:
    assert table_keys("Columns") - {"column"} == set(rows_schema()["properties"])
    assert table_keys("manifest.json") - {"key"} == set(manifest_schema()["properties"])


def test_the_tables_name_every_event(tmp_path: Path) -> None:
    run(make_job(write_input(tmp_path / "in", 9)), tmp_path / "run")
    events = read_events(tmp_path / "run")
    of_replicas = {"join", "lost", "death", "refuse", "twin", "twins"}  # see tests/executor/test_driver_faults.py
    assert table_keys("events.jsonl") - {"event", "stop"} - of_replicas == {event["event"] for event in events}
    section = DOC.split("## events.jsonl\n")[1].split("\n## ")[0]
    assert {key for event in events for key in event} <= set(re.findall(r"[a-z_]+", section))


def test_a_manifest_can_be_checked_by_hand(tmp_path: Path) -> None:
    run(make_job(write_input(tmp_path / "in", 9)), tmp_path / "run", rows_per_shard=4)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    nodes = []
    for shard in manifest["shards"]:
        table = pq.read_table(tmp_path / "run" / part_name(shard["index"]))
        hashes = [bytes.fromhex(text) for text in table["row_hash"].to_pylist()]
        assert shard["digest"] == hashlib.sha256(b"".join(hashes)).hexdigest()
        assert shard["keys_digest"] == hashlib.sha256(table.schema.metadata[b"batchgen.row_keys"]).hexdigest()
        nodes += [hashlib.sha256(b"\0" + leaf).digest() for leaf in hashes]

    def root(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        k = 1 << ((len(part) - 1).bit_length() - 1)
        return hashlib.sha256(b"\1" + root(part[:k]) + root(part[k:])).digest()

    assert manifest["root"] == root(nodes).hex()


def test_the_columns_and_kinds_of_a_diff() -> None:
    assert table_keys("What diff writes") == {"column", *SCHEMA.names}
    section = DOC.split("## What diff writes")[1].split("\n## ")[0]
    assert all(f"`{kind}`" in section for kind in KINDS if kind != "identical")
