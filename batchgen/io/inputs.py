"""The first look at the input: which files, which rows of them, and whether all of it can be read."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from glob import glob, has_magic
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from batchgen.errors import InputError, nearest
from batchgen.io.canonical import plain_type, type_json
from batchgen.io.columns import check_castable, check_type, has_text
from batchgen.io.crossing import Partners, draw, pick, second_table
from batchgen.io.own_sampling import check_own_type
from batchgen.io.reader import SAMPLE_COLUMNS, InputFile, Inputs, Source, open_parquet, read_blocks, read_keys
from batchgen.io.rendering import PromptTemplate
from batchgen.io.row_keys import NO_REPEATS, find_repeats, hash_keys
from batchgen.io.schema import OUTPUT_COLUMNS, output_schema
from batchgen.io.selection import RowSelector
from batchgen.io.source_run import source_files
from batchgen.object_path import ObjectPath, StoreError
from batchgen.places import Place, join, stamp
from batchgen.spec import JobSpec
from batchgen.spec_inputs import CrossSpec, InputSpec, RowKeySpec

_PIECE_BYTES = 8 << 20  # that are hashed at once: of an object, those of one request


def scan_inputs(spec: JobSpec, base_dir: Place) -> Inputs:
    """What the job reads: files in order with their digests, the rows taken, the passthrough schema.

    Reads every file once for its digest, then the key and passthrough columns of the rows taken. Paths may be URLs, and
    are relative to `base_dir`, the folder of the job file. Holds 8 bytes a row where there is a condition; needs
    up to 40 more a row while it looks for duplicate keys. Raises InputError.
    """
    files: list[InputFile] = []
    schemas: list[pa.Schema] = []
    for index, entry in enumerate(spec.inputs):
        where = f"inputs[{index}]"
        found = list(_scan_entry(entry, where, spec.row_key, base_dir))
        if entry.cross or entry.sample:
            found = _arranged(found, entry, where)
        files += [file for file, _ in found]
        schemas += [schema for _, schema in found]
    inputs = Inputs(tuple(files), spec.row_key, _passthrough_schema(files, schemas), NO_REPEATS)
    if not inputs.num_rows:
        raise InputError(
            "no row is left to generate for", where="inputs", hint="see where, and whether files are empty"
        )
    # Refuses names and types that the output cannot hold.
    output_schema(inputs.passthrough, params=spec.sampling, own_sampling=spec.own_sampling, metadata={})
    _check_text(inputs)
    return _with_unique_keys(inputs)


def _scan_entry(
    entry: InputSpec, where: str, row_key: RowKeySpec, base_dir: Place
) -> Iterator[tuple[InputFile, pa.Schema]]:
    """Each file of one entry of the spec's inputs, until its limit is reached."""
    partners = _second_table(entry.cross, where, base_dir) if entry.cross else None
    template = PromptTemplate.of(entry)
    left, found = entry.limit, entry_files(entry, base_dir, where)
    with _selecting([file.path for file in found], entry, where) as selector:
        for path, label, digest, source in found:
            seen = stamp(path)
            with open_parquet(path) as parquet:
                schema, count = parquet.schema_arrow, parquet.metadata.num_rows
            both = _with_partners(schema, partners, path)
            is_output = any(key.startswith(b"batchgen.") for key in schema.metadata or ())
            _check_names(entry, where, is_output)
            _check_columns(entry, row_key, both, path)
            rows = selector.rows(path, schema.names) if selector else None
            count = min(count if rows is None else len(rows), count if left is None else left)
            rows = None if rows is None else rows[:count].copy()
            yield (
                InputFile(
                    path=path,
                    label=label,
                    sha256=digest or file_sha256(path),
                    stamp=seen,
                    columns=entry.columns,
                    passthrough=entry.passthrough,
                    count=count,
                    rows=rows,
                    template=template,
                    partners=partners,
                    source=source,
                    is_output=is_output,
                    sampling=entry.sampling or {},
                ),
                both,
            )
            if left is not None:
                left -= count
                if not left:
                    return


def _check_names(entry: InputSpec, where: str, is_output: bool) -> None:
    """Rows that batchgen made bring columns with the names of the output's own: they are carried as source_NAME."""
    if not is_output and (taken := [name for name in entry.passthrough if name in OUTPUT_COLUMNS]):
        message = f"{taken[0]!r} is the name of an output column"
        raise InputError(message, where=f"{where}.passthrough", hint="rename it in the input, or leave it out")
    if twice := [name for name in entry.passthrough if is_output and f"source_{name}" in entry.passthrough]:
        message = f"{twice[0]!r} is carried as source_{twice[0]}, and so is another column"
        raise InputError(message, where=f"{where}.passthrough", hint="leave one of the two out")


