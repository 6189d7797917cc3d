"""Rows of logits whose next token is given: what the sampler would have recorded, had it drawn that token."""

import collections.abc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen import kernels
from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.sampling import greedy_rows, sample_rows
from batchgen.engine.sequence import Sequence
from batchgen.kernels.reference.sampler import adjust
from batchgen.kernels.sample_rows import Draws, SampleRows


class _Given(NamedTuple):
    """One row, and the token that follows it."""

    row: int
    sequence: Sequence
    place: int  # of the token, after the prompt; below 0: in it

    @property
    def token_id(self) -> int:
        request = self.sequence.request
        return request.prompt_token_ids[self.place] if self.place < 0 else (request.continuation or ())[self.place]

    @property
    def top_logprobs(self) -> int:
        """How many alternatives are listed."""
        params = self.sequence.request.params
        return (params.prompt_logprobs if self.place < 0 else params.logprobs) or 0

    def as_of(self) -> Sequence:
        """The sequence as it was before this token, had the ones before been drawn."""
        request = self.sequence.request
        output = (request.continuation or ())[: self.place]
        made = Sequence(replace(request, continuation=None), self.sequence.arrival, self.sequence.stop)
        made.token_ids += output
        if request.params.presence_penalty or request.params.frequency_penalty:
            made.output_counts = dict(Counter(output))
        return made


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one step: those that draw, and those whose token is given."""

    size: int
    given: list[_Given]

    def drawn(self, logits: torch.Tensor) -> torch.Tensor:
        """Those of the rows that draw.  logits float32 [size, V]; a copy only where some are given."""
        if not self.given:
            return logits
        is_drawn = np.ones(self.size, np.bool_)
        is_drawn[[each.row for each in self.given]] = False
        return _picked(logits, np.flatnonzero(is_drawn))

    def scored(self, logits: torch.Tensor, *, processed: bool) -> list[Sampled]:
        """One for each given token; `processed` says which logprobs."""
        if not self.given:
            return []
        by_row = {each.row: answer for each, answer in self._scored(logits, processed)}
        return [by_row[each.row] for each in self.given]

    def _scored(self, logits: torch.Tensor, processed: bool) -> Iterator[tuple[_Given, Sampled]]:
        """Logprobs of the prompt are raw in any case: nothing was drawn there."""
        for as_drawn in (False, True):
            given = [each for each in self.given if (processed and each.place >= 0) is as_drawn]
            if given:
                picked = _picked(logits, np.array([each.row for each in given]))
                yield from zip(given, _processed(picked, given) if as_drawn else _raw(picked, given), strict=True)

    def merged(self, drawn: list[Sampled], scored: list[Sampled]) -> list[Sampled]:
        """Both, in the order of the rows."""
        if not self.given:
            return drawn
        at = {each.row: answer for each, answer in zip(self.given, scored, strict=True)}
        rest = iter(drawn)
        return [at[row] if row in at else next(rest) for row in range(self.size)]


def rows_of(chunks: collections.abc.Sequence[Chunk]) -> StepRows:
    """The rows of `chunks`, side by side."""
    given, size = [], 0
    for chunk in chunks:
        sequence = chunk.sequence
        first = chunk.stop - chunk.num_rows + 1 - len(sequence.request.prompt_token_ids)
        given += [_Given(size + i, sequence, first + i) for i in range(chunk.num_rows - chunk.draws)]
        size += chunk.num_rows
    return StepRows(size, given)


def _picked(logits: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    return logits[torch.from_numpy(rows).to(logits.device)]


def _raw(logits: torch.Tensor, given: list[_Given]) -> list[Sampled]:
    """Of the model's own distribution.

    A logprob is (x - max) - log_sum, float32. The greedy draw's own is 0 - log_sum, which gives log_sum back exactly.
    """
    rows = greedy_rows([each.top_logprobs for each in given])
    draws = kernels.sample(logits, rows, processed_logprobs=False)
    ids = np.stack([[each.token_id for each in given], np.maximum(draws.token, 0)], axis=1)
    values = logits.gather(1, torch.from_numpy(ids.astype(np.int64)).to(logits.device)).cpu().numpy() + np.float32(0)
    zero = np.float32(0)
    with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not finite, which nobody reads
        logprobs = (values[:, 0] - values[:, 1]) - (zero - draws.logprob)
    return [_answer(draws, r, each, logprobs[r]) for r, each in enumerate(given)]


def _processed(logits: torch.Tensor, given: list[_Given]) -> list[Sampled]:
    """Of what the sampler made of it: each row as it was when its token was to be drawn.

    The best candidate's logprob is 0 - log_sum. A token that was no candidate has one as if it were.
    """
    rows = sample_rows([each.as_of() for each in given])
    rows = replace(rows, top_logprobs=np.maximum(rows.top_logprobs, 1), kept=None)
    draws = kernels.sample(logits, rows, processed_logprobs=True)
    host = logits.cpu().numpy()
    logprobs = [_processed_logprob(host[r], rows, r, each, draws) for r, each in enumerate(given)]
    return [_answer(draws, r, each, logprobs[r]) for r, each in enumerate(given)]


def _processed_logprob(logits: NDArray[np.float32], rows: SampleRows, r: int, each: _Given, draws: Draws) -> np.float32:
    if not draws.finite[r]:
        return np.float32(np.nan)
    with np.errstate(over="ignore", under="ignore"):
        values = adjust(logits, rows, r)
        scale = np.float32(1) if rows.temperature[r] == 0 else np.float32(1) / rows.temperature[r]
        z: np.float32 = (values[each.token_id] - values.max()) * scale
    return np.float32(z - (np.float32(0) - draws.top_values[r, 0]))


def _answer(draws: Draws, r: int, each: _Given, logprob: np.float32) -> Sampled:
    listed = int((draws.top_ids[r, : each.top_logprobs] >= 0).sum())
    return Sampled(
        token_id=each.token_id,
        logprob=float(logprob),
        top_ids=tuple(draws.top_ids[r, :listed].tolist()),
        top_values=tuple(draws.top_values[r, :listed].tolist()),
        finite=bool(draws.finite[r]),
    )
