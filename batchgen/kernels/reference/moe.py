"""Router, experts and their sum in plain numpy: what the fast kernels must equal.

Shapes and dtypes are those of batchgen.kernels.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.kernels.constants import LANES
from batchgen.kernels.packing import PackedExperts
from batchgen.kernels.reference.elementary import exp, fma
from batchgen.kernels.reference.ops import ONE, ZERO, Array, linear, linear_silu_mul, tree_sum
from batchgen.kernels.routing import Pairs, Routing

Tensor = torch.Tensor

_LITTLE = np.float32(1e-20)


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """Experts by (score descending, id ascending), a NaN above all, -0 equal to +0; then by id.

    softmax: scores are the logits, weights exp(logit - maximum) / sum. sigmoid: weights are 1 / (1 + exp(-logit)), and
    scores weights + bias. With norm_topk the weights of the chosen are divided by their sum, from +0 by ascending id,
    plus 1e-20 for a sigmoid. Then they are multiplied by the scale.
    """
    rows = [_route_row(row, None if bias is None else bias.numpy(), routing) for row in logits.numpy()]
    ids = np.array([row[0] for row in rows], np.int32).reshape(len(rows), routing.top_k)
    weights = np.array([row[1] for row in rows], np.float32).reshape(len(rows), routing.top_k)
    return torch.from_numpy(ids), torch.from_numpy(weights)


def _route_row(logits: Array, bias: Array | None, routing: Routing) -> tuple[NDArray[np.int64], Array]:
    with np.errstate(all="ignore"):
        if routing.scoring == "softmax":
            scores = logits
            e = exp(logits - logits.max())
            weights = e / _lanes_sum(e)
        else:
            weights = ONE / (ONE + exp(ZERO - logits))
            scores = weights if bias is None else weights + bias
        # Of equal ones lexsort puts the lowest id first; a NaN is made the only number above infinity.
        order = np.lexsort((np.arange(len(scores)), -scores, ~np.isnan(scores)))
        chosen = np.sort(order[: routing.top_k])
        weights = weights[chosen]
        total = ZERO
        for weight in weights:
            total = total + weight
        if routing.scoring == "sigmoid":
            total = total + _LITTLE
        if routing.norm_topk:
            weights = weights / total
        scaled: Array = weights * np.float32(routing.scale)
        return chosen, scaled


def _lanes_sum(x: Array) -> Array:
    """[E] -> []: 16 strided lanes, each ascending, then the tree."""
    padded = np.zeros((-(-len(x) // LANES), LANES), np.float32)
    padded.reshape(-1)[: len(x)] = x
    lanes = np.zeros(LANES, np.float32)
    for row in padded:
        lanes = lanes + row
    return tree_sum(lanes)


def experts(x: Tensor, pairs: Pairs, gate_up: PackedExperts, down: PackedExperts) -> Tensor:
    """Each pair by itself: the linears of a dense layer on one row."""
    y = torch.empty(len(pairs.rows), down.rows)
    for p, (row, slot) in enumerate(zip(pairs.rows.tolist(), pairs.slots.tolist(), strict=True)):
        y[p] = linear(linear_silu_mul(x[row : row + 1], gate_up.of(slot)), down.of(slot))[0]
    return y


def combine(rows: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor) -> Tensor:
    """residual + (sum + shared); the sum from +0 over the experts of a token in their order, by FMA."""
    a, w = rows.numpy(), weights.numpy()
    total = np.zeros_like(residual.numpy())
    for j in range(a.shape[1]):
        total = fma(w[:, j, None], a[:, j], total)
    with np.errstate(all="ignore"):
        if shared is not None:
            total = total + shared.numpy()
        return torch.from_numpy(residual.numpy() + total)