def _second_table(cross: CrossSpec, where: str, base_dir: Place) -> Partners:
    """The table of `cross`, which goes with no row yet."""
    [(path, label), *more] = input_files(cross.path, base_dir, f"{where}.cross")
    if more:
        raise InputError(f"{cross.path!r} is more than one file", where=f"{where}.cross.path")
    with open_parquet(path) as parquet:
        if cross.key not in parquet.schema_arrow.names:
            hint = nearest(cross.key, parquet.schema_arrow.names)
            raise InputError(f"no column {cross.key!r}", where=str(path), hint=hint)
        columns, keys = second_table(parquet.read(), cross.key, cross.prefix, str(path))
    return Partners(label, file_sha256(path), columns, keys, np.empty(0, np.int64))


def _with_partners(schema: pa.Schema, partners: Partners | None, path: Place) -> pa.Schema:
    """The columns of the file `path` and those of its second table. Raises InputError for a name that both have."""
    for field in partners.columns.schema if partners else ():
        if field.name in schema.names:
            message = f"has a column {field.name!r}, and so has the second table"
            raise InputError(message, where=str(path), hint="set cross.prefix: it goes before the second table's names")
        schema = schema.append(field)
    return schema


def _arranged(
    found: list[tuple[InputFile, pa.Schema]], entry: InputSpec, where: str
) -> list[tuple[InputFile, pa.Schema]]:
    """The files of an entry with the rows that its sample and its second table leave, in order."""
    partners = next((len(file.partners.keys) for file, _ in found if file.partners), 1)
    counts = [file.count for file, _ in found]
    total, drawn = sum(counts) * partners, None
    if entry.sample is not None:
        if entry.sample.rows > total:
            noun = "pairs" if entry.cross else "rows"
            message = f"asks for {entry.sample.rows} of {total} {noun}"
            raise InputError(message, where=f"{where}.sample.rows", hint="ask for fewer, or leave sample out")
        drawn = draw(total, entry.sample.rows, entry.sample.seed)
    arranged = []
    for (file, schema), (rows, index) in zip(found, pick(counts, partners, drawn), strict=True):
        beside = replace(file.partners, index=index) if file.partners else None
        numbers = file.row_numbers(0, file.count)[rows]
        arranged.append((replace(file, rows=numbers, count=len(numbers), partners=beside), schema))
    return arranged


def _selecting(paths: list[Place], entry: InputSpec, where: str) -> AbstractContextManager[RowSelector | None]:
    return nullcontext() if entry.where is None else RowSelector(paths, entry.where, f"{where}.where")


class EntryFile(NamedTuple):
    """A file of an entry. `digest` is of what its rows hold, where that is known already."""

    path: Place
    label: str
    digest: str | None
    source: Source | None


def entry_files(entry: InputSpec, base_dir: Place, where: str) -> list[EntryFile]:
    """The files of one entry of the spec's inputs, in order; those of a run only when all its hashes hold.

    Raises InputError for files that are not there, and for a run that is not the one that it was.
    """
    if entry.run is None:
        return [EntryFile(path, label, None, None) for path, label in input_files(entry.path or "", base_dir, where)]
    try:
        run = join(base_dir, entry.run)
    except ValueError as error:
        raise InputError(str(error), where=f"{where}.run") from None
    root, files = source_files(run, entry.root, f"{where}.run")
    return [EntryFile(file.path, file.label, file.digest, Source(root, file.first)) for file in files]


def input_files(pattern: str, base_dir: Place, where: str) -> list[tuple[Place, str]]:
    """(path, label) of each file that `pattern` names, in order; a label is the path below the pattern's fixed part."""
    try:
        whole = join(base_dir, pattern)
    except ValueError as error:
        raise InputError(str(error), where=f"{where}.path") from None
    try:
        if not has_magic(pattern) or whole.exists():
            return [(_checked(whole), whole.name)]
        root, labels = _matching(whole)
    except StoreError as error:
        raise InputError(error.message, where=error.where, hint=error.hint) from None
    if not labels:
        raise InputError(f"no file matches {pattern!r}", where=f"{where}.path", hint=f"looked in {root.resolve()}")
    found = [(root / label, label) for label in sorted(labels, key=natural_order)]
    return [(_checked(path) if isinstance(path, Path) else path, label) for path, label in found]


def _matching(whole: Place) -> tuple[Place, list[str]]:
    """The folder in which a pattern's first `*` or the like stands, and what matches below it."""
    if isinstance(whole, ObjectPath):
        parts = whole.key.split("/")
        fixed = next(index for index, part in enumerate(parts) if has_magic(part))
        bucket = ObjectPath(whole.store) / "/".join(parts[:fixed])
        return bucket, bucket.matching("/".join(parts[fixed:]))
    fixed = next(index for index, part in enumerate(whole.parts) if has_magic(part))
    root = Path(*whole.parts[:fixed])
    found = glob(str(whole), recursive=True)
    return root, [Path(path).relative_to(root).as_posix() for path in found]


