"""diff_runs: in which rows do two runs differ, how, and what do their manifests say about why? Reads files only."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchgen.io.manifest import Manifest, read_manifest
from batchgen.places import Place
from batchgen.verify.alignment import RunRows, align
from batchgen.verify.causes import SAME, UNFINISHED, Cause, Difference, Effect, Suspects, suspects
from batchgen.verify.diff_file import DiffFile
from batchgen.verify.sorting import KINDS, UNKNOWN, Kind, Seen, Sorted, sort_alone, sort_pairs

_BLOCK_BYTES = 16 << 20  # of tokens and text, of each run
_BLOCK_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs. `samples` is what its job asks for, `rows` what is there."""

    path: str
    rows: int
    samples: int
    root: str | None
    finished: bool
    batchgen_version: str


@dataclass(frozen=True, slots=True)
class Category:
    """Rows that differ in one way. `evidence` counts what was seen in them, `answers` how their answers compare."""

    kind: Kind
    rows: int
    share: float  # of all rows of both runs
    cause: Cause
    evidence: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the token at which rows diverge: quantiles, and counts in buckets (first, last, rows) that double in width."""

    minimum: int
    lower_quartile: int
    median: int
    upper_quartile: int
    maximum: int
    histogram: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """What was found. Each row of either run is counted in exactly one category; `rows` is their sum."""

    a: Side
    b: Side
    by_roots: bool  # the roots are equal, and no file was read
    rows: int
    categories: tuple[Category, ...]  # that hold a row
    diverged_at: Spread | None
    differences: tuple[Difference, ...]  # between the jobs, that can act on rows
    circumstances: tuple[Difference, ...]  # that cannot
    examples: tuple[dict[str, Any], ...]

    @property
    def identical(self) -> bool:
        """No row differs, and none is in one run alone."""
        return all(category.kind == "identical" for category in self.categories)


def diff_runs(a: Place, b: Place, *, examples: int = 5, out: Path | None = None) -> Diff:
    """Compare the run at `a` with the run at `b`, row by row.

    Equal roots answer at once. Otherwise every row of both is checked against its hash, rows are paired by
    (row_key, sample_index), and each pair is sorted by the first respect in which it differs. Keeps up to `examples`
    of the rows, kinds in turn; `out` takes all that differ, as Parquet. Memory grows by 16 bytes with each row that
    differs; keys that take more than a gigabyte go to a temporary folder. Raises RunError (no run, another version,
    `out` cannot be written) and VerifyError (a run whose files do not hold what its manifest says).
    """
    left, right = RunRows(a, read_manifest(a)), RunRows(b, read_manifest(b))
    with DiffFile(out, left.manifest.root, right.manifest.root) if out else nullcontext() as file:
        found = _Found(examples)
        by_roots = _equal_by_roots(left.manifest, right.manifest)
        if by_roots:
            found.rows["identical"] = left.manifest.counts.rows
        else:
            for rows in _differing(left, right, found):
                found.add(rows)
                if file:
                    file.write(rows.table)
    why = suspects(left.manifest, right.manifest)
    return Diff(
        a=_side(left),
        b=_side(right),
        by_roots=by_roots,
        rows=found.rows.total(),
        categories=tuple(found.categories(why)),
        diverged_at=_spread(found.positions),
        differences=(*(difference for difference, _ in why.acting), *([why.version] if why.version else [])),
        circumstances=why.circumstances,
        examples=tuple(islice(found.examples(), examples)),
    )


def _equal_by_roots(a: Manifest, b: Manifest) -> bool:
    same_size = a.counts.rows == b.counts.rows == a.plan.num_samples == b.plan.num_samples
    return a.finished and b.finished and a.root == b.root and same_size


def _side(run: RunRows) -> Side:
    m = run.manifest
    return Side(str(run.path), m.counts.rows, m.plan.num_samples, m.root, m.finished, m.batchgen_version)


def _differing(a: RunRows, b: RunRows, found: "_Found") -> Iterator[Sorted]:
    """All rows that differ, block by block; counts the others."""
    pairs = align(a, b)
    found.rows["identical"] = pairs.identical
    size = min(_block_rows(a.manifest), _block_rows(b.manifest))
    for start in range(0, len(pairs.both), size):
        yield sort_pairs(a, b, pairs.both[start : start + size])
    for start in range(0, len(pairs.only_a), size):
        yield sort_alone(a, b, pairs.only_a[start : start + size], "a")
    for start in range(0, len(pairs.only_b), size):
        yield sort_alone(b, a, pairs.only_b[start : start + size], "b")


def _block_rows(m: Manifest) -> int:
    """How many rows take little memory while they are compared."""
    alternatives = any(name == "top_logprobs_ids" for name, _ in m.columns)
    all_bytes = 4 * m.counts.prompt_tokens + (128 if alternatives else 16) * m.counts.output_tokens
    return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * m.counts.rows // max(1, all_bytes)))


class _Found:
    """What blocks of rows add up to."""

    def __init__(self, examples: int) -> None:
        self.rows: Counter[str] = Counter()
        self.positions = np.zeros(0, np.int64)  # how often rows diverge at each token
        self._evidence: Counter[Seen] = Counter()
        self._answers: Counter[tuple[Kind, str]] = Counter()
        self._examples: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        self._most = examples

    def add(self, block: Sorted) -> None:
        """Count the rows, and keep examples of kinds that have too few."""
        kinds = np.asarray(block.table["kind"].to_pylist(), object)
        self.rows.update(kinds.tolist())
        self._evidence += block.evidence
        self._answers += block.answers
        counts = np.bincount(block.table["position"].filter(pa.array(kinds == "diverged")).to_numpy())
        self.positions = np.pad(self.positions, (0, max(0, len(counts) - len(self.positions))))
        self.positions[: len(counts)] += counts
        for kind in set(kinds.tolist()):
            kept = self._examples[kind]
            rows = np.flatnonzero(kinds == kind)[: self._most - len(kept)]
            kept += [block.example(int(row)) for row in rows]

    def categories(self, why: Suspects) -> Iterator[Category]:
        """Those with a row, in the order of KINDS, and what can be said about the cause of each."""
        total = self.rows.total()
        for kind in KINDS:
            if self.rows[kind]:
                seen = {seen: count for seen, count in self._evidence.most_common() if seen.kind == kind}
                answers = {name: count for (of, name), count in self._answers.most_common() if of == kind}
                evidence = {one.name: count for one, count in seen.items()}
                share = self.rows[kind] / total
                yield Category(kind, self.rows[kind], share, _cause(kind, seen, why), evidence, answers)

    def examples(self) -> Iterator[dict[str, Any]]:
        """The first row of each kind, then the second of each, and so on."""
        for turn in range(self._most):
            yield from (kept[turn] for kept in self._examples.values() if turn < len(kept))


def _cause(kind: Kind, seen: Iterable[Seen], why: Suspects) -> Cause:
    if kind == "identical":
        return SAME
    if kind in ("not_made_in_a", "not_made_in_b") or any(one.name == UNKNOWN for one in seen):
        return UNFINISHED
    plain: dict[Kind, Effect] = {"logprobs": "logprobs", "diverged": "tokens", "prompt": "prompt"}
    return why.explain(frozenset({plain[kind]} if kind in plain else (one.effect for one in seen)))


def _spread(positions: NDArray[np.int64]) -> Spread | None:
    """Of the counts of each position."""
    total = int(positions.sum())
    if not total:
        return None
    ends = np.cumsum(positions)
    ranks = [0, (total - 1) // 4, (total - 1) // 2, 3 * (total - 1) // 4, total - 1]
    minimum, lower, median, upper, maximum = (int(np.searchsorted(ends, rank, side="right")) for rank in ranks)
    buckets: list[tuple[int, int, int]] = []
    first, last = 0, 0
    while first < len(positions):
        buckets.append((first, last, int(positions[first : last + 1].sum())))
        first, last = last + 1, max(1, 2 * last + 1)
    return Spread(minimum, lower, median, upper, maximum, tuple(buckets))
