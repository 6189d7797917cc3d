"""An OpenAI batch file -> a job file and its input: where lines ask for several settings, rows say what they ask."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import InputError, SpecError
from batchgen.io.own_sampling import own_type
from batchgen.io.writer import write_atomically
from batchgen.pipelines.openai_lines import error_line
from batchgen.pipelines.openai_request import BatchRequest, LineFault, RequestFault, parse_line, parse_request
from batchgen.places import Place

_SHOWN = 10  # faults that a message names
_TYPES = {"prompt": pa.string(), "prompt_token_ids": pa.list_(pa.int32())}
MODEL_COLUMN = "openai_model"  # what the body named: the answer names it too


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job is to be made with, beside what the lines say. `model` is as in a job file, seen from here."""

    model: str
    sha256: str | None = None
    numerics: str = "portable/1"
    max_tokens: int | None = None  # for chats that do not say it


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import wrote."""

    jobs: tuple[str, ...]
    requests: int
    refused: int  # lines of the error file


def import_batch(
    source: Place, job: Path, asked: Asked, *, split: bool = False, errors: Path | None = None
) -> Imported:
    """Write the job file `job` and its input for the requests in `source`. Requests that cannot be asked go to the
    error file `errors`; without one, they refuse all. With `split`, JOB-1, JOB-2, ... where lines ask for several
    settings that no row can say itself.

    Raises InputError: a line that is no request, one custom_id twice, requests that cannot be asked, several settings.
    """
    faults: list[tuple[int, str, str]] = []  # line, custom_id, what is wrong
    settings: dict[str, list[BatchRequest]] = {}
    for number, custom_id, url, body in _lines(source):
        try:
            request = parse_request(custom_id, url, body, asked.max_tokens)
        except RequestFault as fault:
            faults.append((number, custom_id, str(fault)))
        else:
            settings.setdefault(request.setting, []).append(request)
    if faults and errors is None:
        message = "\n".join(f"line {number} ({name}) {text}" for number, name, text in faults[:_SHOWN])
        more = f"{len(faults)} requests cannot be asked; --errors FILE makes error lines of them and goes on"
        raise InputError(message, where=str(source), hint=more)
    if not settings:
        raise InputError("holds no request that can be asked", where=str(source))
    if len(settings) > 1 and not split:
        odd = ", ".join(_differing([requests[0].of_job for requests in settings.values()]))
        what = f"its lines make {len(settings)} jobs: they differ in what a job has once: {odd}"
        raise InputError(what, where=str(source), hint="--split writes a job for each")
    names = [job] if not split or len(settings) == 1 else [_numbered(job, at) for at in range(1, len(settings) + 1)]
    for path, requests in zip(names, settings.values(), strict=True):
        _write_job(path, requests, asked)
    if errors is not None:
        text = "".join(error_line(name, name, 400, "invalid_request", what) for _, name, what in faults)
        write_atomically(errors, text.encode())
    return Imported(tuple(map(str, names)), sum(map(len, settings.values())), len(faults))


def _lines(source: Place) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """(line number from 1, custom_id, url, body) of each line that is not blank."""
    seen: dict[str, int] = {}
    try:
        data = source.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(source)) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", where=str(source)) from None
    for number, line in enumerate(data.split("\n"), start=1):
        if line.strip():
            try:
                custom_id, url, body = parse_line(line)
            except LineFault as fault:
                raise InputError(str(fault), where=f"{source}: line {number}") from None
            if (first := seen.setdefault(custom_id, number)) != number:
                raise InputError(f"has the custom_id {custom_id!r} of line {first}", where=f"{source}: line {number}")
            yield number, custom_id, url, body


def _numbered(job: Path, at: int) -> Path:
    return job.with_name(f"{job.stem}-{at}{job.suffix}")


def _write_job(path: Path, requests: list[BatchRequest], asked: Asked) -> None:
    first, data = requests[0], path.with_suffix(".parquet")
    for file in (path, data):
        if file.exists():
            raise SpecError("is there already", where=str(file), hint="choose another name with --job")
    names = any("name" in message for request in requests if first.kind == "messages" for message in request.prompt)
    fields = [("role", pa.string()), ("content", pa.string()), *([("name", pa.string())] if names else [])]
    type_ = _TYPES.get(first.kind) or pa.list_(pa.struct(fields))
    said = [request.own for request in requests]
    sampling, own = _shared(first.sampling, said)
    table = pa.table(
        {
            "custom_id": [request.custom_id for request in requests],
            first.kind: pa.array([request.prompt for request in requests], type_),
            MODEL_COLUMN: [request.model for request in requests],
            **{name: pa.array([one.get(name) for one in said], own_type(name)) for name in own},
        }
    )
    columns = {"sampling": {name: name for name in own}} if own else {}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomically(data, memoryview(sink.getvalue()))
    here = asked.model if re.match(r"(hf|pypi):", asked.model) else os.path.relpath(asked.model, path.parent)
    document = {
        "version": 1,
        "name": re.sub(r"[^A-Za-z0-9._ -]|^[^A-Za-z0-9]", "x", path.stem),
        "model": {"path": here} | ({"sha256": asked.sha256} if asked.sha256 else {}),
        "numerics": asked.numerics,
        "inputs": [{"path": data.name, "columns": {first.kind: first.kind}, "passthrough": [MODEL_COLUMN]} | columns],
        "row_key": {"column": "custom_id"},
        "sampling": sampling,
        "seed": first.seed,
    }
    write_atomically(path, ("\n".join(_yaml(document)) + "\n").encode())


def _shared(first: Mapping[str, Any], said: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The `sampling` of the job, and the parameters that its rows say themselves, for they differ.

    `first`: that of a request; `said`: what rows can say of it, of each request.
    """
    own = _differing(said)
    sampling = {name: value for name, value in first.items() if name not in own}
    if "json_schema" in own:
        sampling.pop("structured_outputs", None)
    if "max_tokens" in own:  # a job's own parameters must go together, too
        sampling["max_tokens"] = max(one["max_tokens"] for one in said)
    return sampling, own


def _differing(said: list[dict[str, Any]]) -> list[str]:
    return [name for name in dict.fromkeys(chain(*said)) if any(one.get(name) != said[0].get(name) for one in said)]


def _yaml(document: dict[str, Any]) -> Iterator[str]:
    """Lines of YAML, whose values are JSON; keys that are numbers stand bare."""
    yield "# Made from an OpenAI batch file by batchgen import-openai."
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield f"{key}:"
            for name, inner in value.items():
                numbers = isinstance(inner, dict) and name == "logit_bias"
                text = ", ".join(f"{k}: {json.dumps(v)}" for k, v in inner.items()) if numbers else ""
                yield f"  {name}: {{{text}}}" if numbers else f"  {name}: {json.dumps(inner, ensure_ascii=False)}"
        else:
            yield f"{key}: {json.dumps(value, ensure_ascii=False)}"
