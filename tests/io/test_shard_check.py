"""Shards are judged in groups, and large ones in pieces: neither may be seen in what is found."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_jobs import make_job, run, write_input
from support.run_damage import put, rehash, rewrite

from batchgen.errors import RunError
from batchgen.io.finding import Finding
from batchgen.io.manifest import Manifest, ShardRecord, part_name, read_manifest
from batchgen.io.shard_check import check_shard, check_shards

ROWS = 5000  # more than are looked at together


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """small/ and large/: the same rows in shards of 150 rows, and in one."""
    folder = tmp_path_factory.mktemp("check")
    job = make_job(write_input(folder / "in", ROWS, bad=[7]), sampling={"n": 1, "max_tokens": 4})
    run(job, folder / "small", rows_per_shard=150)
    run(job, folder / "large", rows_per_shard=ROWS)
    return folder


def test_together_and_alone_is_the_same(runs: Path, tmp_path: Path) -> None:
    out = shutil.copytree(runs / "small", tmp_path / "run")
    rewrite(out, 3, put("text", 5, "edited"))
    (out / part_name(8)).unlink()
    manifest = read_manifest(out)
    together = list(check_shards(out, manifest, manifest.shards))
    assert [shard for shard, _, _ in together] == list(manifest.shards)
    assert [shard.index for shard, _, wrong in together if wrong] == [3, 8]
    for shard, leaves, wrong in together[:12]:
        assert check_shard(out, manifest, shard) == (leaves, wrong)


def test_a_large_shard_has_the_leaves_of_the_small_ones(runs: Path) -> None:
    [(_, leaves, wrong)] = checked(runs / "large")
    assert not wrong
    assert leaves == [leaf for _, part, _ in checked(runs / "small") for leaf in part]


def test_a_row_of_a_large_shard_is_named(runs: Path, tmp_path: Path) -> None:
    out = shutil.copytree(runs / "large", tmp_path / "run")
    rewrite(out, 0, put("text", 4500, "edited"))
    [(_, _, [finding])] = checked(out)
    assert (finding.kind, finding.row_key) == ("changed", "row-4500")
    rewrite(out, 0, lambda table: rehash(put("seed", 4500, 1)(table)))
    [(_, _, [finding])] = checked(out)
    assert finding.detail.startswith("its seed is 1, and the job gives it")


def test_a_torn_large_shard(runs: Path, tmp_path: Path) -> None:
    out = shutil.copytree(runs / "large", tmp_path / "run")
    data = bytearray((out / part_name(0)).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    (out / part_name(0)).write_bytes(data)
    [(_, leaves, wrong)] = checked(out)
    assert leaves == []
    assert wrong[0].kind == "torn"


def test_no_more_files_are_held_than_are_judged_together(runs: Path) -> None:
    """The counter-test is the number itself: all 34 shards would be asked for if nothing came out before the end."""
    asked = 0

    def shards(manifest: Manifest) -> Iterator[ShardRecord]:
        nonlocal asked
        for shard in manifest.shards:
            asked += 1
            yield shard

    manifest = read_manifest(runs / "small")
    next(check_shards(runs / "small", manifest, shards(manifest)))
    assert asked == -(-4096 // 150)
    assert len(manifest.shards) == 34


def test_a_manifest_that_tells_nothing_of_rows(runs: Path) -> None:
    manifest = replace(read_manifest(runs / "small"), spec={})
    with pytest.raises(RunError, match="its spec is not that of a job"):
        check_shard(runs / "small", manifest, manifest.shards[0])


def checked(out: Path) -> list[tuple[ShardRecord, list[bytes], list[Finding]]]:
    manifest = read_manifest(out)
    return [(shard, leaves, list(wrong)) for shard, leaves, wrong in check_shards(out, manifest, manifest.shards)]