def natural_order(label: str) -> tuple[list[tuple[int, str]], str]:
    """A sort key by which part-2 comes before part-10; the label itself decides between 01 and 1."""
    parts = re.split(r"([0-9]+)", label)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)], label


def _checked(path: Place) -> Place:
    if path.is_dir():
        raise InputError("is a directory, not a file", where=str(path), hint="name its files: DIRECTORY/*.parquet")
    if not path.exists():
        raise InputError("there is no such file", where=str(path))
    return path


def file_sha256(path: Place) -> str:
    """Hex, of the bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _check_columns(entry: InputSpec, row_key: RowKeySpec, schema: pa.Schema, path: Place) -> None:
    roles = entry.columns.model_dump(exclude_none=True) if entry.columns else {}
    if row_key.column is not None:
        roles["row_key"] = row_key.column
    template, own = PromptTemplate.of(entry), entry.sampling or {}
    derived = SAMPLE_COLUMNS if row_key.derive == "sample" else ()
    read = (*roles.values(), *own.values(), *derived, *(template.names if template else ()))
    for name in (*read, *entry.passthrough):
        if name not in schema.names:
            raise InputError(f"no column {name!r}", where=str(path), hint=nearest(name, schema.names))
        if schema.names.count(name) > 1:
            raise InputError(f"has two columns named {name!r}", where=str(path))
    for role, name in roles.items():
        check_type(role, schema.field(name).type, f"{path}: {name}")
    for name in derived:
        check_type("row_key", schema.field(name).type, f"{path}: {name}")
    for parameter, name in own.items():
        check_own_type(parameter, schema.field(name).type, f"{path}: {name}")
    if template:
        template.check_types(schema, str(path))


def _passthrough_schema(files: list[InputFile], schemas: list[pa.Schema]) -> pa.Schema:
    """The passthrough columns of all files in order of appearance, each of one type that all files agree on."""
    found: dict[str, tuple[pa.DataType, Place]] = {}
    for file, schema in zip(files, schemas, strict=True):
        for name, column in file.carried.items():
            where = f"{file.path}: {column}"
            check_castable(schema.field(column).type, where)
            type_ = plain_type(schema.field(column).type, where)
            known, path = found.setdefault(name, (type_, file.path))
            if pa.types.is_null(known):
                found[name] = (type_, file.path)
            elif not pa.types.is_null(type_) and type_json(type_) != type_json(known):
                raise InputError(f"is {type_} here and {known} in {path}", where=where, hint="cast one of the two")
    return pa.schema([pa.field(name, type_) for name, (type_, _) in found.items()])


def _check_text(inputs: Inputs) -> None:
    """Refuse passthrough text that is not UTF-8: Arrow would carry it into files that other readers cannot open."""
    texts = {field.name for field in inputs.passthrough if has_text(field.type)}
    for block in read_blocks(
        inputs, 0, inputs.num_rows, lambda _, file: [column for name, column in file.carried.items() if name in texts]
    ):
        for name in block.batch.schema.names:
            column = block.batch.column(name)
            if not _is_valid(column):
                bad = next(at for at in range(len(column)) if not _is_valid(column.take(pa.array([at]))))
                where = f"{block.file.path} row {block.numbers[bad]}"
                raise InputError(f"column {name!r} holds bytes that are not UTF-8", where=where)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _with_unique_keys(inputs: Inputs) -> Inputs:
    hashes = hash_keys(read_keys(inputs), inputs.num_rows)
    repeats = find_repeats(hashes)
    suffixed = len(repeats.rows) > 0 and inputs.row_key.on_duplicate == "suffix"
    if suffixed:
        del hashes
        inputs = replace(inputs, repeats=repeats)
        hashes = hash_keys(read_keys(inputs), inputs.num_rows)
        repeats = find_repeats(hashes)
    if len(repeats.rows):
        row = int(repeats.rows[0])
        earlier = int((hashes == hashes[row]).all(axis=1).argmax())
        key = next(islice(chain.from_iterable(read_keys(inputs)), row, None))
        message = f"has the row key {key!r} of {inputs.locate(earlier)}"
        hint = f"rows that repeat a key: {len(repeats.rows)}; row_key.on_duplicate: suffix tells them apart"
        if suffixed:
            hint = "a suffix made the key of one the key of the other: rename one of them in the data"
        raise InputError(message, where=inputs.locate(row), hint=hint)
    return inputs
