"""Samples of earlier runs in place of some that are still to be made: of which runs, which ones, what is left to do."""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa

from batchgen.errors import RunError
from batchgen.io.earlier_run import EarlierRun, read_earlier
from batchgen.io.manifest import Manifest, ReuseRecord
from batchgen.io.reader import InputRow
from batchgen.io.run_folder import RunFolder
from batchgen.io.same_job import differences
from batchgen.io.schema import Row, output_schema
from batchgen.places import Place, seen_from
from batchgen.records import Completion, Request, SamplingParams
from batchgen.row_sampling import FORMS
from batchgen.spec import JobSpec
from batchgen.text.asking import RowParams

_ROW_BY_ROW = {"job_fingerprint", "inputs_digest", "params_hash"}  # of a fingerprint: what they cover is compared there
_OF_NO_TOKEN = {"n", "logprobs", "prompt_logprobs"}  # of SamplingParams
_PLACES = ("", "prompt_")  # of the tokens that have logprobs
_LOGPROBS = {f"{place}{name}" for place in _PLACES for name in ("logprobs", "top_logprobs_ids", "top_logprobs_values")}
# Columns: each a field of a Completion as it stands, or made again. Of one that is in neither set nothing is known.
_TAKEN = {"row_key", "sample_index", "seed", "status", "error_code", "error_message", "prompt_token_ids", "text"} | {
    "token_ids",
    "sampling",
    "finish_reason",
    "stop_reason",
    "kept_tokens",
    "reasoning",
    "routed_experts",
    "routed_experts_shape",
    "routed_experts_dtype",
    *_LOGPROBS,
}
_MADE = {"num_prompt_tokens", "num_output_tokens", "params_hash", "row_hash"}
_BLOCK_ROWS = 256  # of the input, whose samples are looked up together

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReusedRow(Row):
    """A sample of an earlier run."""

    run: int  # its place among the runs that the manifest names
    is_scored: bool  # its logprobs were computed here


@dataclass(frozen=True, slots=True)
class Known:
    """A sample that an earlier run has, with the logprobs that are asked for, if it has them."""

    run: int  # its place among the runs that the manifest names
    seed: int
    prompt_token_ids: tuple[int, ...]
    completion: Completion
    lacks_logprobs: bool
    sampling: str | None = None  # what its row said

    def answers(self, request: Request) -> bool:
        """Whether it is what would be made; all else that it depends on is equal for the whole run."""
        of_row = self.seed, self.prompt_token_ids, self.sampling
        return of_row == (request.seed, request.prompt_token_ids, request.sampling)

    def scoring(self, request: Request) -> Request:
        """What asks for the logprobs of its tokens. Raw ones depend on no grammar."""
        params = replace(request.params, structured_outputs=None)
        return replace(request, params=params, continuation=self.completion.token_ids)

    def scored(self, request: Request, answer: Completion) -> Completion:
        """It, with the logprobs of the `answer` to its `scoring`."""
        if answer.finish_reason == "error":
            return answer
        assert answer.token_ids == self.completion.token_ids
        whole = replace(self.completion, **{name: getattr(answer, name) for name in _LOGPROBS})
        return _as_asked(whole, request.params)

    def row(self, completion: Completion) -> ReusedRow:
        """As a row of the run; `completion`: its own, or that with logprobs."""
        own = self.sampling
        return ReusedRow(self.seed, self.prompt_token_ids, completion, self.run, self.lacks_logprobs, sampling=own)


KnownSamples: TypeAlias = Mapping[int, Sequence[Known]]  # of a row, by their index; of each run that has it, in order
_NOTHING: KnownSamples = {}


def fitting(candidates: Sequence[Known], request: Request) -> Known | None:
    """The first that answers `request` and is whole, else the first that answers it."""
    answers = [one for one in candidates if one.answers(request)]
    return min(answers, key=lambda one: one.lacks_logprobs, default=None)


@dataclass(frozen=True, slots=True)
class _Source:
    """A run of which samples may be taken."""

    run: EarlierRun
    number: int
    lacks_logprobs: bool


def check_runs(paths: Iterable[Place], out: Place) -> None:
    """Raise RunError for what cannot be reused, or is the very run to be made: told before a model is fetched."""
    for path in paths:
        read_earlier(path)
        if path == out or (isinstance(path, Path) and isinstance(out, Path) and path.resolve() == out.resolve()):
            hint = "choose another folder with --out; a run that was stopped goes on without --reuse"
            raise RunError("a run cannot be made of its own samples", where=str(path), hint=hint)


