"""Scorers of texts: is this answer right? Each looks at one row and at nothing else."""

import importlib
import importlib.util
import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from batchgen.errors import SpecError
from batchgen.spec_evals import EvalSpec

_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one answer. Without a score it counts as wrong, and `error` says why there is none."""

    score: float | None  # 0 .. 1
    value: str | None = None  # what was looked at
    error: str | None = None


Scorer: TypeAlias = Callable[[Mapping[str, Any]], Verdict]  # of a row, by column


def scorer_of(spec: EvalSpec, base_dir: Path) -> Scorer:
    """The scorer of a spec that needs no model; `base_dir` is the folder of the job file.

    Raises SpecError for a Python function that is not there. The scorer itself raises nothing.
    """
    judge = _judge(spec, base_dir)

    def scored(row: Mapping[str, Any]) -> Verdict:
        if row["status"] != "ok":
            return Verdict(None, error=row["error_code"])
        text = extracted(row["text"], spec.extract)
        if text is None:
            return Verdict(0.0)
        try:
            return Verdict(_number(judge(text, row)), text)
        except Exception as error:  # a function of the user's can fail in any way: that is this row's matter alone
            return Verdict(None, text, f"{type(error).__name__}: {error}"[:200])

    return scored


def extracted(text: str, pattern: str | None) -> str | None:
    """The last match of `pattern` in `text`, or its first group; all of the text without a pattern."""
    if pattern is None:
        return text
    matches = list(re.finditer(pattern, text))
    if not matches:
        return None
    found = matches[-1]
    return found[1] if found.re.groups else found[0]


def _judge(spec: EvalSpec, base_dir: Path) -> Callable[[str, Mapping[str, Any]], Any]:
    if spec.scorer == "exact":
        return lambda text, row: _plain(text, spec) == _plain(_answer(spec, row), spec)
    if spec.scorer == "regex":
        assert spec.pattern is not None
        found = re.compile(spec.pattern)
        return lambda text, row: found.search(text) is not None
    if spec.scorer == "json":
        return lambda text, row: same_json(_parsed(text), _json_answer(spec, row))
    assert spec.function is not None
    function = load_function(spec.function, base_dir)
    return lambda text, row: function(text, row)


def _number(found: Any) -> float:
    if isinstance(found, bool):
        return float(found)
    if isinstance(found, int | float) and 0 <= found <= 1:
        return float(found)
    raise ValueError(f"a score is true, false, or a number from 0 to 1, and not {found!r}")


def _answer(spec: EvalSpec, row: Mapping[str, Any]) -> str:
    assert spec.answer is not None
    answer = row[spec.answer]
    if answer is None:
        raise ValueError(f"column {spec.answer} is null")
    return str(answer)


def _plain(text: str, spec: EvalSpec) -> str:
    if "case" in spec.ignore:
        text = text.casefold()
    if "punctuation" in spec.ignore:
        text = text.translate(_PUNCTUATION)
    return " ".join(text.split()) if "space" in spec.ignore else text


def _json_answer(spec: EvalSpec, row: Mapping[str, Any]) -> Any:
    assert spec.answer is not None
    answer = row[spec.answer]
    return json.loads(answer, parse_float=Decimal) if isinstance(answer, str) else answer


_NOT_JSON = object()  # an answer that is none: wrong, and no failure of the scorer


def _parsed(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, RecursionError):
        return _NOT_JSON


def same_json(a: Any, b: Any) -> bool:
    """Whether two JSON values are one: 1 and 1.0 are, 1 and true are not, the order of keys does not count."""
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, int | float | Decimal) and isinstance(b, int | float | Decimal):
        return bool(a == b)
    return isinstance(a, str) and isinstance(b, str) and a == b


def load_function(name: str, base_dir: Path) -> Callable[[str, Mapping[str, Any]], Any]:
    """The function `name`, FILE.py:FUNCTION or package.module:FUNCTION. Raises SpecError, naming what is missing."""
    module_name, _, function_name = name.rpartition(":")
    try:
        if module_name.endswith(".py"):
            module = _module_of(base_dir / module_name)
        else:
            module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except Exception as error:  # whatever its module does when it is imported
        raise SpecError(f"cannot load {name!r}: {type(error).__name__}: {error}", where="evals.function") from error
    if not callable(function):
        raise SpecError(f"{name!r} is no function", where="evals.function")
    loaded: Callable[[str, Mapping[str, Any]], Any] = function
    return loaded


def _module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"batchgen_scorer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
