"""The rows of the input, in order and by the batch: what a scan found, and reading it again."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785
from numpy.typing import NDArray

from batchgen.errors import InputError, RowError
from batchgen.io.canonical import to_plain
from batchgen.io.columns import Undecodable, cells, chat, without_nulls
from batchgen.io.crossing import Partners
from batchgen.io.own_sampling import sampling_texts
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.rendering import PromptTemplate, Unrendered
from batchgen.io.row_keys import Repeats, content_key
from batchgen.io.schema import OUTPUT_COLUMNS
from batchgen.object_path import StoreError
from batchgen.places import Place, stamp
from batchgen.spec_inputs import Columns, RowKeySpec

_BATCH_ROWS = 1024
SAMPLE_COLUMNS = "row_key", "sample_index"  # what names a sample among rows that batchgen made


class Source(NamedTuple):
    """Where in a run a file lies."""

    root: str  # of the run
    first: int  # of the file's rows, among all of the run


@dataclass(frozen=True, slots=True)
class InputFile:
    """One Parquet file of the input and the rows of it that the job takes."""

    path: Place
    label: str  # the path below the folder that the spec names; the same wherever the data lies
    sha256: str
    stamp: tuple[int, int]  # of the file when it was scanned
    columns: Columns | None
    passthrough: tuple[str, ...]
    count: int  # rows taken
    rows: NDArray[np.int64] | None  # [count] row numbers, ascending; None: the first `count` rows
    template: PromptTemplate | None = None  # in place of columns
    partners: Partners | None = None  # of each row taken, which may be taken more than once
    source: Source | None = None  # the run that made the file's rows, if the job names a run
    is_output: bool = False  # holds rows that batchgen made
    sampling: Mapping[str, str] = field(default_factory=dict)  # parameter -> the column in which a row says it

    def row_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """The row numbers of the `start`th to `stop`th row taken."""
        return np.arange(start, stop) if self.rows is None else self.rows[start:stop]

    @property
    def prompt_columns(self) -> dict[str, str]:
        """prompt, messages, tools or prompt_token_ids -> the name of its column; of a template, those that it reads."""
        if self.template is not None:
            return {name: name for name in self.template.names}
        return self.columns.model_dump(exclude_none=True) if self.columns else {}

    @property
    def carried(self) -> dict[str, str]:
        """Each passthrough column of the output -> the column that it is a copy of."""
        own = OUTPUT_COLUMNS if self.is_output else ()
        return {f"source_{name}" if name in own else name: name for name in self.passthrough}


@dataclass(frozen=True, slots=True)
class Inputs:
    """All rows of a job in order: file after file as the plan sorts them. Row i is the i-th of these."""

    files: tuple[InputFile, ...]
    row_key: RowKeySpec
    passthrough: pa.Schema
    repeats: Repeats  # rows whose key gets a suffix

    @property
    def num_rows(self) -> int:
        return sum(file.count for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over each file's label, bytes and selected rows: equal digests, equal rows in equal order."""
        parts = [list(_identity(list(files))) for _, files in groupby(self.files, _origin)]
        return hashlib.sha256(rfc8785.dumps([part for of_source in parts for part in of_source])).hexdigest()

    def locate(self, row: int) -> str:
        """Where row `row` is, for an error message: PATH row NUMBER."""
        starts = np.cumsum([0, *(file.count for file in self.files)])
        index = bisect_right(starts, row) - 1
        [number] = self.files[index].row_numbers(row - int(starts[index]), row - int(starts[index]) + 1)
        return f"{self.files[index].path} row {number}"


def _origin(file: InputFile) -> tuple[str | None, str | None]:
    return file.source.root if file.source else None, file.partners.sha256 if file.partners else None


def _identity(files: list[InputFile]) -> Iterator[list[Any]]:
    """What stands for files in the digest of the input; how a run is cut into files cannot be seen there."""
    for file in files:
        if file.source is None:
            rows = None if file.rows is None else _digest(file.rows)
            yield [file.label, file.sha256, file.count, rows, *_partners_identity([file])]
    chosen = [(f, f.source.first) for f in files if f.source is not None]
    if chosen:
        numbers = [first + file.row_numbers(0, file.count) for file, first in chosen]
        yield ["run", _origin(files[0])[0], _digest(*numbers), *_partners_identity(files)]


def _partners_identity(files: list[InputFile]) -> list[list[Any]]:
    partners = [file.partners for file in files if file.partners is not None]
    if not partners:
        return []
    return [[partners[0].label, partners[0].sha256, _digest(*(one.index for one in partners))]]


def _digest(*numbers: NDArray[np.int64]) -> str:
    digest = hashlib.sha256()
    for part in numbers:
        digest.update(part.tobytes())
    return digest.hexdigest()


