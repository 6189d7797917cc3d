"""RowRules: what the job alone says of every row of a run. Who forges a row and all its hashes must keep to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from batchgen.errors import RowError, RunError, SpecError
from batchgen.io.canonical import columns_json
from batchgen.io.hashing import params_hash
from batchgen.io.manifest import FILE_NAME, Manifest
from batchgen.io.schema import output_schema
from batchgen.records import SamplingParams
from batchgen.row_sampling import said_by, with_own
from batchgen.seeds import sample_seeds
from batchgen.spec import JobSpec

RULED = ("row_key", "sample_index", "seed", "params_hash")
_OTHER_PARAMS = "its params_hash is not that of the job's sampling"


@dataclass(frozen=True, slots=True)
class RowRules:
    """A file holds the samples 0 .. n-1 of one row key after another, each with its seed and the job's parameters.

    Where rows say some parameters themselves, the samples of one key say the same, and have the hash of what they say.
    """

    n: int
    job_seed: int
    params_hash: str
    params: SamplingParams  # of the job
    own: frozenset[str] = frozenset()  # the parameters that rows may say themselves

    @property
    def columns(self) -> tuple[str, ...]:
        """That they look at."""
        return (*RULED, "sampling") if self.own else RULED

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Of the spec in `manifest`. Raises RunError when that is no spec, or the columns are not those of its rows."""
        spec = job_of(manifest)
        core = columns_json(
            output_schema(pa.schema([]), params=spec.sampling, own_sampling=spec.own_sampling, metadata={})
        )
        if [list(column) for column in manifest.columns[: len(core)]] != core:
            raise RunError("its columns are not those of its spec", where=FILE_NAME)
        return cls(spec.sampling.n, spec.seed, params_hash(spec.sampling), spec.sampling, spec.own_sampling)

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
        right: pa.Array | str = self.params_hash
        if self.own:
            said = _bytes(table["sampling"])
            right = pa.array(self._hashes(said), pa.string())
            broken |= (place > 0) & np.array([False, *(a != b for a, b in pairwise(said))], np.bool_)[: len(keys)]
        broken |= ~pc.fill_null(pc.equal(table["params_hash"], right), False).to_numpy()
        return broken

    def faults(self, table: pa.Table, keys: Sequence[str]) -> Iterator[tuple[int, str]]:
        """(row, which rule it breaks) of one file; a row that breaks several is named once."""
        columns = [table[name].to_pylist() for name in ("sample_index", "seed")]
        said = _bytes(table["sampling"]) if self.own else [None] * len(keys)
        hashes = zip(_bytes(table["params_hash"]), self._hashes(said), strict=True)
        for row, (key, index, seed, (params, wanted)) in enumerate(zip(keys, *columns, hashes, strict=True)):
            place = row % self.n
            [right] = sample_seeds(self.job_seed, [key], [place])
            if index != place or (place and key != keys[row - 1]):
                yield row, f"is where sample {place} of a row must be"
            elif seed != right:
                yield row, f"its seed is {seed}, and the job gives it {right}"
            elif place and said[row] != said[row - 1]:
                yield row, "says another sampling than the sample before it"
            elif wanted is None:
                yield row, "its sampling is none that its job lets a row say"
            elif params != wanted.encode():
                yield row, _OTHER_PARAMS if said[row] is None else f"{_OTHER_PARAMS} with its own"

    def _hashes(self, said: Sequence[bytes | None]) -> list[str | None]:
        """What params_hash must be for rows that say this; None where no row may say it."""
        known: dict[bytes | None, str | None] = {None: self.params_hash}
        for text in set(said) - {None}:
            assert text is not None
            try:
                names, params = said_by(text.decode()), with_own(self.params, text.decode())
                known[text] = params_hash(params) if self.own.issuperset(names) else None
            except (RowError, UnicodeDecodeError):
                known[text] = None
        return [known[text] for text in said]


def job_of(manifest: Manifest) -> JobSpec:
    """The job that `manifest` is of. Raises RunError when its spec is none."""
    try:
        return JobSpec.from_resolved(manifest.spec)
    except SpecError as error:
        raise RunError(f"its spec is not that of a job: {error.where}: {error.message}", where=FILE_NAME) from None


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    """The text of a forged file may be no UTF-8."""
    values: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return values


def _numbers(column: pa.ChunkedArray, dtype: type) -> NDArray[Any]:
    """A null, which only a forged file holds, becomes the largest number: no rule allows it."""
    if column.null_count:
        column = pc.fill_null(column, np.iinfo(column.type.to_pandas_dtype()).max)
    numbers: NDArray[Any] = column.to_numpy().astype(dtype, copy=False)
    return numbers
