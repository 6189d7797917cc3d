"""What the sampler compared when it drew one token: the scores of all tokens, from the sampler's definition."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.engine.admission import ModelLimits
from batchgen.engine.batch import Chunk
from batchgen.engine.matcher import Matcher
from batchgen.engine.model_runner import step_tensors
from batchgen.engine.sampling import sample_rows
from batchgen.engine.sequence import Sequence
from batchgen.engine.stop import Decoder as Detokenizer
from batchgen.engine.stop import StopChecker
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.kernels.reference.sampler import adjust, keep, total_order
from batchgen.kernels.sample_rows import SampleRows
from batchgen.models.any_decoder import AnyDecoder
from batchgen.records import Request

_CHUNK = 256  # tokens of a step

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each of V tokens. Of the candidates, the one with the greatest score is drawn; of equal ones the lowest id."""

    logits: Array  # [V] raw
    scores: Array  # [V] after penalties, temperature and noise; -infinity: banned
    is_candidate: NDArray[np.bool_]  # [V] left by top-k, top-p and min-p

    @property
    def drawn(self) -> int:
        """-1: the logits are not finite, or every token is banned."""
        if not self.is_candidate.any():
            return -1
        return int(np.argmax(np.where(self.is_candidate, self.scores, -np.inf)))


@torch.inference_mode()
def scores_after(
    decoder: AnyDecoder, limits: ModelLimits, request: Request, output: Ids[int], matcher: Matcher | None = None
) -> Scores:
    """The scores at the position after the prompt of `request` and the tokens `output`, computed alone.

    `matcher`: a fresh one, where the request has structured outputs. Raises RowError where it does not take `output`.
    """
    sequence = Sequence(request, 0, StopChecker(request.params, limits.eos_token_ids, _Silent()), matcher)
    for token_id in output:
        sequence.append(token_id, 0.0, (), ())
        if matcher is not None:
            matcher.accept(token_id)
    num_blocks = -(-sequence.num_tokens // BLOCK_SIZE)
    sequence.block_table = list(range(num_blocks))
    cache = decoder.new_cache(num_blocks)
    for start in range(0, sequence.num_tokens, _CHUNK):
        stop = min(start + _CHUNK, sequence.num_tokens)
        chunk = Chunk(sequence, start, stop - start, samples=stop == sequence.num_tokens)
        logits = decoder.forward(step_tensors([chunk]).on(decoder.device), cache)
    return score(logits[0].cpu().numpy().copy(), sample_rows([sequence]))


def score(logits: Array, rows: SampleRows) -> Scores:
    """Of the one row of `rows`.  logits float32 [V], raw."""
    scores, is_candidate = np.full(len(logits), -np.inf, np.float32), np.zeros(len(logits), np.bool_)
    if not np.isfinite(logits).all():
        return Scores(logits, scores, is_candidate)
    with np.errstate(over="ignore", under="ignore"):
        values = adjust(logits, rows, 0)
        kept = total_order(values)
        if kept.size and rows.temperature[0] == 0:
            scores = values - values.max()
        elif kept.size:
            z = (values - values.max()) * (np.float32(1) / rows.temperature[0])
            scores = z + gumbel(int(rows.seed[0]), int(rows.position[0]), DRAW_LANE, len(z))
            kept = keep(z, kept, int(rows.top_k[0]), float(rows.top_p[0]), rows.min_p[0])
    is_candidate[kept] = True
    return Scores(logits, scores, is_candidate)


class _Silent(Detokenizer):
    """No text is looked at where one token is drawn."""

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""