class InputRow(NamedTuple):
    """One row as read. All four prompt fields are None when the cell is null; `error` is set when it cannot be read."""

    row_key: str
    where: str  # "prompts.parquet row 17", counted from 0
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    prompt_token_ids: list[Any] | None = None
    error: RowError | None = None
    sampling: str | None = None  # what it says of its own sampling: row_sampling.sampling_text


_ROLES = InputRow._fields[2:6]
_FAULTY = {Undecodable, Unrendered, RowError}
_Contents = dict[str, list[Any]]  # role -> the value of each row of a block


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of one file that follow each other in the input."""

    file: InputFile
    first: int  # of its rows, in the whole input
    numbers: NDArray[np.int64]  # [rows] in the file
    batch: pa.RecordBatch
    taken: range  # the same rows, among those taken of the file


def read_rows(inputs: Inputs, start: int, stop: int) -> Iterator[InputRow]:
    """Rows `start` to `stop` in order, a record batch at a time.

    Raises InputError for a file that has changed since the scan, or is torn inside.
    """
    for block in read_blocks(inputs, start, stop, _row_columns):
        contents = _contents(block)
        keys = _keys(inputs, block, contents)
        places = [f"{block.file.label} row {number}" for number in block.numbers.tolist()]
        own = sampling_texts(block.batch, block.file.sampling)
        if any(not _FAULTY.isdisjoint(map(type, values)) for values in (*contents.values(), own)):
            yield from map(_row, keys, places, _by_row(contents), own)
        else:
            roles = (contents.get(role, repeat(None)) for role in _ROLES)
            yield from map(InputRow, keys, places, *roles, repeat(None), own)


def _row(key: str, where: str, content: dict[str, Any], own: str | RowError | None) -> InputRow:
    if isinstance(own, RowError):
        return InputRow(key, where, error=own)
    for role, value in content.items():
        if isinstance(value, Unrendered):
            return InputRow(key, where, error=value.error, sampling=own)
        if isinstance(value, Undecodable):
            error = RowError("prompt_encoding", f"{role} holds bytes that are not UTF-8")
            return InputRow(key, where, error=error, sampling=own)
    return InputRow(key, where, **content, sampling=own)


def read_keys(inputs: Inputs) -> Iterator[list[str]]:
    """The row keys of all rows in order, in blocks. Raises InputError for one that is null or not UTF-8."""
    for block in read_blocks(inputs, 0, inputs.num_rows, _key_columns):
        yield _keys(inputs, block, _contents(block) if inputs.row_key.derive == "content_hash" else {})


def read_passthrough(inputs: Inputs, start: int, stop: int) -> pa.Table:
    """The passthrough columns of rows `start` to `stop` in order; null where an input does not name the column."""
    return pa.Table.from_batches(passthrough_batches(inputs, start, stop), inputs.passthrough)


def passthrough_batches(inputs: Inputs, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The same, in pieces: reading on costs less than starting again in the middle of a row group."""
    for block in read_blocks(inputs, start, stop, lambda _, file: list(file.passthrough)):
        carried = block.file.carried
        columns = [
            to_plain(block.batch.column(carried[field.name])).cast(field.type)
            if field.name in carried
            else pa.nulls(len(block.numbers), field.type)
            for field in inputs.passthrough
        ]
        yield pa.record_batch(columns, schema=inputs.passthrough)


