"""A summary as one HTML file that needs nothing else: no network, no fonts, and no script for anything but comfort."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from batchgen.report import comparison, leads
from batchgen.report.lengths import Histogram
from batchgen.report.summary import Summary
from batchgen.report.svg import bar_chart, bin_name, category_chart, how_it_ended, rate_chart, replicas, share_bar
from batchgen.report.words import brief, clipped, clock, compact, counted, number, percent, shown
from batchgen.verify.diff import Diff

_HERE = Path(__file__).parent
_SECTIONS = (
    ("outcome", "Outcome"),
    ("against", "Against"),
    ("lengths", "Lengths"),
    ("throughput", "Throughput"),
    ("diversity", "Diversity"),
    ("proof", "Probes and self-test"),
    ("rows", "Slow and failed rows"),
    ("samples", "Sample rows"),
    ("identity", "Fingerprints"),
)


def render(run: Summary) -> str:
    """The page. Text of the run, whatever it holds, cannot become markup or turn the text around it."""
    script = _text("page.js")
    page = _environment().from_string(_text("page.html.j2"))
    return page.render(
        run=run,
        against=_against(run.diff) if run.diff else None,
        version=version("batchgen"),
        style=_text("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sections=[section for section in _SECTIONS if section[0] != "against" or run.diff],
        state=leads.state(run),
        tiles=_tiles(run),
        verdicts=leads.verdicts(run),
        leads=leads.leads(run),
        charts=_charts(run),
        outcomes=_outcomes(run),
        replicas=replicas(run.timeline) if run.timeline else [],
        rates=list(_rates(run)),
        pauses=list(_pauses(run)),
        failed_probes=run.timeline.failed_probes if run.timeline else (),
        slowest=run.timeline.slowest if run.timeline else (),
        self_test=list(_flat(_self_test(run))),
        fingerprint=[*_flat(run.identity.fingerprint), ("plan", run.identity.plan_digest)],
        made=list(_made(run)),
        spec=json.dumps(run.identity.spec, indent=2, ensure_ascii=False),
    )


def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    environment.filters |= {
        "number": number,
        "counted": counted,
        "percent": percent,
        "clock": clock,
        "clip": clipped,
        "brief": brief,
        "bins": _bins,
        "ids": lambda ids: " ".join(map(str, ids)),
        "ending": _ending,
    }
    return environment


def _finalize(value: object) -> object:
    """Of every expression in the template, before it is escaped. Markup is our own: charts, style and script."""
    return value if hasattr(value, "__html__") else shown(value)


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _tiles(run: Summary) -> list[dict[str, str]]:
    tally, seconds = run.tally, run.timeline.seconds if run.timeline else 0.0
    made = sum(stretch.output_tokens for stretch in run.timeline.stretches) if run.timeline else 0
    tiles = [
        (number(tally.rows), "samples"),
        (number(tally.output_tokens), "output tokens"),
        (number(tally.prompt_tokens), "prompt tokens"),
    ]
    if seconds:
        tiles += [(clock(seconds), "at work"), (compact(made / seconds), "output tokens/s")]
    if tally.stop + tally.length:
        tiles.append((percent(tally.length, tally.stop + tally.length), "cut at max_tokens"))
    return [{"value": value, "name": name} for value, name in tiles]


def _outcomes(run: Summary) -> list[tuple[str, str, str, str, int]]:
    """(status, finish reason, what it means, class of its colour, count)"""
    return [
        ("ok", "stop", "the model ended it, or a stop string did", "fill-0", run.tally.stop),
        ("ok", "length", f"cut at {run.cut_at}", "fill-1", run.tally.length),
        ("error", "error", "no answer; the codes say why", "fill-2", run.tally.error),
    ]


def _charts(run: Summary) -> dict[str, str]:
    """SVG, or nothing where there is nothing to draw."""
    timeline, diversity, outcomes = run.timeline, run.diversity, _outcomes(run)
    parts = [(reason, count, kind) for _, reason, _, kind, count in outcomes]
    found = {"outcome": share_bar(parts, "Rows by finish reason")}
    found["prompts"] = _bars(run.prompt_lengths.histogram, {"prompts": "prompts"}, "Lengths of the prompts")
    names = {"stop": "ended by themselves", "length": "cut"}
    found["answers"] = _bars(run.output_lengths.histogram, names, "Lengths of the answers")
    found |= dict.fromkeys(("tokens_rate", "samples_rate", "diversity"), "")
    if timeline and replicas(timeline):
        found["tokens_rate"] = rate_chart(timeline, "output_tokens", "tokens/s", "Output tokens a second over time")
        found["samples_rate"] = rate_chart(timeline, "samples", "samples/s", "Samples a second over time")
    if run.diff:
        found |= _diff_charts(run.diff)
    if diversity and any(diversity.distinct):
        titles = [f"{index} of {run.n}: {counted(c, 'prompt')}" for index, c in enumerate(diversity.distinct, 1)]
        found["diversity"] = category_chart(diversity.distinct, titles, "Prompts by number of different answers")
    return found


def _against(diff: Diff) -> dict[str, Any]:
    return {
        "name": Path(diff.b.path).name,
        "lead": comparison.lead(diff),
        "categories": comparison.categories(diff),
        "examples": comparison.examples(diff),
        "circumstances": comparison.circumstances(diff),
    }


def _diff_charts(diff: Diff) -> dict[str, str]:
    same = sum(category.rows for category in diff.categories if category.kind == "identical")
    parts = [("identical", same, "fill-0"), ("different", diff.rows - same, "fill-1")]
    found = {"against": share_bar(parts, "Rows that are the same, and rows that differ")}
    if diff.diverged_at:
        parted = comparison.parted(diff.diverged_at)
        found["parted"] = bar_chart(parted, {"rows": "rows"}, "Rows by the first token that differs", "token")
    return found


def _bars(data: Histogram | None, names: Mapping[str, str], label: str) -> str:
    return bar_chart(data, names, label) if data else ""


def _bins(data: Histogram) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The rows of a histogram's table: its bins that hold something."""
    for index, counts in enumerate(zip(*data.series.values(), strict=True)):
        if any(counts):
            yield bin_name(data.edges, index), counts


