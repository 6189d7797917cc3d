"""What a run folder must be after every event, found out without trust in verify: the files against a whole run's."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from batchgen.errors import BatchgenError, RunError
from batchgen.io.hashing import ROW_HASH, leaves
from batchgen.io.manifest import Manifest, part_name, read_manifest
from batchgen.verify.integrity import verify_run

Sample = tuple[str, int]
Leaves = Mapping[Sample, str]  # of every sample of a run that nobody disturbed; in its order


class ChaosError(AssertionError):
    """The folder is not what it must be."""


@dataclass(frozen=True, slots=True)
class State:
    """A folder after an event."""

    manifest: Manifest | None
    kept: frozenset[Sample]  # committed, and as they must be
    damaged: frozenset[str]  # files that the manifest names and that are not as they must be
    strays: frozenset[str]  # files that the manifest does not name and a reader of the folder sees


def read_leaves(path: Path) -> dict[Sample, str] | None:
    """Of each row, computed from its values; None for a file that cannot be read or holds a row twice."""
    try:
        table = pq.read_table(path)
        found = [leaf.hex() for leaf in leaves(table)]
        ids = zip(table["row_key"].to_pylist(), table["sample_index"].to_pylist(), strict=True)
        by_id = dict(zip(ids, found, strict=True))
        return by_id if table[ROW_HASH].to_pylist() == found and len(by_id) == len(found) else None
    except (pa.ArrowException, BatchgenError, OSError, ValueError, KeyError):
        return None


def state_of(out: Path, whole: Leaves) -> State:
    """Read every file."""
    try:
        manifest = read_manifest(out)
    except RunError:
        return State(None, frozenset(), frozenset(), frozenset())
    order, n = list(whole), manifest.plan.n
    kept, damaged = set[Sample](), set[str]()
    for shard in manifest.shards:
        expected = order[shard.start * n : shard.stop * n]
        found = read_leaves(out / part_name(shard.index))
        if found is not None and list(found) == expected and all(whole[sample] == found[sample] for sample in found):
            kept |= found.keys()
        else:
            damaged.add(part_name(shard.index))
    named = {part_name(shard.index) for shard in manifest.shards}
    visible = {f"rows/{path.name}" for path in (out / "rows").glob("[!.]*")}
    return State(manifest, frozenset(kept), frozenset(damaged), frozenset(visible - named))


def check_verify(out: Path, state: State) -> None:
    """verify finds the damage that is there, names its files, and finds nothing else."""
    verdict = verify_run(out)
    blamed = {finding.file for finding in verdict.findings if finding.kind not in ("unfinished", "stray")}
    strays = {finding.file for finding in verdict.findings if finding.kind == "stray"}
    if blamed != state.damaged:
        found = [str(finding) for finding in verdict.findings if finding.file in blamed ^ state.damaged][:3]
        raise ChaosError(f"damaged are {sorted(state.damaged)}, and verify blames {sorted(blamed)}: {found}")
    if strays != state.strays:
        raise ChaosError(f"verify finds the strays {sorted(strays)}, and there are {sorted(state.strays)}")


def check_readers(out: Path, whole: Leaves, planted: Collection[str]) -> None:
    """DuckDB and pyarrow read every visible file but the planted ones, and find no row twice and none that is wrong."""
    files = sorted(path for path in (out / "rows").glob("*.parquet") if f"rows/{path.name}" not in planted)
    if not files:
        return
    names = [str(path) for path in files]
    try:
        rows = duckdb.sql(f"SELECT row_key, sample_index, row_hash FROM read_parquet({names})").fetchall()
    except duckdb.Error as error:
        raise ChaosError(f"DuckDB cannot read the folder: {error}") from None
    if len({row[:2] for row in rows}) < len(rows):
        raise ChaosError("a row is in the folder twice")
    if wrong := [row for row in rows if whole.get((row[0], row[1])) != row[2]]:
        raise ChaosError(f"{len(wrong)} rows are not those of the undisturbed run, first {wrong[0]}")
    count = ds.dataset(names, format="parquet", exclude_invalid_files=False).count_rows()
    if count != len(rows):
        raise ChaosError(f"pyarrow counts {count} rows and DuckDB {len(rows)}")


def check_counts(state: State) -> None:
    """The manifest agrees with itself, and its counts with the rows."""
    if state.manifest is None:
        return
    if found := list(state.manifest.contradictions()):
        raise ChaosError(f"the manifest contradicts itself: {found}")
    if not state.damaged and state.manifest.counts.rows != len(state.kept):
        raise ChaosError(f"the manifest counts {state.manifest.counts.rows} rows, and {len(state.kept)} are there")


def check_finished(out: Path, whole: Leaves, root: str) -> None:
    """A run that has ended by itself: the root, every row once, in order, and nothing left over."""
    manifest = read_manifest(out)
    if manifest.root != root:
        raise ChaosError(f"the root is {manifest.root}, and that of the undisturbed run is {root}")
    verdict = verify_run(out)
    if not verdict.ok or verdict.root != root:
        raise ChaosError(f"verify finds {[str(finding) for finding in verdict.findings[:3]]}")
    found: list[tuple[Sample, str]] = []
    for path in sorted((out / "rows").glob("*.parquet")):
        found += (read_leaves(path) or {}).items()
    if found != list(whole.items()):
        raise ChaosError(f"{len(found)} rows, and not the {len(whole)} of the undisturbed run in their order")
    if left := [str(path) for path in out.rglob("*.tmp")]:
        raise ChaosError(f"left behind: {left}")
