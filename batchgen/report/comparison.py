"""A diff against another run, as the page tells it: the kinds of rows, what explains each, and a look at some rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.report.lengths import Histogram
from batchgen.report.words import brief, counted, number, percent
from batchgen.verify.causes import Difference
from batchgen.verify.diff import Category, Diff, Spread
from batchgen.verify.sorting import Kind

_LABELS: dict[Kind, str] = {
    "identical": "identical",
    "logprobs": "same tokens, other logprob bits",
    "diverged": "other tokens",
    "prompt": "other prompt ids",
    "parameters": "other parameters or seed",
    "error": "an error on one side",
    "other_error": "different errors",
    "columns": "other columns",
    "only_in_a": "only in this run",
    "only_in_b": "only in the other",
    "not_made_in_a": "not made yet in this run",
    "not_made_in_b": "not made yet in the other",
}
_VERDICTS = {
    "same": "",
    "cause": "because of",
    "all_of": "because of all of",
    "one_of": "because of one or more of",
    "unfinished": "a run is unfinished",
    "unexplained": "unexplained: nothing that differs between the manifests can act on these rows",
}
_VALUE = 120  # characters of a value of a spec
_BEFORE, _AFTER = 80, 240  # characters of an answer around the first that differs


@dataclass(frozen=True, slots=True)
class Shown:
    """A category of rows, in words."""

    label: str
    kind: Kind
    rows: int
    share: str
    verdict: str
    unexplained: bool
    differences: tuple[tuple[str, str, str], ...]  # key, here, there
    seen: str


@dataclass(frozen=True, slots=True)
class Example:
    """A row that differs. The texts are cut to where they part: (same before, from there on)."""

    row_key: str
    sample_index: int
    label: str
    tokens: tuple[str, str] | None  # ids around the first that differs, which is in brackets
    texts: tuple[tuple[str, str] | None, tuple[str, str] | None]


def lead(diff: Diff) -> str:
    """The outcome in a sentence."""
    other = f"the run {Path(diff.b.path).name}"
    if diff.by_roots:
        return f"Both runs have the same root: all {counted(diff.rows, 'row')} are those of {other}."
    odd = sum(category.rows for category in diff.categories if category.kind != "identical")
    if not odd:
        order = ", in another order" if diff.a.finished and diff.b.finished else ""
        return f"All {counted(diff.rows, 'row')} are those of {other}, bit for bit{order}."
    return f"{number(odd)} of {counted(diff.rows, 'row')} differ from {other}. Rows are paired by key and sample."


def categories(diff: Diff) -> list[Shown]:
    """Those that hold a row."""
    return [_shown(category, diff) for category in diff.categories]


def examples(diff: Diff) -> list[Example]:
    """Some rows that differ."""
    return [_example(row) for row in diff.examples]


def circumstances(diff: Diff) -> list[tuple[str, str, str]]:
    """What also differs, and changes no bit."""
    return [_difference(found) for found in diff.circumstances]


def parted(spread: Spread) -> Histogram:
    """Rows by the token at which they part."""
    edges = (*(first for first, _, _ in spread.histogram), spread.histogram[-1][1] + 1)
    return Histogram(edges, {"rows": tuple(rows for *_, rows in spread.histogram)})


def _shown(category: Category, diff: Diff) -> Shown:
    cause = category.cause
    return Shown(
        label=_LABELS[category.kind],
        kind=category.kind,
        rows=category.rows,
        share=percent(category.rows, diff.rows),
        verdict=_VERDICTS[cause.verdict],
        unexplained=cause.verdict == "unexplained",
        differences=tuple(_difference(found) for found in cause.differences),
        seen="; ".join(_seen(counts, category.rows) for counts in (category.evidence, category.answers) if counts),
    )


def _seen(counts: Mapping[str, int], rows: int) -> str:
    if list(counts.values()) == [rows]:
        return f"in all: {next(iter(counts))}"
    return ", ".join(f"{number(count)} {name}" for name, count in counts.items())


def _difference(found: Difference) -> tuple[str, str, str]:
    here, there = (_value(value) for value in (found.a, found.b))
    return found.key, here, there


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)
    return brief(text, _VALUE)


def _example(row: Mapping[str, Any]) -> Example:
    label = _LABELS[row["kind"]]
    if row["position"] is not None and row["position"] >= 0:
        label += f", from token {number(row['position'])}"
    elif row["detail"]:
        label += f": {row['detail']}"
    around, texts = row["around"], (row["text_a"], row["text_b"])
    tokens = (_tokens(around, "a"), _tokens(around, "b")) if around else None
    return Example(row["row_key"], row["sample_index"], label, tokens, _parted_texts(*texts))


def _tokens(around: Mapping[str, Any], side: str) -> str:
    ids = around[side]
    if ids is None:
        return "none"
    at = around["position"] - around["first"]
    marked = [*map(str, ids[:at]), f"[{ids[at] if at < len(ids) else 'end'}]", *map(str, ids[at + 1 :])]
    return " ".join(["…", *marked] if around["first"] else marked)


def _parted_texts(a: str | None, b: str | None) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    if a == b and a is not None:
        return (brief(a, _AFTER), ""), (brief(a, _AFTER), "")
    same = 0
    if a is not None and b is not None:
        same = next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    here, there = (None if text is None else _around(text, same) for text in (a, b))
    return here, there


def _around(text: str, same: int) -> tuple[str, str]:
    before, after = text[max(0, same - _BEFORE) : same], text[same : same + _AFTER]
    return ("… " if same > _BEFORE else "") + before, after + (" …" if len(text) > same + _AFTER else "")
