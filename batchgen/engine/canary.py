"""The canary: what a model says to a fixed prompt, computed in every way that an engine may compute it.

The prompt depends on the size of the vocabulary alone. The SHA-256 over the bits of its logits, and of tokens drawn
from them, is a function of (weights, profile): two machines on which it is equal compute the model alike. Threads,
limits, the device, the instruction set and max_model_len cannot be seen in it.
"""

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen import kernels
from batchgen.engine.bits import Checks, as_bits
from batchgen.engine.trace import Recorder, first_difference
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.golden import rows_of_every_kind
from batchgen.kernels.sample_rows import Draws, SampleRows
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import AnyDecoder, Cache
from batchgen.models.op_names import op_names

POSITIONS = 64  # that a decoder's rotary table must have room for
LENGTH = 45  # tokens of the canary: more than a block, and no multiple of any tile
CUTS = (1, 31, 32, 33)  # where its chunks end
AFFORDABLE = 2**28  # weights of the layers that it goes through in chunks and in company: a second on two cores
DECODED = 3  # of its tokens are computed one by one beside another prompt

TABLES = ([3, 1], [0, 2])  # blocks of the two prompts; none ascends with its positions and its prompt
NUM_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Positions start .. stop-1 of prompt 0, the canary, or 1, its company."""

    prompt: int
    start: int
    stop: int


Steps = Sequence[Sequence[Span]]


def prompt_ids(vocab_size: int, prompt: int) -> list[int]:
    """POSITIONS token ids; the canary's are the first LENGTH of prompt 0."""
    mixed = ((prompt * POSITIONS + i + 1) * 0x9E3779B97F4A7C15 % 2**64 for i in range(POSITIONS))
    return [(number >> 24) % vocab_size for number in mixed]


def step_of(spans: Sequence[Span], vocab_size: int) -> StepTensors:
    """The spans side by side in one step, with the logits of all tokens."""
    prompts = [prompt_ids(vocab_size, prompt) for prompt in range(2)]
    ids = [i for span in spans for i in prompts[span.prompt][span.start : span.stop]]
    places = [(TABLES[span.prompt], p) for span in spans for p in range(span.start, span.stop)]
    starts = np.cumsum([0, *(span.stop - span.start for span in spans)])
    return StepTensors(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        positions=torch.tensor([p for _, p in places], dtype=torch.int32),
        slots=torch.tensor([table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for table, p in places]),
        query_start=torch.tensor(starts, dtype=torch.int32),
        block_tables=torch.tensor([TABLES[span.prompt] for span in spans], dtype=torch.int32),
        sample_rows=torch.arange(len(ids)),
    )


def prove_canary(decoder: AnyDecoder, cache: list[Cache], checks: Checks) -> str:
    """The canary, SHA-256 in hex. Raises EngineError unless all ways to compute it agree.

    It runs once through the whole model; the other ways go through the first layers of a large one.
    `cache` has NUM_BLOCKS blocks or more; `decoder` a rotary table of POSITIONS positions or more.
    """
    at_once = [[Span(0, 0, LENGTH)]]
    whole = _logits(decoder, cache, at_once)
    first = _first_layers(decoder)
    expected = whole if first is decoder else _logits(first, cache, at_once)

    def same(steps: Steps, how: str, other: str) -> None:
        found = _logits(first, cache, steps)
        checks.same([found], [expected], how, other, lambda: _culprit(first, cache, steps, at_once))

    chunks = [[Span(0, a, b)] for a, b in pairwise((0, *CUTS, LENGTH))]
    same(chunks, f"the canary in chunks cut at {', '.join(map(str, CUTS))}", "as a whole")
    start = LENGTH - DECODED
    beside = [[Span(1, 0, 7), Span(0, 0, start)]]
    beside += [[Span(1, 7 + i, 8 + i), Span(0, start + i, start + i + 1)] for i in range(DECODED)]
    same(beside, f"the canary beside another prompt, its last {DECODED} tokens one by one,", "alone")
    digest = hashlib.sha256(as_bits(whole).tobytes())
    for processed in (False, True):
        for array in _draws(whole, checks, processed):
            digest.update(as_bits(array).tobytes())
    return digest.hexdigest()