@contextmanager
def open_parquet(path: Place) -> Iterator[pq.ParquetFile]:
    """`path` opened to be streamed. Raises InputError for a file that is torn or not Parquet."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_parquet_file(path, buffer_size=1 << 20, pre_buffer=False))
        except StoreError as error:
            raise InputError(f"cannot be read: {error.message}", where=str(path), hint=error.hint) from None
        except PermissionError:
            raise InputError("cannot be read: permission denied", where=str(path)) from None
        except (pa.ArrowException, OSError) as error:
            with path.open("rb") as stream:
                torn = stream.read(4) == b"PAR1"
            fault = "is a truncated or damaged Parquet file" if torn else "is not a Parquet file"
            raise InputError(fault, where=str(path), hint=str(error).partition("\n")[0]) from None
        yield file


def read_blocks(
    inputs: Inputs, start: int, stop: int, columns: Callable[[Inputs, InputFile], list[str]]
) -> Iterator[Block]:
    """Rows `start` to `stop` in order, of each file the `columns` that are asked for."""
    first = 0
    for file in inputs.files:
        low, high = max(start - first, 0), min(stop - first, file.count)
        if low < high:
            names, at = list(dict.fromkeys(columns(inputs, file))), low
            own = [name for name in names if file.partners is None or name not in file.partners.columns.schema.names]
            for numbers, batch in _read_file(file, own, file.row_numbers(low, high)):
                taken = range(at, at + len(numbers))
                if file.partners is not None:
                    batch = file.partners.beside(batch, names, taken)
                yield Block(file, first + at, numbers, batch, taken)
                at = taken.stop
        first += file.count


def _read_file(
    file: InputFile, names: list[str], numbers: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """The rows `numbers` (ascending) of `file`, in pieces, none of which was read from a file that has changed."""
    if not names:  # Arrow does not count the rows of no columns
        for at in range(0, len(numbers), _BATCH_ROWS):
            yield numbers[at : at + _BATCH_ROWS], pa.record_batch({})
        return
    try:
        _check_stamp(file)
        with open_parquet(file.path) as parquet:
            _check_stamp(file)
            base = 0
            for group in range(parquet.num_row_groups):
                num_rows = parquet.metadata.row_group(group).num_rows
                low, high = np.searchsorted(numbers, [base, base + num_rows])
                if low < high:
                    for piece in _read_group(parquet, group, names, numbers[low:high], base):
                        if isinstance(file.path, Path):  # an object that is open stays what it was
                            _check_stamp(file)  # after it was read: someone may write into the file meanwhile
                        yield piece
                base += num_rows
    except StoreError as error:
        raise InputError(f"cannot be read: {error.message}", where=str(file.path), hint=error.hint) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", where=str(file.path)) from None


def _check_stamp(file: InputFile) -> None:
    if stamp(file.path) != file.stamp:
        raise InputError("has changed since the job read it first", where=str(file.path))


def _read_group(
    parquet: pq.ParquetFile, group: int, names: list[str], numbers: NDArray[np.int64], base: int
) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """The rows `numbers` of a row group whose first row has the number `base`."""
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
        low, high = np.searchsorted(numbers, [base, base + len(batch)])
        for at in range(low, high, _BATCH_ROWS):  # more than one where rows are taken more than once
            part = numbers[at : min(at + _BATCH_ROWS, high)]
            whole = len(part) == len(batch) and np.array_equal(part - base, np.arange(len(part)))
            yield part, batch if whole else batch.take(pa.array(part - base))
        base += len(batch)
        if high == len(numbers):
            return


def _key_columns(inputs: Inputs, file: InputFile) -> list[str]:
    if inputs.row_key.derive == "content_hash":
        return list(file.prompt_columns.values())
    if inputs.row_key.derive == "sample":
        return list(SAMPLE_COLUMNS)
    return [inputs.row_key.column] if inputs.row_key.column else []


def _row_columns(inputs: Inputs, file: InputFile) -> list[str]:
    return [*_key_columns(inputs, file), *file.prompt_columns.values(), *file.sampling.values()]


def _contents(block: Block) -> _Contents:
    if (template := block.file.template) is not None:
        return {template.role: template.prompts(block.batch)}
    columns = {role: cells(block.batch.column(name)) for role, name in block.file.prompt_columns.items()}
    for role, clean in (("messages", chat), ("tools", without_nulls)):
        if role in columns:
            columns[role] = [clean(value) if isinstance(value, list) else value for value in columns[role]]
    return columns


def _by_row(contents: _Contents) -> Iterator[dict[str, Any]]:
    return (dict(zip(contents, values, strict=True)) for values in zip(*contents.values(), strict=True))


def _keys(inputs: Inputs, block: Block, contents: _Contents) -> list[str]:
    """The row keys of `block`; `contents` is looked at when they are hashes of it."""
    if inputs.row_key.derive == "content_hash":
        keys = [content_key(content) for content in _by_row(contents)]
    elif inputs.row_key.derive == "file_and_row":
        keys = [f"{block.file.label}:{number}" for number in block.numbers.tolist()]
    elif inputs.row_key.derive == "sample":
        keys = ["/".join(pair) for pair in zip(*(_named_keys(block, name) for name in SAMPLE_COLUMNS), strict=True)]
    else:
        keys = _named_keys(block, inputs.row_key.column or "")
    if block.file.partners is not None and inputs.row_key.derive != "content_hash":
        keys = ["/".join(pair) for pair in zip(keys, block.file.partners.keys_of(block.taken), strict=True)]
    return inputs.repeats.suffix(block.first, keys)


def _named_keys(block: Block, column: str) -> list[str]:
    keys = cells(block.batch.column(column))
    if set(map(type, keys)) == {str}:
        return keys
    for number, key in zip(block.numbers, keys, strict=True):
        if key is None or isinstance(key, Undecodable):
            fault = "is null" if key is None else "holds bytes that are not UTF-8"
            where = f"{block.file.path} row {number}"
            raise InputError(f"the row key {fault}", where=where, hint=f"see column {column!r}")
    return [str(key) for key in keys]
