"""Log-likelihoods of given tokens, by the kernels and to the bits of those that are recorded when tokens are drawn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchgen.engine.engine import Engine
from batchgen.errors import RowError
from batchgen.records import Completion, Request, SamplingParams

_PLAIN = SamplingParams(temperature=0, logprobs=1)


@dataclass(frozen=True, slots=True)
class Score:
    """Of one continuation: a logprob (float32) and a flag for each of its tokens."""

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]  # whether it is the first of the total order: value descending, id ascending

    @property
    def total(self) -> float:
        """The log-likelihood: the exact sum of the logprobs, rounded once."""
        return math.fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding would give the whole continuation."""
        return all(self.greedy)


def score(engine: Engine, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[Score]:
    """Of each (context, continuation), both token ids, the continuation's logprobs given all that is before.

    They are the model's own (raw) where the engine records such, else those of temperature 0. Company, chunks and
    prefix cache cannot be seen. Raises RowError where a pair cannot be scored (no token of context, too long, ids
    outside the vocabulary, logits that are not finite), EngineError for an empty continuation.
    """
    return [score_of(done) for done in complete(engine, requests_of(pairs))]


def requests_of(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], params: SamplingParams = _PLAIN, seed: int = 0
) -> Iterable[Request]:
    """A request for each pair, named by its place. `params` matter where an engine records processed logprobs."""
    for index, (context, continuation) in enumerate(pairs):
        given = tuple(continuation)
        yield Request(str(index), 0, seed, tuple(context), params, continuation=given)


def complete(engine: Engine, requests: Iterable[Request]) -> list[Completion]:
    """The completions of `requests`, whose row keys are their places, in their order."""
    done = sorted(engine.generate(requests), key=lambda completion: int(completion.row_key))
    for completion in done:
        if completion.error_code is not None:
            where = f"pair {completion.row_key}"
            raise RowError(completion.error_code, f"{where}: {completion.error_message}")
    return done


def score_of(completion: Completion) -> Score:
    """Of a completion whose continuation was given, with one alternative or more listed at each place."""
    assert completion.logprobs is not None
    assert completion.top_logprobs_ids is not None
    best = [ids[0] for ids in completion.top_logprobs_ids]
    return Score(completion.logprobs, tuple(a == b for a, b in zip(completion.token_ids, best, strict=True)))
