"""YAML 1.2 -> plain JSON values, or an error that names the line or the key.

Refuses what YAML readers commonly let pass: duplicate keys, a switch back to YAML 1.1 (where ``no`` is false and
``010`` is 8), dates, NaN and infinity, keys that are not text, text that has no UTF-8 form.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from batchgen.errors import SpecError
from batchgen.places import Place


class KeyProblem(NamedTuple):
    """What is wrong at a dotted key, and what to do."""

    key: str
    message: str
    hint: str = ""


def read_yaml(path: Place) -> tuple[Any, list[KeyProblem]]:
    """The document in `path`, and every value in it that JSON cannot hold.

    Raises SpecError if the file cannot be read or is not one YAML 1.2 document.
    """
    text = _read_text(path)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("%"):
            raise SpecError("YAML directives are not taken", where=f"{path}: line {number}", hint="remove this line")
    try:
        value = YAML(typ="safe", pure=True).load(text)
        return value, list(_problems(value, ""))
    except DuplicateKeyError as error:
        message = str(error.problem).split(" with value")[0]
        raise SpecError(message, where=_line(path, error), hint="keep one of the two") from None
    except MarkedYAMLError as error:
        raise SpecError(f"not valid YAML: {error.problem}", where=_line(path, error)) from None
    except YAMLError as error:
        raise SpecError(f"not valid YAML: {str(error).splitlines()[0]}", where=str(path)) from None
    except RecursionError:
        raise SpecError("nested too deeply, or a value that holds itself", where=str(path)) from None


def _read_text(path: Place) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError("there is no such file", where=str(path)) from None
    except IsADirectoryError:
        raise SpecError("is a directory, not a file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}", where=str(path)
        ) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _line(path: Place, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"{path}: line {mark.line + 1}" if mark else str(path)


def _problems(value: Any, key: str) -> Iterator[KeyProblem]:
    match value:
        case dict():
            for name, child in value.items():
                if isinstance(name, bool) or not isinstance(name, str | int):
                    yield KeyProblem(key, f"the key {name!r} is not text", "write it in quotes")
                else:
                    yield from _problems(child, f"{key}.{name}" if key else str(name))
            if len({str(name) for name in value}) < len(value):
                yield KeyProblem(key, "two keys that differ only in their quotes")
        case list():
            for index, child in enumerate(value):
                yield from _problems(child, f"{key}[{index}]")
        case str():
            if any("\ud800" <= char <= "\udfff" for char in value):
                yield KeyProblem(key, f"text with a lone surrogate has no UTF-8 form: {value!r}")
        case float():
            if not math.isfinite(value):
                yield KeyProblem(key, f"must be a finite number, got {value}")
        case bool() | int() | None:
            pass
        case _:
            yield KeyProblem(key, f"{value!s} is read as a {type(value).__name__}", "write it in quotes")
