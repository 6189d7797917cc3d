"""RowRules: what the job alone says of every row of a run. Who forges a row and all its hashes must keep to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from batchgen.errors import RunError, SpecError
from batchgen.io.canonical import columns_json
from batchgen.io.hashing import params_hash
from batchgen.io.manifest import FILE_NAME, Manifest
from batchgen.io.schema import output_schema
from batchgen.seeds import sample_seeds
from batchgen.spec import JobSpec

RULED = ("row_key", "sample_index", "seed", "params_hash")


@dataclass(frozen=True, slots=True)
class RowRules:
    """A file holds the samples 0 .. n-1 of one row key after another, each with its seed and the job's parameters."""

    n: int
    job_seed: int
    params_hash: str

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Of the spec in `manifest`. Raises RunError when that is no spec, or the columns are not those of its rows."""
        spec = job_of(manifest)
        core = columns_json(output_schema(pa.schema([]), params=spec.sampling, metadata={}))
        if [list(column) for column in manifest.columns[: len(core)]] != core:
            raise RunError("its columns are not those of its spec", where=FILE_NAME)
        return cls(spec.sampling.n, spec.seed, params_hash(spec.sampling))

    def broken(self, table: pa.Table, keys: Sequence[str], sizes: Sequence[int]) -> NDArray[np.bool_]:
        """[rows]: whether a row breaks a rule. `table` holds files of `sizes` rows; `keys` are its row keys."""
        starts = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
        place = (np.arange(len(keys)) - starts) % self.n
        broken: NDArray[np.bool_] = _numbers(table["sample_index"], np.int64) != place
        if self.n > 1:
            same = np.array([True, *(a == b for a, b in pairwise(keys))], np.bool_)[: len(keys)]
            broken |= ~same & (place > 0)
        seeds = np.array(sample_seeds(self.job_seed, keys, place.tolist()), np.uint64)
        broken |= _numbers(table["seed"], np.uint64) != seeds
        broken |= ~pc.fill_null(pc.equal(table["params_hash"], self.params_hash), False).to_numpy()
        return broken

    def faults(self, table: pa.Table, keys: Sequence[str]) -> Iterator[tuple[int, str]]:
        """(row, which rule it breaks) of one file; a row that breaks several is named once."""
        columns = [table[name].to_pylist() for name in ("sample_index", "seed")]
        hashes = table["params_hash"].cast(pa.binary()).to_pylist()
        for row, (key, index, seed, params) in enumerate(zip(keys, *columns, hashes, strict=True)):
            place = row % self.n
            [right] = sample_seeds(self.job_seed, [key], [place])
            if index != place or (place and key != keys[row - 1]):
                yield row, f"is where sample {place} of a row must be"
            elif seed != right:
                yield row, f"its seed is {seed}, and the job gives it {right}"
            elif params != self.params_hash.encode():
                yield row, "its params_hash is not that of the job's sampling"


def job_of(manifest: Manifest) -> JobSpec:
    """The job that `manifest` is of. Raises RunError when its spec is none."""
    try:
        return JobSpec.from_resolved(manifest.spec)
    except SpecError as error:
        raise RunError(f"its spec is not that of a job: {error.where}: {error.message}", where=FILE_NAME) from None


def _numbers(column: pa.ChunkedArray, dtype: type) -> NDArray[Any]:
    """A null, which only a forged file holds, becomes the largest number: no rule allows it."""
    if column.null_count:
        column = pc.fill_null(column, np.iinfo(column.type.to_pandas_dtype()).max)
    numbers: NDArray[Any] = column.to_numpy().astype(dtype, copy=False)
    return numbers
