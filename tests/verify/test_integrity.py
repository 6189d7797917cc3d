"""Damage a run in every way that we can think of; verify must say what was done to it, and to which rows."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, read_rows, run, write_input
from support.run_damage import put, rehash, rewrite, take

from batchgen.errors import RunError
from batchgen.io.finding import Finding
from batchgen.io.hashing import MerkleTree, leaves, shard_digest
from batchgen.io.manifest import part_name, read_manifest, write_manifest
from batchgen.verify.integrity import Verdict, verify_run

ROWS = 200
PER_SHARD = 64


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    job = make_job(write_input(folder / "in", ROWS, bad=[5]), sampling={"logprobs": 1})
    run(job, folder / "run", rows_per_shard=PER_SHARD)
    return folder / "run"


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def rows_of(verdict: Verdict, kind: str) -> list[tuple[str | None, int | None]]:
    return [(f.row_key, f.sample_index) for f in verdict.findings if f.kind == kind and f.row_key is not None]


def sample(number: int) -> tuple[str, int]:
    """The id of the number-th sample of the run."""
    return f"row-{number // 2}", number % 2


def test_a_sound_run(out: Path) -> None:
    verdict = verify_run(out)
    assert verdict.ok
    assert (verdict.rows, verdict.root) == (2 * ROWS, read_manifest(out).root)
    tree = MerkleTree()
    tree.add(0, leaves(read_rows(out)))
    assert verdict.root == tree.root(2 * ROWS)


def test_another_layout_is_the_same_run(out: Path) -> None:
    rewrite(out, 1, lambda table: table, metadata=False)
    assert verify_run(out).ok


@pytest.mark.parametrize("metadata", [True, False])
def test_one_flipped_bit_in_a_logprob(out: Path, metadata: bool) -> None:
    def flip(table: pa.Table) -> pa.Table:
        column = table["logprobs"].combine_chunks()
        bits = column.values.to_numpy().copy().view(np.uint32)
        bits[column.offsets[11].as_py()] ^= 1
        index = table.column_names.index("logprobs")
        values = pa.ListArray.from_arrays(column.offsets, pa.array(bits.view(np.float32)), mask=column.is_null())
        return table.set_column(index, table.schema.field(index), values)

    rewrite(out, 2, flip, metadata=metadata)
    verdict = verify_run(out)
    assert rows_of(verdict, "changed") == [sample(4 * PER_SHARD + 11)]
    assert verdict.root is None


@pytest.mark.parametrize(
    "column", ["seed", "text", "token_ids", "prompt_token_ids", "row_hash", "label", "meta", "status"]
)
def test_each_column_is_covered(out: Path, column: str) -> None:
    before = pq.read_table(out / part_name(0))[column].to_pylist()
    other = next(value for value in [*before, "x"] if value != before[4] and value is not None)
    rewrite(out, 0, put(column, 4, other))
    verdict = verify_run(out)
    assert rows_of(verdict, "changed") == [sample(4)]
    assert verdict.counts == {"changed": 1}


def test_thirty_four_deleted_rows_are_named(out: Path) -> None:
    rewrite(out, 1, take(range(20), range(54, 2 * PER_SHARD)))
    verdict = verify_run(out)
    assert rows_of(verdict, "missing") == [sample(2 * PER_SHARD + row) for row in range(20, 54)]
    assert verdict.counts == {"missing": 34}


def test_two_swapped_rows(out: Path) -> None:
    rewrite(out, 0, take(range(3), 9, range(4, 9), 3, range(10, 2 * PER_SHARD)))
    verdict = verify_run(out)
    assert rows_of(verdict, "moved") == [sample(9), sample(3)]
    assert verdict.counts == {"moved": 2}


def test_a_doubled_row(out: Path) -> None:
    rewrite(out, 0, take(range(2 * PER_SHARD), 7))
    verdict = verify_run(out)
    assert rows_of(verdict, "doubled") == [sample(7)]
    assert verdict.counts == {"doubled": 1}


def test_a_foreign_row(out: Path) -> None:
    rewrite(out, 0, lambda table: rehash(put("row_key", 7, "intruder")(table)))
    verdict = verify_run(out)
    assert rows_of(verdict, "foreign") == [("intruder", 1)]
    assert rows_of(verdict, "missing") == [sample(7)]
    assert verdict.counts == {"foreign": 1, "missing": 1}


def test_a_row_of_another_shard_is_doubled_or_moved(out: Path) -> None:
    extra = pq.read_table(out / part_name(2)).slice(6, 1)
    rewrite(out, 0, lambda table: pa.concat_tables([table, extra]))
    verdict = verify_run(out)
    assert rows_of(verdict, "doubled") == [sample(4 * PER_SHARD + 6)]
    assert verdict.counts == {"doubled": 1}
    rewrite(out, 2, take(range(6), range(7, 2 * PER_SHARD)))
    verdict = verify_run(out)
    assert rows_of(verdict, "moved") == [sample(4 * PER_SHARD + 6)]
    assert verdict.counts == {"moved": 1}


def test_a_row_edited_together_with_its_hash(out: Path) -> None:
    rewrite(out, 0, lambda table: rehash(put("text", 3, "forged")(table)))
    verdict = verify_run(out)
    assert verdict.counts == {"changed": 1}
    assert "edited together with their row_hash" in str(verdict.findings[0])


def test_a_forged_row_and_a_manifest_edited_to_match(out: Path) -> None:
    rewrite(out, 0, lambda table: rehash(put("text", 3, "forged")(table)))
    manifest = read_manifest(out)
    forged = shard_digest(leaves(pq.read_table(out / part_name(0))))
    write_manifest(out, manifest.with_shards([replace(manifest.shards[0], digest=forged), *manifest.shards[1:]]))
    [finding] = verify_run(out).findings
    assert finding.kind == "manifest"
    assert f"its root is {manifest.root}, and the rows give " in finding.detail


@pytest.mark.parametrize("keep", [0, 4, 500, -5])
def test_a_torn_file(out: Path, keep: int) -> None:
    path = out / part_name(1)
    path.write_bytes(path.read_bytes()[:keep])
    verdict = verify_run(out)
    assert verdict.counts == {"torn": 1}
    assert f"{part_name(1)}: cannot be read" in str(verdict.findings[0])
    assert f"input rows {PER_SHARD} to {2 * PER_SHARD - 1}, 2 samples each" in verdict.findings[0].detail


def test_any_flipped_byte_of_a_file_is_noticed(out: Path) -> None:
    """Or it changes nothing that is read: statistics, padding, the name of the writer."""
    path = out / part_name(3)
    good = path.read_bytes()
    content = pq.read_table(path)
    noticed = 0
    for at in range(0, len(good), 97):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        if verify_run(out).ok:
            assert pq.read_table(path).equals(content)
        else:
            noticed += 1
    assert noticed > 20


def test_a_deleted_file_and_its_rows_by_the_input(out: Path) -> None:
    (out / part_name(2)).unlink()
    verdict = verify_run(out)
    assert verdict.counts == {"torn": 1}
    assert "there is no such file" in verdict.findings[0].detail
    named = verify_run(out, lambda start, stop: [f"row-{row}" for row in range(start, stop)])
    assert rows_of(named, "missing") == [sample(row) for row in range(4 * PER_SHARD, 6 * PER_SHARD)]


def test_an_input_that_has_changed_names_nothing(out: Path) -> None:
    (out / part_name(2)).unlink()
    assert verify_run(out, lambda start, stop: [f"other-{row}" for row in range(start, stop)]).counts == {"torn": 1}


def test_rows_lost_with_the_metadata_are_counted(out: Path) -> None:
    rewrite(out, 1, take(range(10)), metadata=False)
    verdict = verify_run(out)
    assert f"holds 10 rows of {2 * PER_SHARD}" in verdict.findings[0].detail
    named = verify_run(out, lambda start, stop: [f"row-{row}" for row in range(start, stop)])
    assert named.counts == {"missing": 2 * PER_SHARD - 10}


def test_swapped_files(out: Path) -> None:
    (out / part_name(0)).rename(out / "x")
    (out / part_name(1)).rename(out / part_name(0))
    (out / "x").rename(out / part_name(1))
    assert [str(finding) for finding in verify_run(out).findings] == [
        f"foreign: {part_name(0)}: holds the rows of {part_name(1)}",
        f"foreign: {part_name(1)}: holds the rows of {part_name(0)}",
    ]


def test_a_file_of_another_run(out: Path, tmp_path: Path) -> None:
    run(
        make_job(write_input(tmp_path / "in", ROWS), seed=8, sampling={"logprobs": 1}),
        tmp_path / "b",
        rows_per_shard=64,
    )
    shutil.copy(tmp_path / "b" / part_name(1), out / part_name(1))
    [finding] = verify_run(out).findings
    assert (finding.kind, finding.detail) == ("foreign", "is a file of another run: its job_fingerprint is another")


def test_other_columns(out: Path) -> None:
    rewrite(
        out, 1, lambda table: table.rename_columns([name.replace("label", "target") for name in table.column_names])
    )
    assert "has other columns than the manifest says" in verify_run(out).findings[0].detail


def test_a_stray_file(out: Path) -> None:
    shutil.copy(out / part_name(0), out / "rows" / "part-00009.parquet")
    (out / "rows" / ".part-00000.parquet.untrusted").touch()
    assert verify_run(out).findings == (Finding("stray", "rows/part-00009.parquet", "the manifest does not name it"),)


@pytest.mark.parametrize(
    ("edit", "kinds"),
    [
        ({"root": "0" * 64}, {"manifest": 1}),
        ({"root": None}, {"unfinished": 1}),
        ({"shards": lambda shards: shards[:-1]}, {"manifest": 1, "unfinished": 1, "stray": 1}),
        ({"shards": lambda shards: [*shards[:-1], shards[0]]}, {"manifest": 2, "stray": 1}),
        ({"counts": lambda counts: counts | {"error": 0}}, {"manifest": 1}),
        ({"spec": lambda spec: spec | {"name": "x"}}, {"manifest": 1}),
        ({"job_yaml_sha256": "0"}, {"changed": 1}),
    ],
)
def test_an_edited_manifest(out: Path, edit: dict[str, Any], kinds: dict[str, int]) -> None:
    document = json.loads((out / "manifest.json").read_text())
    for key, value in edit.items():
        document[key] = value(document[key]) if callable(value) else value
    (out / "manifest.json").write_text(json.dumps(document))
    assert verify_run(out).counts == kinds


def test_edited_counts_of_a_shard(out: Path) -> None:
    manifest = read_manifest(out)
    first = manifest.shards[0]
    tally = replace(first.tally, output_tokens=0)
    write_manifest(out, manifest.with_shards([replace(first, tally=tally), *manifest.shards[1:]]))
    assert verify_run(out).counts == {"manifest": 1}


def test_an_edited_job_file(out: Path) -> None:
    (out / "job.yaml").write_text("# another\n")
    assert [str(finding) for finding in verify_run(out).findings] == [
        "changed: job.yaml: is not the file that the run was started with"
    ]


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        verify_run(tmp_path)


def test_a_verdict_is_json(out: Path) -> None:
    assert json.loads(json.dumps(asdict(verify_run(out))))["counts"] == {}