class Reuse:
    """The runs of which samples are taken."""

    def __init__(self, params: SamplingParams | None = None, sources: Sequence[_Source] = ()) -> None:
        """Made by `open`; else nothing is known of any sample."""
        self._params, self._sources = params or SamplingParams(), sources
        self._own_params = RowParams(self._params)

    @classmethod
    def open(cls, paths: Iterable[Place], spec: JobSpec, fingerprint: Mapping[str, str], folder: RunFolder) -> Self:
        """Say of each run how much of it may be reused for the run in `folder`, or why nothing, and name it there.

        Raises RunError for what is no run, or contradicts itself.
        """
        sources = []
        for path in paths:
            there, then = read_earlier(path)
            if why := _obstacles(there, then, fingerprint, spec):
                _log.warning("nothing is reused of %s: %s", path, "; ".join(why))
                continue
            lacks = _lacks_logprobs(then, spec)
            number = folder.name_source(ReuseRecord(seen_from(path, folder.path), there.root))
            _log.info("%s: %s", path, _outlook(there, folder.started, lacks))
            taken = _TAKEN if then.own_sampling else _TAKEN - {"sampling"}
            sources.append(_Source(EarlierRun.open(path, there, taken), number, lacks))
        return cls(spec.sampling, sources)

    def beside(self, rows: Iterable[InputRow]) -> Iterator[tuple[InputRow, KnownSamples]]:
        """Each row, with what is known of its samples by their index. Raises RunError when a store fails."""
        if not self._sources:
            yield from zip(rows, repeat(_NOTHING))
            return
        waiting = iter(rows)
        while block := list(islice(waiting, _BLOCK_ROWS)):
            known: dict[str, dict[int, list[Known]]] = {row.row_key: {} for row in block}
            for source in self._sources:
                for key, samples in source.run.samples(list(known)).items():
                    for sample in samples:
                        index = sample["sample_index"]
                        if index < self._params.n and (one := self._known(source, sample)):
                            known[key].setdefault(index, []).append(one)
            yield from ((row, known[row.row_key]) for row in block)

    def _known(self, source: _Source, sample: Mapping[str, Any]) -> Known | None:
        """None for one that failed: it is made again."""
        if sample["status"] != "ok":
            return None
        lacks, done = source.lacks_logprobs, completion_of(sample)
        own = sample.get("sampling")
        done = replace(done, stop_reason=_stop_reason(sample["stop_reason"], self._own_params.of(own)))
        if lacks and not done.token_ids:  # there is nothing to score
            if self._params.prompt_logprobs is not None:
                return None
            done, lacks = replace(done, logprobs=()), False
        done = _as_asked(done, self._params)
        return Known(source.number, sample["seed"], tuple(sample["prompt_token_ids"] or ()), done, lacks, own)


def completion_of(row: Mapping[str, Any]) -> Completion:
    """From a row of the output. Its stop reason is still the text that stands there."""
    values = {field.name: _tuples(row.get(field.name)) for field in fields(Completion)}
    return Completion(**values | {"text": values["text"] or "", "token_ids": values["token_ids"] or ()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _stop_reason(text: str | None, params: SamplingParams) -> int | str | None:
    is_id = text is not None and re.fullmatch(r"token:\d+", text) and text not in params.stop
    return int(text[6:]) if text is not None and is_id else text


def _as_asked(done: Completion, params: SamplingParams) -> Completion:
    """With the logprobs that `params` ask for and no others, as an engine gives them."""
    values: dict[str, Any] = {}
    for place, k in zip(_PLACES, (params.logprobs, params.prompt_logprobs), strict=True):
        own = None if k is None else getattr(done, f"{place}logprobs")
        values[f"{place}logprobs"] = own
        for name in (f"{place}top_logprobs_ids", f"{place}top_logprobs_values"):
            tops = getattr(done, name) or [()] * len(own or ())
            values[name] = (
                None if own is None else tuple(at if at is None else top[:k] for at, top in zip(own, tops, strict=True))
            )
    return replace(done, **values)


def _lacks_logprobs(then: JobSpec, now: JobSpec) -> bool:
    """Whether some are asked for that were not recorded then."""
    if now.sampling.logprobs is not None and then.logprobs_mode != now.logprobs_mode:
        return True
    had, wanted = ((spec.sampling.logprobs, spec.sampling.prompt_logprobs) for spec in (then, now))
    return any(k is not None and (there is None or there < k) for there, k in zip(had, wanted, strict=True))


def _obstacles(there: Manifest, then: JobSpec, fingerprint: Mapping[str, str], now: JobSpec) -> list[str]:
    """Why no sample of that run can be one of this one."""
    before, after = (
        {"seed": spec.resolved()["seed"], "sampling": _of_tokens(spec)}
        | {part: _json(text) for part, text in prints.items() if part not in _ROW_BY_ROW}
        for spec, prints in ((then, there.fingerprint), (now, fingerprint))
    )
    found = [_change(key, _short(a), _short(b)) for key, a, b in differences(before, after)]
    has_form = now.sampling.structured_outputs or now.own_sampling & set(FORMS)
    if has_form and now.logprobs_mode == "processed" and _lacks_logprobs(then, now):
        found.append(
            "logprobs of mode processed are asked for now, and under a grammar they are known only at the draw"
        )
    columns = set(output_schema(pa.schema([]), params=now.sampling, own_sampling=now.own_sampling, metadata={}).names)
    found += [f"the column {name} cannot be taken from another run" for name in sorted(columns - _TAKEN - _MADE)]
    return found


def _of_tokens(spec: JobSpec) -> dict[str, Any]:
    """The sampling that tokens depend on."""
    return {name: value for name, value in spec.resolved()["sampling"].items() if name not in _OF_NO_TOKEN}


def _json(text: str) -> Any:
    """A part of a fingerprint is a digest, or a JSON object."""
    if text.startswith("{"):
        with suppress(ValueError):
            return json.loads(text)
    return text


def _change(key: str, before: str, after: str) -> str:
    return f"{key} {before} -> {after}" if before != after else f"{key} is another"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:12]}…"


def _outlook(there: Manifest, here: Manifest, lacks_logprobs: bool) -> str:
    """What is known before any row is looked at."""
    done, n = sum(shard.stop - shard.start for shard in there.shards), there.plan.n
    most = min(min(done, here.plan.rows) * min(n, here.plan.n), there.counts.rows - there.counts.error)
    text = f"up to {most:,} of {here.plan.num_samples:,} samples are reused: those of the same row key and prompt"
    if here.plan.n > n:
        text += f"; to make: sample {' to '.join(map(str, sorted({n, here.plan.n - 1})))} of each row"
    if lacks_logprobs:
        text += "; their tokens stay, and get the logprobs that are asked for now"
    if not there.finished:
        text += f"; it is not finished, {there.counts.rows:,} of its {there.plan.num_samples:,} samples are there"
    return text
