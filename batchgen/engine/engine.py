"""Requests in, completions out: schedule, run, commit, until nothing is left."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import cast

from batchgen.engine.admission import ModelLimits
from batchgen.engine.batch import PlannedRunner, Runner
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.generation import Detokenizer, EngineStats, Generation, Run
from batchgen.engine.scheduler import Limits
from batchgen.errors import EngineError
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.records import Completion, Request


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
        self._busy, self._usable = False, True
        self._check_limits()

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        """One completion for each request, in the order in which they end.

        Requests are read as room appears, so they may be endless. One that cannot be answered becomes a completion
        with an error; wrong sampling parameters raise EngineError, naming the field. Closing the iterator early
        frees everything; until it ends or is closed, a second one raises EngineError.
        """
        with self.begin(requests) as generation:
            run = self.run_of(generation)
            while (chunks := generation.schedule()) or generation.refused:
                yield from generation.step(chunks, run)

    @contextmanager
    def begin(self, requests: Iterable[Request | None]) -> Iterator[Generation]:
        """A generation that the caller steps; at the end of the block it is done or released, else all is forgotten.

        Raises EngineError until the one before has ended.
        """
        self._check_idle()
        self._busy = True
        generation = Generation(requests, self._detokenizer, self.model, self.limits, self.blocks, self.stats)
        try:
            yield generation
            self.blocks.check_integrity(())
        except BaseException:  # a block of a step that was never run may count as known
            self.blocks.forget()
            raise
        finally:
            generation.close()
            self._busy = False

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """A block in which the weights are replaced: before it nothing is generated, after it nothing cached.

        Raises EngineError while it generates.
        """
        self._check_idle()
        self._usable = False  # for good, if the block fails: nobody knows what the weights are then
        yield
        self.blocks.forget()
        self._usable = True

    def run_of(self, generation: Generation) -> Run:
        """What runs the steps of `generation`."""
        if self.limits.looks_ahead:
            return partial(cast(PlannedRunner, self.runner).step, plan=generation.plan)
        return self.runner.step

    def _check_idle(self) -> None:
        if not self._usable:
            raise EngineError("the weights of this engine were only partly replaced", hint="start another one")
        if self._busy:
            raise EngineError("this engine is already generating", hint="finish or close the earlier iterator first")

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