def _first_layers(decoder: AnyDecoder) -> AnyDecoder:
    """The model cut off after as many layers as are affordable, and at least the first of each kind.

    Layers of one kind, with experts or without, have the same shapes.
    """
    kinds = [decoder.config.is_moe(i) for i in range(decoder.config.num_layers)]
    most = max(AFFORDABLE // decoder.config.layer_weights, *(kinds.index(kind) + 1 for kind in set(kinds)))
    if most >= len(decoder.layers):
        return decoder
    first = copy(decoder)
    first.layers = decoder.layers[:most]
    first.config = replace(decoder.config, num_layers=most)
    return first


def _logits(decoder: AnyDecoder, cache: list[Cache], steps: Steps, recorder: Recorder | None = None) -> torch.Tensor:
    """Of all the canary's positions, float32 [LENGTH, V], computed in these steps on a cache of NaNs."""
    parts = []
    cache = cache[: len(decoder.layers)]
    for keys, values in cache:
        keys.fill_(torch.nan)
        values.fill_(torch.nan)
    for spans in steps:
        starts = np.cumsum([0, *(span.stop - span.start for span in spans)])
        rows = [
            (int(start) + p - span.start, p)
            for start, span in zip(starts, spans, strict=False)
            for p in range(span.start, span.stop)
            if span.prompt == 0
        ]
        with recorder.step(rows, drawn=rows) if recorder else nullcontext():
            logits = decoder.forward(step_of(spans, decoder.config.vocab_size).on(decoder.device), cache)
        parts.append(logits[[row for row, _ in rows]])
    return torch.cat(parts)


def _culprit(decoder: AnyDecoder, cache: list[Cache], a: Steps, b: Steps) -> str:
    """Computes both once more to name the op."""
    names = op_names(decoder.config)
    sides = Recorder(names), Recorder(names)
    for recorder, steps in zip(sides, (a, b), strict=True):
        _logits(decoder, cache, steps, recorder)
    place = first_difference(sides[0].trace, sides[1].trace, LENGTH)
    return f"; {names[place.op]}, at position {place.position}, is the first" if place else ", and does not again"


def _draws(logits: torch.Tensor, checks: Checks, processed: bool) -> list[NDArray[Any]]:
    """The sampler's arrays for all rows, which must be those of a second launch and of single rows."""

    def arrays(rows: range) -> list[NDArray[Any]]:
        draws = kernels.sample(
            logits[rows.start : rows.stop], sample_rows(rows, logits.shape[1]), processed_logprobs=processed
        )
        return [getattr(draws, field.name) for field in fields(Draws)]

    all_rows = range(len(logits))
    whole = arrays(all_rows)
    checks.same(arrays(all_rows), whole, "sample: a second launch", "the first")
    for row in (0, 7, len(logits) - 1):
        found, expected = arrays(range(row, row + 1)), [array[row : row + 1] for array in whole]
        checks.same(found, expected, f"sample: row {row} alone", f"among {len(logits)} rows")
    return whole


def sample_rows(rows: Sequence[int], vocab_size: int) -> SampleRows:
    """Parameters of every kind, a function of the row's number, with ids that any vocabulary has."""
    one, two = [int(r) % vocab_size for r in rows], [int(r + 1) % vocab_size for r in rows]
    return rows_of_every_kind(
        rows,
        bias=[{i: 1.5} for i in one],
        banned=[(i,) for i in two],
        output=[{i: 2, k: 1} for i, k in zip(one, two, strict=True)],
        seen=[{i, k} for i, k in zip(one, two, strict=True)],
    )
