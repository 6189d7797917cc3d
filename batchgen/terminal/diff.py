"""Two runs compared, set for reading: how many rows differ in which way, why, and a look at some of them."""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from batchgen.terminal import OUT, count, facts, number, plain
from batchgen.verify.causes import Cause, Difference
from batchgen.verify.diff import Category, Diff, Side, Spread
from batchgen.verify.sorting import AT_A_DRAW, NOT_IN_JOB, STILL_TO_MAKE

LABELS = {
    "identical": "identical",
    "logprobs": "other logprob bits",
    "diverged": "diverged",
    "prompt": "prompt ids differ",
    "parameters": "parameters differ",
    "error": "error on one side",
    "other_error": "different errors",
    "columns": "other columns",
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "not_made_in_a": "not made yet in A",
    "not_made_in_b": "not made yet in B",
}

_VALUE, _TEXT, _DIGEST = 40, 60, 12  # characters that are shown of a long one
_HEX = re.compile(r"[0-9a-f]{32,}")
_PLAIN = ([NOT_IN_JOB], [STILL_TO_MAKE])  # what the kind itself says


def print_diff(diff: Diff) -> None:
    """The two runs, a line for each kind of difference, where answers part, and examples."""
    OUT.print(facts([("A", diff.a.path), ("", side(diff.a)), ("B", diff.b.path), ("", side(diff.b))]))
    if diff.by_roots:
        OUT.print(plain(f"identical by their roots, {count(diff.rows, 'row')}; `batchgen verify` checks the files"))
        return
    OUT.print()
    OUT.print(categories(diff))
    if diff.diverged_at:
        OUT.print()
        OUT.print(spread(diff.diverged_at))
    if diff.circumstances:
        lines = "\n".join(difference(found) for found in diff.circumstances)
        OUT.print()
        OUT.print(plain("circumstances, which change no bit", "dim"))
        OUT.print(Padding(plain(lines), (0, 0, 0, 2)))
    for row in diff.examples:
        OUT.print()
        OUT.print(example(row))
    OUT.print()
    if diff.identical:
        OUT.print(plain(f"identical: {count(diff.rows, 'row')}, every hash holds{order(diff)}"), soft_wrap=True)
    else:
        odd = sum(category.rows for category in diff.categories if category.kind != "identical")
        OUT.print(Text.assemble(("different", "bold red"), f": {number(odd)} of {count(diff.rows, 'row')}"))


def order(diff: Diff) -> str:
    """Why the roots of two runs may differ whose rows do not."""
    other = diff.a.finished and diff.b.finished and diff.a.root != diff.b.root
    return "; they stand in another order, so the roots differ" if other else ""


def side(run: Side) -> str:
    """120 rows, and the root on a line of its own; or how far it is"""
    if run.finished:
        return f"{count(run.rows, 'row')}\nroot {run.root}"
    return f"unfinished: {number(run.rows)} of {count(run.samples, 'row')}"


