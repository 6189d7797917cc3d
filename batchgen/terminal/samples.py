"""What `batchgen diff` prints of two runs of the lm-evaluation-harness."""

import json

from batchgen.evals.samples import Parted, SamplesDiff, TaskDiff
from batchgen.terminal import OUT, count, number, plain
from batchgen.terminal.diff import excerpts

_RESPONSE = 60  # characters
_WAYS = {"higher": "higher in B", "lower": "lower in B", "other": "another in B"}


def print_samples(found: SamplesDiff, limit: int) -> None:
    """For each task what flipped, and the first items with their first response that differs."""
    for task in found.tasks:
        OUT.print(plain(f"{task.task}: {_summary(task)}"), soft_wrap=True)
        for parted in task.parted[:limit]:
            OUT.print(plain(f"  {_line(parted)}"), soft_wrap=True)
        if len(task.parted) > limit:
            OUT.print(plain(f"  and {number(len(task.parted) - limit)} more"), soft_wrap=True)
    for name in found.alone:
        OUT.print(plain(f"{name}: in one run alone"), soft_wrap=True)


def _summary(found: TaskDiff) -> str:
    if not found.parted:
        said = [f"{count(found.compared, 'item')}, every response and score the same"]
    else:
        said = [f"{number(found.responses)} of {count(found.compared, 'item')} answered otherwise"]
        said += [f"{metric} {_ways(ways)}" for metric, ways in found.flips.items()] or ["no score flipped"]
    if found.prompts:
        said.append(f"{number(found.prompts)} asked otherwise")
    if found.alone:
        said.append(f"{number(found.alone)} in one run alone")
    return "; ".join(said)


def _ways(ways: dict[str, int]) -> str:
    return ", ".join(f"{number(items)} {_WAYS[way]}" for way, items in ways.items())


def _line(found: Parted) -> str:
    parts = [f"{name} {json.dumps(a)} -> {json.dumps(b)}" for name, (a, b) in found.scores.items()]
    if found.response is not None:
        a, b = excerpts(found.a or "", found.b or "", _RESPONSE)
        parts.append(f"response {found.response} '{a}' -> '{b}'")
    return f"item {found.item}: {'; '.join(parts)}"
