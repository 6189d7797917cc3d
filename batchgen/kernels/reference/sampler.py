"""One token a row, in plain numpy: the definition of the sampler.

Tokens are compared by the total order everywhere: value descending, id ascending; -0 equals +0.
"""

import numpy as np
from numpy.typing import NDArray

from batchgen.kernels.reference.elementary import exp, log
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.kernels.sample_rows import Draws, SampleRows

Array = NDArray[np.float32]
Ids = NDArray[np.int64]

_LARGEST = np.finfo(np.float32).max


def sample(logits: Array, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
    """Draw one token for each row.  logits float32 [R, V], raw; nothing is shared between rows."""
    draws = Draws.empty(len(rows))
    with np.errstate(over="ignore", under="ignore"):
        for r in range(len(rows)):
            _sample_row(logits[r], rows, r, draws, processed_logprobs)
    return draws


def _sample_row(logits: Array, rows: SampleRows, r: int, draws: Draws, processed_logprobs: bool) -> None:
    if not np.isfinite(logits).all():
        return
    values = adjust(logits, rows, r)
    order = total_order(values)
    if not order.size:
        return
    is_greedy = rows.temperature[r] == 0
    scale = np.float32(1) if is_greedy else np.float32(1) / rows.temperature[r]
    z = (values - values.max()) * scale
    kept = order if is_greedy else keep(z, order, int(rows.top_k[r]), float(rows.top_p[r]), rows.min_p[r])
    token = int(order[0]) if is_greedy else draw(z, kept, int(rows.seed[r]), int(rows.position[r]))
    draws.token[r], draws.finite[r] = token, 1
    if rows.kept and not is_greedy and is_filtered(rows, r, len(logits)):
        rows.kept.set_row(r, kept)
    if (k := int(rows.top_logprobs[r])) < 0:
        return
    if processed_logprobs:
        logprobs, best = z - _log_sum(z, kept), kept[:k]
    else:
        logprobs, best = log_softmax(logits), total_order(logits)[:k]
    draws.logprob[r] = logprobs[token]
    draws.top_ids[r, : len(best)] = best
    draws.top_values[r, : len(best)] = logprobs[best]


def adjust(logits: Array, rows: SampleRows, r: int) -> Array:
    """Bias, bans (-infinity), then penalties, each step saturating at the largest float32; -0 becomes +0."""
    x = logits + np.float32(0)
    at = rows.bias.of_row(r)
    assert rows.bias.values is not None
    assert rows.output.values is not None
    x[rows.bias.ids[at]] = _saturate(x[rows.bias.ids[at]] + rows.bias.values[at])
    banned = rows.banned.ids[rows.banned.of_row(r)]

    seen = rows.seen.ids[rows.seen.of_row(r)]
    penalty = rows.repetition_penalty[r]
    x[seen] = _saturate(np.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty))

    at = rows.output.of_row(r)
    ids, counts = rows.output.ids[at], rows.output.values[at].astype(np.float32)
    x[ids] = _saturate(x[ids] - rows.frequency_penalty[r] * counts - rows.presence_penalty[r])
    x[banned] = -np.inf  # here, since a ban outlives every penalty
    return x


def _saturate(x: Array) -> Array:
    return np.clip(x, -_LARGEST, _LARGEST) + np.float32(0)


def total_order(values: Array) -> Ids:
    """The ids that are not banned, value descending, then id ascending."""
    ids = np.flatnonzero(values > -np.inf)
    return ids[np.lexsort((ids, -values[ids]))]


def mass(z: Array) -> NDArray[np.uint64]:
    """exp(z) in units of 2^-40, rounded to even: sums of it do not depend on their order."""
    return np.rint(exp(z).astype(np.float64) * 2.0**40).astype(np.uint64)


def keep(z: Array, order: Ids, top_k: int, top_p: float, min_p: np.float32) -> Ids:
    """The prefix of `order` that top-k and top-p leave, and of it the tokens that min-p leaves. Never empty.

    Top-p keeps a token iff the mass before it is less than top_p * total (float64, cut to an integer, at least 1 and
    at most the total), the total being over what top-k left. Min-p keeps a token iff exp(z) >= min_p.
    """
    kept = order[:top_k] if top_k > 0 else order
    if top_p < 1:
        q = mass(z[kept])
        total = q.sum(dtype=np.uint64)
        limit = min(max(int(top_p * float(total)), 1), int(total))
        before = np.cumsum(q, dtype=np.uint64) - q
        kept = kept[before < np.uint64(limit)]
    return kept[exp(z[kept]) >= min_p]


def is_filtered(rows: SampleRows, r: int, V: int) -> bool:
    """Whether top-k, top-p or min-p may take a candidate from a draw of row r that is not greedy."""
    return bool(0 < rows.top_k[r] < V or rows.top_p[r] < 1 or rows.min_p[r] > 0)


def draw(z: Array, kept: Ids, seed: int, position: int) -> int:
    """The token of `kept` with the greatest z + Gumbel noise; of equal ones the lowest id."""
    score = z + gumbel(seed, position, DRAW_LANE, len(z))
    by_id = np.sort(kept)
    return int(by_id[np.argmax(score[by_id])])


def _log_sum(z: Array, kept: Ids) -> Array:
    """log of the sum of exp(z) over `kept`, from the integer mass: of processed log-probabilities."""
    total = mass(z[kept]).sum(dtype=np.uint64)
    return log(total.astype(np.float32) * np.float32(2.0**-40))


def log_softmax(logits: Array) -> Array:
    """Of raw logits: 16 lanes, each summing every sixteenth exponential ascending, then halves of 8, 4, 2, 1."""
    z = logits - logits.max()
    e = np.zeros((-(-len(z) // 16), 16), np.float32)
    e.reshape(-1)[: len(z)] = exp(z)
    lanes = np.zeros(16, np.float32)
    for row in e:
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    result: Array = z - log(lanes[0])
    return result
