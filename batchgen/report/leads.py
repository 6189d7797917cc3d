"""What the numbers of a run say, in sentences: its state, the verdicts at the top, and the line above each section."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from batchgen.report.summary import Summary
from batchgen.report.svg import replicas
from batchgen.report.words import clock, compact, counted, number, percent

Kind = Literal["ok", "bad", "warn", "note"]
_MARKS: dict[Kind, str] = {"ok": "✓", "bad": "✗", "warn": "!", "note": "·"}


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement; `mark` says its kind without colour."""

    kind: Kind
    text: str
    detail: str = ""

    @property
    def mark(self) -> str:
        return _MARKS[self.kind]


def state(run: Summary) -> Fact:
    """Finished or not."""
    there = f"{number(run.tally.rows)} of {counted(run.planned, 'sample')}"
    each = f", {run.n} of each of {counted(run.prompts, 'prompt')}" if run.n > 1 else ""
    if run.finished:
        return Fact("ok", "finished", f"{there} are there{each}")
    return Fact("warn", "unfinished", f"{there} are there{each}; the command that began the run goes on with it")


def verdicts(run: Summary) -> list[Fact]:
    """What one wants to know first."""
    return [*_failures(run), *_proof(run), *_sameness(run), _hashes(run)]


def leads(run: Summary) -> dict[str, str]:
    """One text for each section that has one."""
    return {
        "lengths": _lengths(run),
        "throughput": _throughput(run),
        "diversity": _diversity(run),
        "probes": _probes(run),
        "samples": _samples(run),
    }


def _failures(run: Summary) -> Iterator[Fact]:
    if run.tally.error:
        codes = ", ".join(f"{number(found.count)} {code}" for code, found in run.errors.items())
        yield Fact("bad", f"{counted(run.tally.error, 'row')} failed:", codes)
    elif run.tally.rows:
        yield Fact("ok", "No row failed")


def _proof(run: Summary) -> Iterator[Fact]:
    failed = run.evidence
    if failed:
        text = f"{counted(failed, 'probe')} came out otherwise the second time:"
        yield Fact("bad", text, "the run holds the evidence, in evidence/")
    if run.probes:
        yield Fact("ok", f"{number(run.probes)} of {number(run.probes)} probes bit-exact", "in the rows that are there")
    elif not failed:
        yield Fact("note", "No row was probed")
    if run.identity.engine.get("self_test"):
        yield Fact("ok", "The engine proved itself at its start", "on the model's own weights")
    else:
        yield Fact("note", "No self-test is on record")


def _sameness(run: Summary) -> Iterator[Fact]:
    alike = run.diversity.distinct[0] if run.diversity else 0
    if alike and not run.greedy:
        text = f"{counted(alike, 'prompt')} got the same answer {run.n} times"
        yield Fact("warn", text, "such a group has nothing to tell its samples apart by")


def _hashes(run: Summary) -> Fact:
    return Fact("note", "Hashes are not recomputed here:", f"batchgen verify {run.folder} does that")


def _lengths(run: Summary) -> str:
    tally, answers = run.tally, run.output_lengths.spread
    if not answers:
        return "There is no answer." if run.finished else "There is no answer yet."
    ok = tally.stop + tally.length
    half = f"Half of the answers have at most {counted(answers.median, 'token')}."
    if not tally.length:
        return f"{half} None was cut at {run.cut_at}."
    cut = f"{number(tally.length)} of {number(ok)} answers ({percent(tally.length, ok)})"
    return f"{half} {cut} were cut at {run.cut_at}."


def _throughput(run: Summary) -> str:
    timeline = run.timeline
    if timeline is None:
        return "No events tell when these rows were made: the run is of an older version, or was copied without them."
    tokens = sum(stretch.output_tokens for stretch in timeline.stretches)
    names = replicas(timeline)
    if not names:
        return "No process has committed a row yet."
    text = f"{counted(tokens, 'output token')} in {clock(timeline.seconds)}"
    text += f", {compact(tokens / timeline.seconds)} a second" if timeline.seconds else ""
    text += f", by {counted(len(names), 'replica')}" if len(names) > 1 else ""
    if len(timeline.stretches) > 1:
        text += f", in {number(len(timeline.stretches))} processes with {clock(timeline.paused)} between them"
    lost = f" {counted(timeline.unreadable, 'event')} could not be read." if timeline.unreadable else ""
    return f"{text}. Rows are counted when their shard is committed.{lost}"


def _diversity(run: Summary) -> str:
    found = run.diversity
    if found is None:
        return "The job asks for one sample of each prompt."
    groups = sum(found.distinct)
    if not groups:
        return (
            f"Each of {counted(found.left_out, 'prompt')} has a failed sample."
            if found.left_out
            else "None is there yet."
        )
    text = f"{number(found.distinct[-1])} of {counted(groups, 'prompt')} got {run.n} different answers, by token ids"
    text += f"; {number(found.distinct[0])} got the same answer {run.n} times." if found.distinct[0] else "."
    if run.greedy:
        text += " The job is greedy (temperature 0), so all samples of a prompt are the same."
    if found.left_out:
        text += f" {counted(found.left_out, 'prompt')} with failed samples are left out."
    return text


def _probes(run: Summary) -> str:
    if not run.probes:
        return "No row that is there was made a second time."
    share = percent(run.probes, run.tally.rows)
    return (
        f"{counted(run.probes, 'row')} ({share}) were made a second time while the job ran, alone or in other company. "
        "Each came out the same, bit for bit."
    )


def _samples(run: Summary) -> str:
    rows = len(run.samples)
    if not rows:
        return "There is no row yet."
    spread = "All rows" if rows == run.tally.rows else f"{counted(rows, 'row')}, evenly spread over the run"
    ids = any(sample.prompt is None and sample.row["prompt_token_ids"] is not None for sample in run.samples)
    return f"{spread}.{' Prompts are token ids, for the tokenizer was not at hand.' if ids else ''}"
