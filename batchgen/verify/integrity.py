"""verify_run: is a run, file by file and row by row, what its manifest says? Reads files only."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from batchgen.errors import RunError
from batchgen.io.finding import Finding, Kind
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import FILE_NAME, ROWS, Manifest, part_name, read_manifest
from batchgen.io.row_rules import RowRules
from batchgen.io.shard_check import check_shards
from batchgen.io.shard_faults import KeysOf, expected_ids
from batchgen.object_path import StoreError
from batchgen.places import Place
from batchgen.plan import Plan

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


def verify_run(
    run: Place,
    keys_of: KeysOf | None = None,
    *,
    root: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verdict:
    """Recompute every hash, count and the root of the run at `run` from its files alone, and hold them to the manifest.

    Checked of every row: that it hashes to its row_hash; that its seed is that of the job's seed, its row key and its
    sample_index; that its params_hash is that of the job's sampling; that samples 0 .. n-1 follow one another. Of every
    shard: its digest, counts, row keys in order, size and columns. Of the manifest: that fingerprint, plan and counts
    are those of its own spec, inputs and shards; that job.yaml is the one on record; that the root is that of the rows.
    `root`, noted elsewhere, is what the root must be: a run that was forged throughout gives itself away only there.

    Memory does not grow with the number of rows. `keys_of`, where the input is at hand, names the rows of files that
    are gone. `on_progress` is told how many rows of how many are done. Raises RunError when there is no manifest, or
    none that can be read.
    """
    manifest = read_manifest(run)
    found = _Findings()
    try:
        rules = RowRules.of(manifest)
    except RunError as error:
        return Verdict(0, None, (Finding("manifest", FILE_NAME, error.message),), {"manifest": 1})
    faults = (*manifest.contradictions(), *off_plan(manifest, rules))
    found.add(Finding("manifest", FILE_NAME, fault) for fault in faults)
    found.add(_check_state(run, manifest))
    tree, rows = MerkleTree(), 0
    for shard, leaves, wrong in check_shards(run, manifest, manifest.shards, keys_of):
        found.add(wrong)
        rows += len(leaves)
        if not found.counts:
            tree.add(shard.start * manifest.plan.n, leaves)
        on_progress(rows, manifest.counts.rows)
    found.add(_strays(run, manifest))
    made = None
    if manifest.finished and not found.counts:
        made = tree.root(manifest.plan.num_samples)
        if made != manifest.root:
            found.add([Finding("manifest", FILE_NAME, f"its root is {manifest.root}, and the rows give {made}")])
    if root is not None and root != (made or manifest.root):
        found.add([Finding("manifest", FILE_NAME, f"its root is {made or manifest.root}, and should be {root}")])
    found.find_homes(run, manifest)
    return Verdict(rows, made, tuple(found.first), dict(found.counts))


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

    def find_homes(self, run: Place, manifest: Manifest) -> None:
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


def off_plan(manifest: Manifest, rules: RowRules) -> Iterator[str]:
    """Where fingerprint and plan are not those of the spec and the inputs beside them."""
    plan, fingerprint = manifest.plan, manifest.fingerprint
    job, inputs = (fingerprint.get(part, "") for part in ("job_fingerprint", "inputs_digest"))
    if fingerprint.get("params_hash") != rules.params_hash:
        yield "params_hash is not that of the sampling of its spec"
    if plan.n != rules.n:
        yield f"n is {plan.n} in its plan and {rules.n} in its spec"
    if plan.rows != sum(file.rows for file in manifest.inputs):
        yield f"its plan has {plan.rows} rows, and its inputs {sum(file.rows for file in manifest.inputs)}"
    if plan.digest != Plan(job, inputs, plan.rows, plan.n, plan.rows_per_shard).digest:
        yield "the digest of its plan is not that of its job, inputs, rows and shards"


def _check_state(run: Place, manifest: Manifest) -> Iterator[Finding]:
    try:
        job_yaml = (run / "job.yaml").read_bytes()
    except StoreError:
        raise
    except OSError as error:
        yield Finding("changed", "job.yaml", f"cannot be read: {error.strerror}")
    else:
        if hashlib.sha256(job_yaml).hexdigest() != manifest.job_yaml_sha256:
            yield Finding("changed", "job.yaml", "is not the file that the run was started with")
    left = manifest.plan.num_shards - len(manifest.shards)
    if left > 0:
        yield Finding("unfinished", FILE_NAME, f"{left} of {manifest.plan.num_shards} shards are still to be made")
    elif manifest.root is None:
        yield Finding("unfinished", FILE_NAME, "all shards are made, and the root is still to be written")


def _strays(run: Place, manifest: Manifest) -> Iterator[Finding]:
    """Files that a reader of the folder would take for rows."""
    named = {part_name(shard.index) for shard in manifest.shards}
    folder = run / ROWS
    files = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    for name in (f"{ROWS}/{file}" for file in files if not file.startswith(".")):
        if name not in named:
            yield Finding("stray", name, "the manifest does not name it")
