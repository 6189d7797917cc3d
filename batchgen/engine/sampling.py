"""From sequences to the sampler's arrays, and from its answer to draws."""

import collections.abc

import numpy as np
import torch

from batchgen import kernels
from batchgen.engine.batch import Sampled
from batchgen.engine.sequence import Sequence
from batchgen.kernels.sample_rows import Draws, IdLists, Kept, SampleRows


def draw(logits: torch.Tensor, sequences: collections.abc.Sequence[Sequence], *, processed: bool) -> list[Sampled]:
    """The next token of each sequence.  logits float32 [R, V], raw; `processed` says which logprobs are recorded."""
    rows = sample_rows(sequences)
    draws = sampled(kernels.sample(logits, rows, processed_logprobs=processed), sequences)
    if rows.kept is None:
        return draws
    wanted = [sequence.request.params.kept_tokens for sequence in sequences]
    return [d._replace(kept=rows.kept.of_row(r)) if wanted[r] else d for r, d in enumerate(draws)]


def sampled(draws: Draws, sequences: collections.abc.Sequence[Sequence]) -> list[Sampled]:
    """The sampler's answer, one for each sequence."""
    return [_sampled(draws, row, sequence) for row, sequence in enumerate(sequences)]


def sample_rows(sequences: collections.abc.Sequence[Sequence]) -> SampleRows:
    """What the sampler is told of each sequence: its parameters, its seed, the position that it draws for."""
    params = [sequence.request.params for sequence in sequences]

    def floats(name: str) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return np.array([getattr(p, name) for p in params], np.float32)

    return SampleRows(
        seed=np.array([sequence.request.seed for sequence in sequences], np.uint64),
        position=np.array([sequence.num_tokens for sequence in sequences], np.int64),
        temperature=floats("temperature"),
        top_p=np.array([p.top_p for p in params], np.float64),
        min_p=floats("min_p"),
        top_k=np.array([p.top_k for p in params], np.int32),
        presence_penalty=floats("presence_penalty"),
        frequency_penalty=floats("frequency_penalty"),
        repetition_penalty=floats("repetition_penalty"),
        bias=IdLists.with_values([p.logit_bias for p in params], np.float32),
        banned=IdLists.of([sequence.banned_token_ids_now for sequence in sequences]),
        # A list that its penalty would not change a logit with is not worth its copy.
        output=IdLists.with_values(
            [
                s.output_counts if p.presence_penalty or p.frequency_penalty else {}
                for s, p in zip(sequences, params, strict=True)
            ],
            np.int32,
        ),
        seen=IdLists.of(
            [s.seen_token_ids if p.repetition_penalty != 1 else () for s, p in zip(sequences, params, strict=True)]
        ),
        top_logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
        kept=Kept.empty([p.kept_tokens or 0 for p in params]) if any(p.kept_tokens for p in params) else None,
    )


def greedy_rows(top_logprobs: collections.abc.Sequence[int]) -> SampleRows:
    """Rows that take the likeliest token of the raw logits; for each how many alternatives it lists."""
    R = len(top_logprobs)

    def all_of(value: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return np.full(R, value, np.float32)

    nothing = [dict[int, float]()] * R
    return SampleRows(
        seed=np.zeros(R, np.uint64),
        position=np.zeros(R, np.int64),
        temperature=all_of(0),
        top_p=np.ones(R, np.float64),
        min_p=all_of(0),
        top_k=np.zeros(R, np.int32),
        presence_penalty=all_of(0),
        frequency_penalty=all_of(0),
        repetition_penalty=all_of(1),
        bias=IdLists.with_values(nothing, np.float32),
        banned=IdLists.of(nothing),
        output=IdLists.with_values(nothing, np.int32),
        seen=IdLists.of(nothing),
        top_logprobs=np.array(top_logprobs, np.int32),
    )


def _sampled(draws: Draws, row: int, sequence: Sequence) -> Sampled:
    wanted = sequence.request.params.logprobs
    if wanted is None:
        return Sampled(int(draws.token[row]), 0.0, (), (), bool(draws.finite[row]))
    # Fewer than `wanted` tokens may be left after the filters; their places hold -1.
    listed = int((draws.top_ids[row, :wanted] >= 0).sum())
    return Sampled(
        token_id=int(draws.token[row]),
        logprob=float(draws.logprob[row]),
        top_ids=tuple(draws.top_ids[row, :listed].tolist()),
        top_values=tuple(draws.top_values[row, :listed].tolist()),
        finite=bool(draws.finite[row]),
    )
