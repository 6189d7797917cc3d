"""JobSpec + Inputs -> Shards: which rows go into which file. Pure, and blind to how and where the job runs."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import rfc8785

from batchgen.io.reader import Inputs
from batchgen.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `start` to `stop` of the input, whose samples are one file of the output."""

    index: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a job, `rows_per_shard` rows each and the last one what is left."""

    job_fingerprint: str
    inputs_digest: str
    num_rows: int
    n: int  # samples a row
    rows_per_shard: int

    @property
    def num_samples(self) -> int:
        return self.num_rows * self.n

    @property
    def num_shards(self) -> int:
        return -(-self.num_rows // self.rows_per_shard)

    @property
    def shards(self) -> Iterator[Shard]:
        """In input order, made as they are asked for."""
        return (self.shard(index) for index in range(self.num_shards))

    def shard(self, index: int) -> Shard:
        """Raises IndexError outside 0 .. num_shards-1."""
        if not 0 <= index < self.num_shards:
            raise IndexError(f"shard {index} of {self.num_shards}")
        start = index * self.rows_per_shard
        return Shard(index, start, min(start + self.rows_per_shard, self.num_rows))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the job, its input and the cut into shards: equal digests, equal files row for row."""
        parts = [self.job_fingerprint, self.inputs_digest, self.num_rows, self.n, self.rows_per_shard]
        return hashlib.sha256(rfc8785.dumps(parts)).hexdigest()


def make_plan(spec: JobSpec, inputs: Inputs, rows_per_shard: int | None = None) -> Plan:
    """The plan of a job. `rows_per_shard` moves rows between files and changes none of them; None chooses it."""
    if rows_per_shard is None:
        rows_per_shard = fitting_rows_per_shard(inputs.num_rows)
    if rows_per_shard < 1:
        raise ValueError(f"rows_per_shard must be at least 1, got {rows_per_shard}")
    return Plan(spec.fingerprint(), inputs.digest, inputs.num_rows, spec.sampling.n, rows_per_shard)


def fitting_rows_per_shard(num_rows: int) -> int:
    """About a thousand shards up to a million rows, and from there on as many shards as there are rows in each.

    The manifest is written again at each commit, and names every shard that is done; but many replicas need many shards
    to end together. At least 64 rows, for a file has its price, and at most 16,384, for a shard is held in memory.
    """
    return min(max(64, min(-(-num_rows // 1024), isqrt(num_rows))), 16_384)
