"""Rows made again: under which configuration, and whether every bit is the same."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import Manifest
from batchgen.progress import clock
from batchgen.terminal import OUT, count, facts, number, plain
from batchgen.verify.mismatch import Candidate, Draw, Mismatch
from batchgen.verify.replay import Replay

_PARTS = {"weights": "weights_digest", "tokenizer": "tokenizer_digest", "profile": "numerics"}
_PARTS |= {"kernels": "kernel_set", "canary": "canary"}
_COLUMNS: tuple[JustifyMethod, ...] = ("right", "left", "right", "right", "left")
_OPTIONS = {
    "max_num_seqs": "samples at once",
    "max_num_batched_tokens": "tokens a step",
    "prefix_cache": "prefix cache",
}


def print_configs(manifest: Manifest, config: RunConfig, about: Mapping[str, Any]) -> None:
    """How the rows were made, and how they are made now. `about`: what the engine says of itself."""
    then, now = manifest.run_config, config.recorded()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_row("", Text("recorded", "dim"), Text("replay", "dim"))
    for field, name in _OPTIONS.items():
        table.add_row(name, setting(then.get(field)), setting(now[field]))
    ranks = then.get("expert_parallel_size", 1), now["expert_parallel_size"]
    if ranks != (1, 1):
        table.add_row("ranks", *map(setting, ranks))
    table.add_row("order", plain("of the input"), plain("shuffled"))
    for field, name in (("device", "device"), ("threads", "threads"), ("instruction_set", "instructions")):
        table.add_row(name, setting(manifest.engine.get(field)), setting(about.get(field)))
    OUT.print(table)


def setting(value: object) -> Text:
    """64, on, off; a dash for what is not known."""
    return plain({True: "on", False: "off", None: "–"}.get(value, value) if isinstance(value, bool | None) else value)


def print_replay(manifest: Manifest, found: Replay) -> None:
    """Each bad row, what the rows stand for, and the count; the last line is the root of the run, if it has one."""
    for mismatch in found.mismatches:
        OUT.print(mismatch_view(mismatch))
    if found.bad > len(found.mismatches):
        OUT.print(plain(f"and {count(found.bad - len(found.mismatches), 'row')} more; --limit shows them\n"))
    OUT.print()
    OUT.print(
        facts(
            [
                ("rows", coverage(manifest, found)),
                ("made", f"{count(found.output_tokens, 'token')} in {clock(found.seconds)}"),
                *((name, manifest.fingerprint.get(part)) for name, part in _PARTS.items()),
            ]
        )
    )
    OUT.print(verdict(found), soft_wrap=True)
    if manifest.root:
        OUT.print(f"root {manifest.root}", soft_wrap=True)


def coverage(manifest: Manifest, found: Replay) -> str:
    """How many of the run's rows were to be made again, and which of them could not."""
    there = manifest.counts.rows
    text = f"all {number(there)}" if found.chosen == there else f"{number(found.chosen)} of {number(there)}"
    if not manifest.finished:
        text += " that are there yet"
    if errors := found.prompt_errors:
        held = f"{number(errors)} hold prompt errors" if errors > 1 else "1 holds a prompt error"
        text += f"; {held}, which --from-input makes again too"
    return text


def verdict(found: Replay) -> Text:
    """16 of 16 bit-exact"""
    left = f", {number(found.left)} left out" if found.interrupted else ""
    counts = f"{number(found.exact)} of {number(found.compared)} bit-exact{left}"
    if found.bad:
        return Text.assemble(("not ok", "bold red"), f": {counts}")
    return Text(f"stopped: {counts}" if found.interrupted else f"ok: {counts}")


def mismatch_view(mismatch: Mismatch) -> RenderableType:
    """One bad row: where it parts, both sides, and what the sampler compared there."""
    title = Text.assemble(plain(mismatch.row_key, "bold"), f" · sample {mismatch.sample_index}")
    pairs: list[tuple[str, object]] = [("differs", mismatch.place), ("and so do", mismatch.others or None)]
    if mismatch.draw is None:
        pairs += [("stored", value(mismatch.stored)), ("made again", value(mismatch.made))]
    parts: list[RenderableType] = [facts(pairs)]
    if mismatch.draw:
        parts.append(draw_view(mismatch.draw))
    return Group(Rule(title, align="left", style="dim"), Padding(Group(*parts), (0, 0, 1, 0)))


def value(value: object) -> Text:
    """A value of a row; what is not there is no text."""
    return Text("nothing", "dim") if value is None else plain(value)


def draw_view(draw: Draw, names: tuple[str, str] = ("stored", "made again")) -> Table:
    """Both tokens with their logits and scores, and the margin between them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for justify in _COLUMNS:
        table.add_column(justify=justify)
    table.add_row("", *(Text(name, "dim") for name in ("token", "text", "logit", "score", "")))
    for name, candidate in zip(names, (draw.stored, draw.made), strict=True):
        table.add_row(name, *candidate_cells(candidate))
    if draw.margin is not None:
        table.add_row("margin", "", "", "", f"{draw.margin:.9g}", "")
    if draw.drawn not in (draw.made and draw.made.token_id, draw.stored and draw.stored.token_id):
        table.add_row("alone", number(draw.drawn), "", "", "", "is drawn with nobody beside")
    return table


def candidate_cells(candidate: Candidate | None) -> list[Text]:
    """token, text, logit, score, what kept it from being drawn"""
    if candidate is None:
        return [Text("–"), Text("ended before", "dim"), Text(""), Text(""), Text("")]
    if candidate.logit is None:
        return [plain(candidate.token_id), Text("no such token", "dim"), Text(""), Text(""), Text("")]
    out = "banned" if candidate.score is None else "filtered out" if candidate.is_filtered else ""
    score = "" if candidate.score is None else f"{candidate.score:.9g}"
    cells = (candidate.token_id, repr(candidate.text), f"{candidate.logit:.9g}", score)
    return [*map(plain, cells), Text(out, "dim")]
