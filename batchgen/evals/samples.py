"""Per-sample files of the lm-evaluation-harness: which items of two runs part, and at which response?"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.errors import RunError
from batchgen.io.manifest import FILE_NAME
from batchgen.places import Place

_NAME = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+\.jsonl")
_HINT = "--log_samples --output_path FOLDER makes the harness write samples_TASK_TIME.jsonl"


@dataclass(frozen=True, slots=True)
class Parted:
    """One item that has another response or score in B."""

    item: str  # the number of its document, and the filter if it has a name
    response: int | None  # the first that differs; None: they are the same
    a: str | None  # that response; None where there is none
    b: str | None
    scores: dict[str, tuple[Any, Any]]  # metrics that differ


@dataclass(frozen=True, slots=True)
class TaskDiff:
    """One task. Items that only one of the runs has are counted and not compared."""

    task: str
    compared: int
    alone: int
    prompts: int  # items that were asked otherwise
    responses: int  # items that were answered otherwise
    flips: dict[str, dict[str, int]]  # metric -> "higher", "lower" (in B), "other" -> items that flipped so
    parted: tuple[Parted, ...]


@dataclass(frozen=True, slots=True)
class SamplesDiff:
    """Of all tasks that both runs have; `alone` are those of one."""

    tasks: tuple[TaskDiff, ...]
    alone: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """The same tasks and items, and every prompt, response and score of them is the same to the last digit."""
        return not self.alone and not any(each.parted or each.alone or each.prompts for each in self.tasks)


@dataclass(frozen=True, slots=True)
class _Sample:
    prompt: str
    responses: tuple[str, ...]
    scores: dict[str, Any]


def diff_samples(a: Place, b: Place) -> SamplesDiff | None:
    """Compare the samples of two runs of the harness: folders of their files, or two files whatever their names.

    None where neither of the two is such. Raises RunError where one of them is not, or a file is not what it should be.
    """
    left, right = _files(a), _files(b)
    if not left and not right:
        return None
    for there, files in ((a, left), (b, right)):
        if not files:
            raise RunError("holds no samples_*.jsonl, and the other does", where=str(there), hint=_HINT)
    if len(left) == len(right) == 1:
        [(task, file)], [other] = left.items(), right.values()
        return SamplesDiff((_compare(task, _read(file), _read(other)),), ())
    both = [task for task in left if task in right]
    found = tuple(_compare(task, _read(left[task]), _read(right[task])) for task in both)
    return SamplesDiff(found, tuple(sorted(left.keys() ^ right.keys())))


def _files(there: Place) -> dict[str, Path]:
    """The file of each task. Raises RunError for a folder that has two of one task."""
    if not isinstance(there, Path) or (there / FILE_NAME).exists():
        return {}
    files = [there] if there.suffix == ".jsonl" else sorted(there.rglob("samples_*.jsonl"))
    found: dict[str, Path] = {}
    for file in files:
        match = _NAME.fullmatch(file.name)
        task = match[1] if match else file.stem
        if task in found:
            message = f"holds {task} twice: {found[task].relative_to(there)}, {file.relative_to(there)}"
            raise RunError(message, where=str(there), hint="name one of the files, or a folder with one run")
        found[task] = file
    return found


def _read(path: Path) -> dict[tuple[str, str], _Sample]:
    """The samples by item and digest of its document: another document is another item."""
    found: dict[tuple[str, str], _Sample] = {}
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                row = json.loads(line)
                called = str(row["doc_id"]) + ("" if row["filter"] == "none" else f" ({row['filter']})")
                responses = tuple(_text(each) for repeats in row["resps"] for each in repeats)
                sample = _Sample(row["prompt_hash"], responses, {name: row[name] for name in row["metrics"]})
                if found.setdefault((called, row["doc_hash"]), sample) is not sample:
                    raise RunError(f"holds item {called} twice", where=f"{path}:{number}")
    except OSError as error:
        raise RunError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        message = f"is no sample of the lm-evaluation-harness ({type(error).__name__}: {error})"
        raise RunError(message, where=f"{path}:{number}", hint=_HINT) from error
    if not found:
        raise RunError("holds no sample", where=str(path))
    return found


def _text(response: Any) -> str:
    """A text as it is; a log-likelihood and whether it is greedy as they are written."""
    return response if isinstance(response, str) else ", ".join(map(str, response))


def _compare(task: str, a: dict[tuple[str, str], _Sample], b: dict[tuple[str, str], _Sample]) -> TaskDiff:
    both = [name for name in a if name in b]
    parted = [each for name in both if (each := _parted(name[0], a[name], b[name]))]
    flips: dict[str, Counter[str]] = {}
    for each in parted:
        for metric, (left, right) in each.scores.items():
            flips.setdefault(metric, Counter())[_direction(left, right)] += 1
    return TaskDiff(
        task=task,
        compared=len(both),
        alone=len(a) + len(b) - 2 * len(both),
        prompts=sum(a[name].prompt != b[name].prompt for name in both),
        responses=sum(each.response is not None for each in parted),
        flips={metric: dict(sorted(ways.items())) for metric, ways in sorted(flips.items())},
        parted=tuple(parted),
    )


def _parted(item: str, a: _Sample, b: _Sample) -> Parted | None:
    names = sorted(a.scores.keys() | b.scores.keys())
    scores = {name: (a.scores.get(name), b.scores.get(name)) for name in names}
    differing = {name: pair for name, pair in scores.items() if json.dumps(pair[0]) != json.dumps(pair[1])}
    if a.responses == b.responses:
        return Parted(item, None, None, None, differing) if differing else None
    most = max(len(a.responses), len(b.responses))
    left, right = ([*each.responses, *[None] * (most - len(each.responses))] for each in (a, b))
    at = next(i for i, (x, y) in enumerate(zip(left, right, strict=True)) if x != y)
    return Parted(item, at, left[at], right[at], differing)


def _direction(a: Any, b: Any) -> str:
    if not isinstance(a, int | float) or not isinstance(b, int | float) or a == b:
        return "other"
    return "higher" if b > a else "lower"
