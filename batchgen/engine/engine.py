"""Requests in, completions out: schedule, run, commit, until nothing is left."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from batchgen.engine.admission import ModelLimits, check_prompt, check_request
from batchgen.engine.batch import Chunk, Runner, Sampled
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.scheduler import Limits, Scheduler
from batchgen.engine.sequence import Sequence
from batchgen.engine.stop import Decoder, Ending, StopChecker
from batchgen.errors import EngineError, RowError
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.records import Completion, Request


class Detokenizer(Protocol):
    """The part of a tokenizer that the engine needs."""

    def decoder(self, *, skip_special_tokens: bool) -> Decoder:
        """A fresh decoder for one output."""


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


class Engine:
    """Generates completions whose bytes depend on the request and the model alone.

    `fingerprint` names what else the bytes depend on: digests of weights and tokenizer, the numerics profile, ….
    `about` is JSON: on what it runs and how it started; the bytes depend on none of it.
    """

    def __init__(
        self,
        runner: Runner,
        detokenizer: Detokenizer,
        model: ModelLimits,
        limits: Limits,
        fingerprint: Mapping[str, str],
        about: Mapping[str, object] | None = None,
    ) -> None:
        """Raise EngineError if a limit is too low or the pool cannot hold one sequence of `max_model_len` tokens."""
        self.model, self.limits, self.fingerprint = model, limits, fingerprint
        self.about: Mapping[str, object] = about or {}
        self.stats = EngineStats()
        self.blocks = BlockManager(limits.num_blocks, BLOCK_SIZE, limits.prefix_cache_blocks)
        self.runner = runner
        self._detokenizer = detokenizer
        self._busy = False
        self._check_limits()

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        """One completion for each request, in the order in which they end.

        Requests are read as room appears, so they may be endless. One that cannot be answered becomes a completion
        with an error; wrong sampling parameters raise EngineError, naming the field. Closing the iterator early
        frees everything; until it ends or is closed, a second one raises EngineError.
        """
        if self._busy:
            raise EngineError("this engine is already generating", hint="finish or close the earlier iterator first")
        self._busy = True
        refused: list[Completion] = []
        scheduler = Scheduler(self._arrivals(requests, refused), self.blocks, self.limits)
        try:
            while (chunks := scheduler.schedule()) or refused:
                finished = self._commit(chunks, self._run(chunks), scheduler) if chunks else []
                yield from refused
                refused.clear()
                yield from finished
            self.blocks.check_integrity(())
        except BaseException:  # a block of a step that was never run may count as known
            self.blocks.forget()
            raise
        finally:
            scheduler.release()
            self.stats.preemptions += scheduler.num_preemptions
            self.stats.cached_tokens += scheduler.num_cached_tokens
            self.stats.peak_blocks = self.blocks.peak_used
            self._busy = False

    def _run(self, chunks: list[Chunk]) -> list[Sampled]:
        started = perf_counter()
        sampled = self.runner.step(chunks)
        seconds = perf_counter() - started
        prefill = sum(chunk.length for chunk in chunks if chunk.length > 1 or not chunk.sequence.num_output)
        self.stats.steps += 1
        self.stats.prefill_tokens += prefill
        if prefill:
            self.stats.prefill_seconds += seconds
        else:
            self.stats.decode_seconds += seconds
        return sampled

    def _commit(self, chunks: list[Chunk], sampled: list[Sampled], scheduler: Scheduler) -> list[Completion]:
        finished = []
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.stop
        drawn_by = [chunk.sequence for chunk in chunks if chunk.samples]
        for sequence, draw in zip(drawn_by, sampled, strict=True):
            if completion := self._accept(sequence, draw):
                scheduler.finish(sequence)
                finished.append(completion)
        return finished

    def _accept(self, sequence: Sequence, draw: Sampled) -> Completion | None:
        """Add one drawn token to its sequence; the completion if that ends it."""
        if not draw.finite:
            where = f"output position {sequence.num_output}"
            return _failed(sequence.request, RowError("non_finite_logits", f"logits are not finite at {where}"))
        self.stats.output_tokens += 1
        sequence.append(draw.token_id, draw.logprob, draw.top_ids, draw.top_values)
        ending = sequence.stop.push(draw.token_id)
        return _completed(sequence, ending) if ending else None

    def _arrivals(self, requests: Iterable[Request], refused: list[Completion]) -> Iterator[Sequence | None]:
        """The requests as sequences; None for one that cannot be answered, whose completion goes to `refused`."""
        for arrival, request in enumerate(requests):
            check_request(request, self.model.vocab_size)
            try:
                check_prompt(request, self.model)
            except RowError as error:
                refused.append(_failed(request, error))
                yield None
                continue
            decoder = self._detokenizer.decoder(skip_special_tokens=request.params.skip_special_tokens)
            yield Sequence(request, arrival, StopChecker(request.params, self.model.eos_token_ids, decoder))

    def _check_limits(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_blocks"):
            if (value := getattr(self.limits, name)) < 1:
                raise EngineError(f"must be at least 1, got {value}", where=name)
        if (kept := self.limits.prefix_cache_blocks) < 0:
            raise EngineError(f"must not be negative, got {kept}", where="prefix_cache_blocks")
        needed = self.blocks.blocks_for(self.model.max_model_len)
        if needed > self.limits.num_blocks:
            raise EngineError(
                f"the KV cache has {self.limits.num_blocks} blocks; one sequence of max_model_len "
                f"{self.model.max_model_len} tokens needs {needed}",
                hint="give the KV cache more memory, or lower model.max_model_len in the job",
            )
        foreign = sorted(i for i in self.model.eos_token_ids if not 0 <= i < self.model.vocab_size)
        if foreign:
            raise EngineError(f"end-of-sequence ids {foreign} lie outside the vocabulary of {self.model.vocab_size}")


def _completed(sequence: Sequence, ending: Ending) -> Completion:
    request, kept = sequence.request, ending.num_tokens
    wanted = request.params.logprobs is not None
    return Completion(
        row_key=request.row_key,
        sample_index=request.sample_index,
        token_ids=tuple(sequence.token_ids[sequence.num_prompt :][:kept]),
        text=ending.text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        logprobs=tuple(sequence.logprobs[:kept]) if wanted else None,
        top_logprobs_ids=tuple(sequence.top_ids[:kept]) if wanted else None,
        top_logprobs_values=tuple(sequence.top_values[:kept]) if wanted else None,
    )


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
