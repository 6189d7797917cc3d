"""What `batchgen eval` prints."""

from collections.abc import Sequence

from rich.table import Table

from batchgen.evals.evaluate import Evaluation
from batchgen.evals.flips import Flip, Flips
from batchgen.evals.statistics import Summary
from batchgen.places import Place
from batchgen.terminal import OUT, count, number, plain

_VALUE = 40  # characters of an answer


def print_evaluations(run: Place, root: str | None, found: Sequence[Evaluation]) -> None:
    """A line for each, and what the numbers belong to."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("eval", "scorer", "items", "score", "± items", "± seeds", "further"):
        table.add_column(name, justify="left" if name in ("eval", "scorer", "further") else "right")
    for each in found:
        summary = each.summary
        items = number(summary.items) + (f" x {summary.samples}" if summary.samples > 1 else "")
        spread = (_share(summary.over_items), _share(summary.over_seeds))
        cells = (each.name, each.scorer, items, _share(summary.score), *spread, _further(summary))
        table.add_row(*map(plain, cells))
    OUT.print(table)
    OUT.print(plain(f"items of {run / 'evals'}"), soft_wrap=True)
    OUT.print(plain(f"root {root}"), soft_wrap=True)


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}%"


def _further(summary: Summary) -> str:
    parts = [f"pass@{k} {_share(value)}" for k, value in summary.pass_at.items()]
    if summary.failed:
        parts.append(f"{count(summary.failed, 'sample')} without a score")
    return ", ".join(parts)


def print_flips(found: Flips, limit: int) -> None:
    """How many items changed, and the first of them."""
    head = f"{found.name}: {number(found.better)} better in B, {number(found.worse)} worse, of {number(found.compared)}"
    OUT.print(plain(head + (f"; {number(found.alone)} in one run alone" if found.alone else "")), soft_wrap=True)
    for flip in found.flips[:limit]:
        OUT.print(plain(f"  {_line(flip)}"), soft_wrap=True)
    if len(found.flips) > limit:
        OUT.print(plain(f"  and {number(len(found.flips) - limit)} more"), soft_wrap=True)


def _line(flip: Flip) -> str:
    change = f"{_short(flip.value_a)} ({flip.a:g}) -> {_short(flip.value_b)} ({flip.b:g})"
    where = "" if flip.token is None else f", they part at token {flip.token}"
    return f"row {flip.row_key!r} sample {flip.sample_index}: {change}{where}"


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    text = " ".join(value.split())
    return repr(text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…")
