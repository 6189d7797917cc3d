"""The twins of the native profiles' ops, in plain torch and float32: equal within a tolerance, not in bits.

The matrix units of a device add in an order of their own; these define what is meant, not the last bit.
Shapes and dtypes are those of batchgen.kernels.triton.
"""

import torch
import torch.nn.functional as F

from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.routing import Pairs, Routing

Tensor = torch.Tensor


def linear(x: Tensor, weight: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x weight^T, summed in float64 and rounded."""
    return (x.double() @ weight.double().T).to(dtype)


def silu_mul(x: Tensor) -> Tensor:
    """silu(gate) * up, gate before up."""
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(torch.bfloat16)


def linear_silu_mul(x: Tensor, weight: Tensor) -> Tensor:
    """silu_mul of the rounded linear."""
    return silu_mul(linear(x, weight))


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of the table as float32."""
    return table[ids.long()].float()


def add_rms_norm(h: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """h += y in place, then the norm of h."""
    if y is not None:
        h += y
    return (_normed(h, eps) * weight).to(torch.bfloat16)


def _normed(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


def rotary_store(
    qkv: Tensor,
    bias: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rotary: tuple[Tensor, Tensor],
    place: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    """Bias, norm, rotation of the pairs (x[i], x[i + D/2]); k and v to the cache unless the slot is negative."""
    Hk, D = cache[0].shape[1], cache[0].shape[3]
    heads = (qkv.float() if bias is None else qkv.float() + bias).view(len(qkv), -1, D)
    Hq = heads.shape[1] - 2 * Hk
    q, k, v = heads[:, :Hq], heads[:, Hq : Hq + Hk], heads[:, Hq + Hk :]
    if norms is not None:
        q, k = _normed(q, eps) * norms[0], _normed(k, eps) * norms[1]
    cos, sin = (table[place[0].clamp(min=0).long()][:, None] for table in rotary)
    real = place[1] >= 0
    block, inner = place[1][real] // BLOCK_SIZE, place[1][real] % BLOCK_SIZE
    cache[0][block, :, inner] = _turned(k, cos, sin)[real]
    cache[1][block, :, inner] = v[real].to(torch.bfloat16)
    return _turned(q, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(torch.bfloat16)


def attention(
    q: Tensor, cache: tuple[Tensor, Tensor], block_tables: Tensor, query_start: Tensor, positions: Tensor
) -> Tensor:
    """Softmax of the scaled scores over each token's past, in float32."""
    T, Hq, D = q.shape
    group = Hq // cache[0].shape[1]
    out = torch.zeros(T, Hq, D, dtype=torch.float32, device=q.device)
    for s, (begin, end) in enumerate(zip(query_start[:-1].tolist(), query_start[1:].tolist(), strict=True)):
        at = positions[begin:end]
        if begin == end or int(at[-1]) < 0:
            continue
        length = int(at[-1]) + 1
        table = block_tables[s, : -(-length // BLOCK_SIZE)].long()
        k, v = (part[table].transpose(1, 2).flatten(0, 1)[:length].float() for part in cache)  # [length, Hk, D]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        score = torch.einsum("thd,phd->thp", q[begin:end].float(), k) / D**0.5
        hidden = torch.arange(length, device=q.device) > at[:, None]
        weight = score.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("thp,phd->thd", weight, v)
    return out.view(T, Hq * D).to(torch.bfloat16)


def route(
    logits: Tensor, bias: Tensor | None, routing: Routing, positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The experts by (score descending, id ascending), a NaN above all, then by id; -1 where the position is negative.

    softmax scores are the logits; sigmoid ones 1 / (1 + exp(-logit)) + bias, and their weights are without the bias.
    """
    is_sigmoid = routing.scoring == "sigmoid"
    weights = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    scores = (weights if bias is None else weights + bias) if is_sigmoid else logits
    order = torch.sort(scores + 0.0, dim=-1, descending=True, stable=True).indices  # + 0: -0 is 0
    experts = order[:, : routing.top_k].sort(-1).values
    weights = weights.gather(-1, experts)
    if routing.norm_topk:
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if is_sigmoid else 0.0))
    if positions is not None:
        experts = experts.masked_fill(positions[:, None] < 0, -1)
    return experts.int(), weights * routing.scale


def experts(x: Tensor, pairs: Pairs, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each pair by itself: down(silu(gate) * up) of its slot; a pair of slot -1 gets NaN, for nobody may read it."""
    y = torch.full((len(pairs.slots), down.shape[1]), torch.nan, dtype=torch.bfloat16, device=x.device)
    for slot in range(len(down)):
        at = pairs.slots == slot
        y[at] = linear(linear_silu_mul(x[pairs.rows[at].long()], gate_up[slot]), down[slot])
    return y


def combine(rows: Tensor, weights: Tensor, shared: Tensor | None) -> Tensor:
    """The sum from +0 over a token's experts in their order by FMA, then the shared expert's row, rounded once."""
    total = torch.zeros_like(rows[:, 0], dtype=torch.float32)
    for j in range(rows.shape[1]):  # the products are exact in float64
        total = (total.double() + weights[:, j, None].double() * rows[:, j].double()).float()
    return (total if shared is None else total + shared.float()).to(torch.bfloat16)