def _rates(run: Summary) -> Iterator[Sequence[str]]:
    for index, stretch in enumerate(run.timeline.stretches if run.timeline else (), 1):
        for name, steps in stretch.steps.items():
            for step in steps:
                rate = compact(step.output_tokens / step.seconds) if step.seconds > 0 else "–"
                ends = clock(step.start), clock(step.stop)
                yield str(index), name, *ends, number(step.samples), number(step.output_tokens), rate


def _pauses(run: Summary) -> Iterator[str]:
    stretches = run.timeline.stretches if run.timeline else ()
    for index, (before, after) in enumerate(pairwise(stretches), 1):
        ended = f"Process {index} {how_it_ended(before)} after {clock(before.seconds)}."
        yield f"{ended} The next one began {clock(after.pause)} later."


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested JSON as dotted names and texts; what is null is left out."""
    for name, child in value.items():
        if isinstance(child, Mapping):
            yield from _flat(child, f"{prefix}{name}.")
        elif child is not None:
            yield f"{prefix}{name}", child if isinstance(child, str) else json.dumps(child, ensure_ascii=False)


def _made(run: Summary) -> Iterator[tuple[str, str]]:
    """How the rows were made: by which version, on which machines, with which RunConfig."""
    identity = run.identity
    yield "batchgen", identity.batchgen_version
    yield from _flat({name: value for name, value in identity.engine.items() if name != "self_test"})
    yield from _flat({"rows_per_shard": identity.rows_per_shard} | dict(identity.run_config))
    for host in _different(identity.hosts):
        yield "host", ", ".join(f"{name} {value}" for name, value in _flat(host))


def _self_test(run: Summary) -> Mapping[str, Any]:
    found = run.identity.engine.get("self_test")
    return found if isinstance(found, Mapping) else {}


def _different(hosts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({json.dumps(host, sort_keys=True): host for host in hosts}.values())


def _ending(row: Mapping[str, Any]) -> str:
    """stop at "###", 131 tokens in, 57 tokens out"""
    parts = [row["finish_reason"] + (f" at {row['stop_reason']!r}" if row["stop_reason"] else "")]
    for name, way in (("num_prompt_tokens", "in"), ("num_output_tokens", "out")):
        if row[name] is not None:
            parts.append(f"{counted(row[name], 'token')} {way}")
    return ", ".join(parts)
