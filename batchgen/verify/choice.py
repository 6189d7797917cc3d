"""Which rows of a run are made again, and in which order."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Protocol

from batchgen.errors import InputError, nearest
from batchgen.io.manifest import Manifest, ShardRecord
from batchgen.places import Place

LEAST = 16  # samples of a draw whose size is not given
SHARE = Fraction(1, 100)
_HINT_KEYS = 10_000  # of which the nearest is looked for


class Run(Protocol):
    """The part of a ledger that choosing needs."""

    run: Place
    manifest: Manifest

    def samples(self, shard: ShardRecord) -> list[tuple[str, int]]:
        """(row_key, sample_index) of each row of a shard, in order."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Chosen rows by shard. The order in which they are made is shuffled by `seed`, a text."""

    positions: Mapping[int, Sequence[int]]  # shard index -> ascending positions in its file
    seed: str

    def __len__(self) -> int:
        return sum(map(len, self.positions.values()))

    def shuffled(self) -> Iterator[tuple[int, list[int]]]:
        """(shard index, positions): shards in random order, and the rows within each."""
        chance = random.Random(self.seed)
        for shard in chance.sample(list(self.positions), len(self.positions)):
            yield shard, chance.sample(self.positions[shard], len(self.positions[shard]))


def all_rows(manifest: Manifest, seed: int = 0) -> Rows:
    """Every committed row."""
    return Rows({shard.index: range(shard.tally.rows) for shard in manifest.shards}, _seed(manifest, seed))


def drawn_rows(manifest: Manifest, size: int | Fraction | None = None, seed: int = 0) -> Rows:
    """A draw of that many rows, or that part of them; None: one in a hundred, and at least LEAST.

    Equal roots and equal seeds give equal draws.
    """
    total = sum(shard.tally.rows for shard in manifest.shards)
    count = (
        max(ceil(SHARE * total), LEAST) if size is None else ceil(size * total) if isinstance(size, Fraction) else size
    )
    text = _seed(manifest, seed)
    numbers = sorted(random.Random(f"draw {text}").sample(range(total), min(count, total)))
    positions: dict[int, list[int]] = {}
    shards = iter(manifest.shards)
    shard, first = None, 0
    for number in numbers:
        while shard is None or number >= first + shard.tally.rows:
            first += 0 if shard is None else shard.tally.rows
            shard = next(shards)
        positions.setdefault(shard.index, []).append(number - first)
    return Rows(positions, text)


def named_rows(run: Run, keys: Sequence[str], sample_index: int | None = None, seed: int = 0) -> Rows:
    """All samples of the rows with these keys, or the one with that index. Raises InputError for what is not there."""
    n = run.manifest.plan.n
    if sample_index is not None and sample_index >= n:
        raise InputError(f"there is no sample {sample_index}", where=str(run.run), hint=f"each row has {n}, from 0")
    left, positions, known = set(keys), dict[int, list[int]](), list[str]()
    for shard in run.manifest.shards:
        samples = run.samples(shard)
        found = [at for at, (key, index) in enumerate(samples) if key in left and sample_index in (None, index)]
        if found:
            positions[shard.index] = found
        here = {key for key, _ in samples}
        left -= here
        if not left:
            break
        known += list(here)[: _HINT_KEYS - len(known)]
    if left:
        missing = min(left, key=list(keys).index)
        done = "" if run.manifest.finished else " yet"
        raise InputError(f"there is no row {missing!r}{done}", where=str(run.run), hint=_hint(missing, known))
    return Rows(positions, _seed(run.manifest, seed))


def parse_size(text: str) -> int | Fraction:
    """ "20" -> 20, "1%" or "0.5%" -> that part. Raises ValueError for anything else, and for 0 or more than 100%."""
    message = f"{text!r} is neither a count, such as 20, nor a part, such as 5%"
    try:
        size = Fraction(text.removesuffix("%")) / 100 if text.endswith("%") else int(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(message) from None
    if size <= 0 or (isinstance(size, Fraction) and size > 1):
        raise ValueError(message)
    return size


def _hint(missing: str, known: Sequence[str]) -> str:
    hint = nearest(missing, known)
    if hint.startswith("did you mean"):
        return hint
    return f"its rows are named like {known[0]!r}" if known else "it has no row"


def _seed(manifest: Manifest, seed: int) -> str:
    digests = "".join(shard.digest for shard in manifest.shards)
    return f"{manifest.root or hashlib.sha256(digests.encode()).hexdigest()} {seed}"
