"""One use of an engine, from its first request to its last completion, step by step."""

import collections.abc
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from batchgen.engine.admission import ModelLimits, check_prompt, check_request
from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.matcher import Matcher
from batchgen.engine.reasoning import split_reasoning
from batchgen.engine.scheduler import Limits, Scheduler
from batchgen.engine.sequence import Sequence
from batchgen.engine.stop import Decoder, Ending, StopChecker
from batchgen.errors import EngineError, RowError
from batchgen.records import Completion, Request, StructuredOutputs

Run: TypeAlias = Callable[[list[Chunk]], list[Sampled]]  # what a runner does in one step


class Detokenizer(Protocol):
    """The part of a tokenizer that the engine needs."""

    def decoder(self, *, skip_special_tokens: bool) -> Decoder:
        """A fresh decoder for one output."""

    def matcher(self, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        """What watches one output of a model with so many ids. Raises ValueError for what cannot be compiled, and
        RowError where no text can begin."""


@dataclass(slots=True)
class EngineStats:
    """What an engine has done since it started. Of no influence on anything."""

    steps: int = 0
    prefill_tokens: int = 0  # computed in chunks that are no decode, recomputation included
    cached_tokens: int = 0  # not computed in a prefill because the cache held them, recomputation included
    output_tokens: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    prefill_seconds: float = 0.0  # steps with any prefill in them
    decode_seconds: float = 0.0  # steps of decodes alone
    step_tokens: int = 0  # computed in all steps, prefill and decode
    idle_steps: int = 0  # of a rank: in which others had tokens and it had none
    busiest_tokens: int = 0  # of a rank: in each step the tokens of the rank that had most, added up


class Generation:
    """The sequences of one use of an engine. Whoever steps it asks `schedule`, then `step`, until nothing is left."""

    def __init__(
        self,
        requests: Iterable[Request | None],
        detokenizer: Detokenizer,
        model: ModelLimits,
        limits: Limits,
        blocks: BlockManager,
        stats: EngineStats,
    ) -> None:
        """A request that is None ends the admissions of a step: there is nothing more for it."""
        self.refused: list[Completion] = []  # requests that cannot be answered, until a step hands them out
        self._detokenizer = detokenizer
        self._model = model
        self._blocks = blocks
        self._stats = stats
        self._scheduler = Scheduler(self._arrivals(requests), blocks, limits)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step. With none, and none refused, every request that was read has its answer.

        Raises EngineError for wrong sampling parameters, naming the field.
        """
        return self._scheduler.schedule()

    def plan(self, chunks: collections.abc.Sequence[Chunk]) -> list[Chunk]:
        """What the step after `chunks`, which runs, will have whatever is drawn. Raises as `schedule`."""
        return self._scheduler.plan(chunks)

    def step(self, chunks: list[Chunk], run: Run) -> list[Completion]:
        """Run what was scheduled, and hand out what ended with it: first the refused."""
        finished = self._commit(chunks, self._timed(chunks, run)) if chunks else []
        answered, self.refused[:] = [*self.refused, *finished], []
        return answered

    def release(self) -> None:
        """Let go of every sequence."""
        self._scheduler.release()

    def close(self) -> None:
        """Let go of every sequence, and count what the scheduler did."""
        self.release()
        self._stats.preemptions += self._scheduler.num_preemptions
        self._stats.cached_tokens += self._scheduler.num_cached_tokens
        self._stats.peak_blocks = self._blocks.peak_used

    def _timed(self, chunks: list[Chunk], run: Run) -> list[Sampled]:
        started = perf_counter()
        sampled = run(chunks)
        seconds = perf_counter() - started
        prefill = sum(chunk.length for chunk in chunks if chunk.length > 1 or not chunk.sequence.num_output)
        stats = self._stats
        stats.steps += 1
        stats.prefill_tokens += prefill
        stats.step_tokens += sum(chunk.length for chunk in chunks)
        if prefill:
            stats.prefill_seconds += seconds
        else:
            stats.decode_seconds += seconds
        return sampled

    def _commit(self, chunks: list[Chunk], sampled: list[Sampled]) -> list[Completion]:
        finished = []
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.stop
        ends = list(itertools.accumulate(chunk.num_rows for chunk in chunks))
        if len(sampled) != ends[-1]:
            raise ValueError(f"the runner answered {len(sampled)} rows of {ends[-1]}")
        for chunk, end in zip(chunks, ends, strict=True):
            if completion := self._take(chunk, sampled[end - chunk.num_rows : end]):
                self._scheduler.finish(chunk.sequence)
                finished.append(completion)
        return finished

    def _take(self, chunk: Chunk, rows: list[Sampled]) -> Completion | None:
        """What was scored and drawn in one chunk; the completion if that ends its sequence."""
        sequence = chunk.sequence
        for row in rows[: chunk.num_scored]:
            if not row.finite:
                return _not_finite(sequence)
            sequence.score(row.logprob, row.top_ids, row.top_values)
        return self._accept(sequence, rows[-1]) if chunk.samples else None

    def _accept(self, sequence: Sequence, draw: Sampled) -> Completion | None:
        """Add one drawn token to its sequence; the completion if that ends it."""
        if not draw.finite:
            return _not_finite(sequence)
        if sequence.request.continuation is not None:
            sequence.score(draw.logprob, draw.top_ids, draw.top_values)
            return _scored(sequence)
        if draw.kept == ():
            return _failed(sequence.request, _too_many_kept(sequence))
        self._stats.output_tokens += 1
        sequence.append(draw.token_id, draw.logprob, draw.top_ids, draw.top_values)
        if draw.kept is not None:
            sequence.kept.append(draw.kept)
        if ending := sequence.stop.push(draw.token_id):
            return self._completed(sequence, ending)
        if sequence.matcher is not None:
            try:
                sequence.matcher.accept(draw.token_id)
            except RowError as error:
                return _failed(sequence.request, error)
        return None

    def _completed(self, sequence: Sequence, ending: Ending) -> Completion:
        reasoning, text = None, ending.text
        if sequence.request.params.reasoning is not None:
            decoder = self._detokenizer.decoder(skip_special_tokens=False)
            reasoning, text = split_reasoning(sequence.request, text, decoder)
        return _completed(sequence, ending._replace(text=text), reasoning)

    def _arrivals(self, requests: Iterable[Request | None]) -> Iterator[Sequence | None]:
        """The requests as sequences; None for one that cannot be answered, whose completion goes to `refused`."""
        arrival = 0
        for request in requests:
            if request is None:
                yield None
                continue
            check_request(request, self._model.vocab_size)
            try:
                check_prompt(request, self._model)
                matcher = self._matcher(request)
            except RowError as error:
                self.refused.append(_failed(request, error))
                yield None
                continue
            decoder = self._detokenizer.decoder(skip_special_tokens=request.params.skip_special_tokens)
            yield Sequence(request, arrival, StopChecker(request.params, self._model.eos_token_ids, decoder), matcher)
            arrival += 1

    def _matcher(self, request: Request) -> Matcher | None:
        outputs = request.params.structured_outputs
        if outputs is None:
            return None
        try:
            return self._detokenizer.matcher(outputs, self._model.vocab_size)
        except ValueError as error:
            where = f"request {request.row_key!r}, sample {request.sample_index}: structured_outputs.{outputs.kind}"
            raise EngineError(str(error), where=where) from error


def _completed(sequence: Sequence, ending: Ending, reasoning: str | None) -> Completion:
    request, kept = sequence.request, ending.num_tokens
    wanted = request.params.logprobs is not None
    return Completion(
        row_key=request.row_key,
        sample_index=request.sample_index,
        token_ids=tuple(sequence.token_ids[sequence.num_prompt :][:kept]),
        text=ending.text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        reasoning=reasoning,
        logprobs=tuple(sequence.logprobs[:kept]) if wanted else None,
        top_logprobs_ids=tuple(sequence.top_ids[:kept]) if wanted else None,
        top_logprobs_values=tuple(sequence.top_values[:kept]) if wanted else None,
        kept_tokens=tuple(sequence.kept[:kept]) if sequence.kept else None,
        **_of_the_prompt(sequence),
        **_routes(sequence, kept),
    )


def _scored(sequence: Sequence) -> Completion:
    request = sequence.request
    assert request.continuation is not None
    return Completion(
        row_key=request.row_key,
        sample_index=request.sample_index,
        token_ids=request.continuation,
        text="",
        finish_reason="length",
        logprobs=tuple(sequence.logprobs),
        top_logprobs_ids=tuple(sequence.top_ids),
        top_logprobs_values=tuple(sequence.top_values),
        **_of_the_prompt(sequence),
        **_routes(sequence, 1),
    )


def _of_the_prompt(sequence: Sequence) -> dict[str, Any]:
    """Fields of a Completion."""
    if sequence.request.params.prompt_logprobs is None:
        return {}
    return {
        "prompt_logprobs": (None, *sequence.prompt_logprobs),
        "prompt_top_logprobs_ids": (None, *sequence.prompt_top_ids),
        "prompt_top_logprobs_values": (None, *sequence.prompt_top_values),
    }


def _routes(sequence: Sequence, num_output: int) -> dict[str, Any]:
    """Fields of a Completion: of all its tokens but the last."""
    if sequence.routes is None:
        return {}
    experts = sequence.routes.first(sequence.num_prompt + num_output - 1)
    return {
        "routed_experts": experts.astype(experts.dtype.newbyteorder("<")).tobytes(),
        "routed_experts_shape": experts.shape,
        "routed_experts_dtype": str(experts.dtype),
    }


def _not_finite(sequence: Sequence) -> Completion:
    """Of its next token, scored or drawn."""
    at = sequence.num_prompt - sequence.num_unscored - len(sequence.request.prompt_token_ids)
    if at < 0:
        position = at + len(sequence.request.prompt_token_ids)
        message = f"logits are not finite at prompt position {position}"
        return _failed(sequence.request, RowError("non_finite_logits", message))
    position = len(sequence.logprobs)
    if sequence.matcher is not None and sequence.request.bad_words_token_ids:
        message = f"logits are not finite, or bad_words ban all that the grammar allows, at output position {position}"
        return _failed(sequence.request, RowError("grammar", message))
    message = f"logits are not finite at output position {position}"
    return _failed(sequence.request, RowError("non_finite_logits", message))


def _too_many_kept(sequence: Sequence) -> RowError:
    most = sequence.request.params.kept_tokens
    place = f"at output position {sequence.num_output}"
    return RowError("kept_tokens", f"the filters kept more than kept_tokens {most} allows {place}; top_k bounds them")


def _failed(request: Request, error: RowError) -> Completion:
    return Completion(
        row_key=request.row_key,
        sample_index=request.sample_index,
        token_ids=(),
        text="",
        finish_reason="error",
        error_code=error.code,
        error_message=str(error),
    )