def categories(diff: Diff) -> Table:
    """Kind, rows, share, and what can be said about the cause."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", max_width=100)
    for category in diff.categories:
        why = Text("\n").join(reasons(category, diff))
        table.add_row(LABELS[category.kind], number(category.rows), share(category, diff.rows), why)
    return table


def share(category: Category, rows: int) -> str:
    """Percent, never rounded to none or all."""
    tenths = round(1000 * category.rows / rows)
    if category.rows < rows:
        tenths = min(tenths, 999)
    return f"{tenths / 10:.1f}%" if tenths else "<0.1%"


def reasons(category: Category, diff: Diff) -> list[Text]:
    """The cause, then what was seen, each on its line."""
    lines = [plain(line) for line in cause(category, diff)]
    if category.cause.verdict == "unexplained":
        lines[0].stylize("red")
    evidence = {} if list(category.evidence) in _PLAIN else category.evidence
    for title, counts in (("", evidence), ("answers: ", category.answers)):
        each = [name if rows == category.rows else f"{number(rows)} {name}" for name, rows in counts.items()]
        if each:
            lines.append(plain(title + ", ".join(each), "dim"))
    return lines


def cause(category: Category, diff: Diff) -> list[str]:
    """Why these rows differ, as far as the manifests can tell; one difference a line."""
    found: Cause = category.cause
    lines = [difference(each) for each in found.differences]
    match found.verdict:
        case "same":
            return []
        case "cause":
            return [f"cause: {lines[0]}"]
        case "all_of":
            return ["cause:", *(f"  {line}" for line in lines)]
        case "one_of":
            return ["one or more of:", *(f"  {line}" for line in lines)]
        case "unfinished":
            late = [(name, run) for name, run in (("A", diff.a), ("B", diff.b)) if not run.finished]
            return [f"{name} is unfinished: {number(run.rows)} of {count(run.samples, 'row')}" for name, run in late]
    drawn = any(code in name for name in category.evidence for code in AT_A_DRAW)
    bits = drawn or category.kind in ("diverged", "logprobs")
    if diff.differences or not bits:
        return ["unexplained: nothing that differs between the manifests can act on these rows"]
    key = next((row["row_key"] for row in diff.examples if row["kind"] == category.kind), "KEY")
    command = f"batchgen explain {quote(diff.a.path)} {quote(key)} --against {quote(diff.b.path)}"
    return [f"unexplained: equal fingerprints and different bits; `{command}` finds where they part"]


def difference(found: Difference) -> str:
    """sampling.temperature: 0.7 in A, 0.8 in B; long values from shortly before the place where they part"""
    left, right = excerpts(value(found.a), value(found.b), _VALUE)
    return f"{found.key}: {left} in A, {right} in B"


def value(found: Any) -> str:
    """Of a key of a spec or a fingerprint; a digest by its beginning."""
    if found is None:
        return "none"
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _HEX.sub(lambda digest: f"{digest[0][:_DIGEST]}…", text)


def excerpts(a: str, b: str, size: int) -> tuple[str, str]:
    """Two texts cut to `size` characters around the first that differs; line ends are shown as \\n."""
    a, b = (text.replace("\n", "\\n") for text in (a, b))
    if max(len(a), len(b)) <= size:
        return a, b
    parted = next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    start = max(0, parted - size // 3) if a != b else 0
    return cut(a, start, size), cut(b, start, size)


def cut(text: str, start: int, size: int) -> str:
    """`size` characters from `start` on, with a mark where there are more."""
    return ("…" if start else "") + text[start : start + size] + ("…" if len(text) > start + size else "")


def spread(found: Spread) -> RenderableType:
    """At which token answers part: quantiles and a bar for each bucket."""
    title = (
        f"diverged at token {number(found.median)} in the median; half of them from {number(found.lower_quartile)} "
        f"to {number(found.upper_quartile)}, all from {number(found.minimum)} to {number(found.maximum)}"
    )
    most = max(rows for *_, rows in found.histogram)
    names = [
        number(first) if first == last else f"{number(first)} – {number(last)}" for first, last, _ in found.histogram
    ]
    width = max(map(len, names))
    bars = [
        f"  {name:>{width}}  {'█' * max(rows > 0, 30 * rows // most)} {number(rows)}"
        for name, (*_, rows) in zip(names, found.histogram, strict=True)
    ]
    return Group(plain(title), plain("\n".join(bars)))


def example(row: Mapping[str, Any]) -> RenderableType:
    """One row that differs: its tokens around the place, their logprobs there, both texts."""
    label = LABELS[row["kind"]]
    if row["kind"] in ("diverged", "logprobs"):
        label += f" at token {number(row['position'])}"
    elif row["detail"] and [row["detail"]] not in _PLAIN:
        label += f": {row['detail']}"
    title = Text.assemble(plain(row["row_key"], "bold"), f" · sample {row['sample_index']} · ", plain(label))
    pairs: list[tuple[str, object]] = []
    around = row["around"]
    for letter in "ab" if around else "":
        of_prompt, shown = around["of"] != "token_ids", tokens(around, letter)
        if not of_prompt and row[f"logprob_{letter}"] is not None:
            shown.append(f"   logprob {logprob(row[f'logprob_{letter}'])}", "dim")
        pairs.append((f"{'prompt' if of_prompt else 'tokens'} {letter.upper()}", shown))
    pairs += texts(row["text_a"], row["text_b"])
    return Group(Rule(title, align="left", style="dim"), facts(pairs))


def tokens(around: Mapping[str, Any], letter: str) -> Text:
    """… 12 873 [44] 9 102: the token at the place is in brackets."""
    ids: Sequence[int] | None = around[letter]
    if ids is None:
        return Text("none", "dim")
    at = around["position"] - around["first"]
    words = [*map(str, ids[:at]), f"[{ids[at] if at < len(ids) else 'end'}]", *map(str, ids[at + 1 :])]
    shown = Text(" ".join(["…", *words] if around["first"] else words))
    shown.highlight_regex(r"\[.*\]", "bold")
    return shown


def logprob(value: float) -> str:
    """-0.1000000 be800000: as a number, and its float32 bits in hex"""
    return f"{value:.7f} {struct.pack('>f', value).hex()}"


def texts(a: str | None, b: str | None) -> list[tuple[str, Text]]:
    """Both answers, or the one there is."""
    if a is not None and a == b:
        return [("text", answer(excerpts(a, a, _TEXT)[0]))]
    if a is not None and b is not None:
        left, right = excerpts(a, b, _TEXT)
        return [("text A", answer(left)), ("text B", answer(right))]
    return [
        (name, answer(excerpts(text, text, _TEXT)[0]))
        for name, text in (("text A", a), ("text B", b))
        if text is not None
    ]


def answer(text: str) -> Text:
    """It may be of no character."""
    return plain(text) if text else Text("(empty)", "dim")
