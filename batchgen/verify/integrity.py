"""verify_run: is a run, file by file and row by row, what its manifest says? Reads files only."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from batchgen.io.finding import Finding, Kind
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import FILE_NAME, ROWS, Manifest, part_name, read_manifest
from batchgen.io.shard_check import check_shards
from batchgen.io.shard_faults import KeysOf, expected_ids

_MAX_FINDINGS = 10_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ok` when the run is finished and every row, count and hash holds."""

    rows: int  # read
    root: str | None  # recomputed from the files; None when some row is missing or has no place
    findings: tuple[Finding, ...]  # the first ten thousand
    counts: dict[Kind, int]  # of all findings

    @property
    def ok(self) -> bool:
        return not self.counts


def verify_run(run: Path, keys_of: KeysOf | None = None) -> Verdict:
    """Recompute every leaf, digest, count and the root of the run at `run` from its files alone.

    Memory does not grow with the number of rows. `keys_of`, where the input is at hand, names the rows of files that
    are gone. Raises RunError when there is no manifest, or none that can be read.
    """
    manifest = read_manifest(run)
    found = _Findings()
    found.add(_check_manifest(run, manifest))
    tree, rows = MerkleTree(), 0
    for shard, leaves, wrong in check_shards(run, manifest, manifest.shards, keys_of):
        found.add(wrong)
        rows += len(leaves)
        if not wrong:
            tree.add(shard.start * manifest.plan.n, leaves)
    found.add(_strays(run, manifest))
    root = None
    if manifest.finished and not found.counts:
        root = tree.root(manifest.plan.rows * manifest.plan.n)
        if root != manifest.root:
            found.add([Finding("manifest", FILE_NAME, f"its root is {manifest.root}, and the rows give {root}")])
    found.find_homes(run, manifest)
    return Verdict(rows, root, tuple(found.first), dict(found.counts))


class _Findings:
    """The first findings, and how many there are of each kind."""

    def __init__(self) -> None:
        self.first: list[Finding] = []
        self.counts: Counter[Kind] = Counter()

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.counts[finding.kind] += 1
            if len(self.first) < _MAX_FINDINGS:
                self.first.append(finding)

    def find_homes(self, run: Path, manifest: Manifest) -> None:
        """Rows that do not belong in their file may belong in another: moved there, or doubled."""
        strangers = {
            _id(finding) for finding in self.first if finding.kind == "foreign" and finding.row_key is not None
        }
        if not strangers:
            return
        missing = {_id(finding) for finding in self.first if finding.kind == "missing"}
        homes = {
            id_: part_name(shard.index)
            for shard in manifest.shards
            for id_ in strangers.intersection(expected_ids(run, manifest, shard))
        }
        kept = []
        for finding in self.first:
            home = homes.get(_id(finding))
            new: Finding | None = finding
            if home and finding.kind == "foreign" and _id(finding) in missing:
                new = replace(finding, kind="moved", detail=f"belongs in {home}")
            elif home and finding.kind == "foreign":
                new = replace(finding, kind="doubled", detail=f"is in {home} too")
            elif home and finding.kind == "missing":
                new = None  # it is the one that moved
            self.counts[finding.kind] -= 1
            if new:
                self.counts[new.kind] += 1
                kept.append(new)
        self.first, self.counts = kept, +self.counts


def _id(finding: Finding) -> tuple[str | None, int | None]:
    return finding.row_key, finding.sample_index


def _check_manifest(run: Path, manifest: Manifest) -> Iterator[Finding]:
    for contradiction in manifest.contradictions():
        yield Finding("manifest", FILE_NAME, contradiction)
    job = run / "job.yaml"
    if not job.is_file() or hashlib.sha256(job.read_bytes()).hexdigest() != manifest.job_yaml_sha256:
        yield Finding("changed", "job.yaml", "is not the file that the run was started with")
    left = manifest.plan.num_shards - len(manifest.shards)
    if left > 0:
        yield Finding("unfinished", FILE_NAME, f"{left} of {manifest.plan.num_shards} shards are still to be made")
    elif manifest.root is None:
        yield Finding("unfinished", FILE_NAME, "all shards are made, and the root is still to be written")


def _strays(run: Path, manifest: Manifest) -> Iterator[Finding]:
    """Files that a reader of the folder would take for rows."""
    named = {part_name(shard.index) for shard in manifest.shards}
    folder = run / ROWS
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = f"{ROWS}/{file.name}"
        if name not in named and not file.name.startswith("."):
            yield Finding("stray", name, "the manifest does not name it")
