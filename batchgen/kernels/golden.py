"""Proof, at every start, that this machine computes the profile it is asked for.

Each op runs on small inputs made of integers; the digest of all outputs is recorded here. It changes with any bit of
any op, and then the profile needs a new version.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels.device import CPU
from batchgen.kernels.packing import PackedWeight, pack, pack_experts
from batchgen.kernels.routing import Pairs, Routing
from batchgen.kernels.sample_rows import IdLists, SampleRows

NATIVE = frozenset({"native-amx/1"})  # profiles whose linears run on the matrix unit
GOLDEN = {
    "native-amx/1": "c4c9b2dbb36aa9c9f0c33e689c45ad1c3236d745e15688b790202b310e47a141",
    "portable/1": "1e06307e0484bfa526fba53f6130dda647e46e1c7567dbc4b7ba22cd4a72d1c5",
}
GOLDEN_EXPERTS = {  # of the ops that only a model with experts has
    "native-amx/1": "419160fcb0545e908d5c6bde5e2711e217289beed37093cbf3be19806a2ecd1b",
    "portable/1": "533faccf20b945b1c9c8f5b5b6ec307c140bf45dce95d20a0c05ee073c0b05fd",
}

_ONE, _LITTLE = float("1"), float("1e-20")  # no constants, which the compiler would add up beforehand


def check_profile(numerics: str, device: torch.device = CPU, *, experts: bool = False) -> str:
    """The kernel-set digest of the profile `numerics`. Raises EngineError when the kernels of `device` give another.

    `experts`: the ops of a model with experts are proven too; the digest says nothing of them.
    """
    require_rounding()
    found = _proven(numerics, kernel_set_digest(native=numerics in NATIVE, device=str(device)), GOLDEN[numerics])
    if experts:
        _proven(numerics, experts_digest(native=numerics in NATIVE, device=str(device)), GOLDEN_EXPERTS[numerics])
    return found


def _proven(numerics: str, found: str, golden: str) -> str:
    if found != golden:
        raise EngineError(
            f"the kernels of this machine do not compute {numerics}: {found[:16]}… is not {golden[:16]}…",
            hint="no row made here could be reproduced; the build or the processor is at fault",
        )
    return found


def require_rounding() -> None:
    """Raises EngineError unless this thread rounds to nearest.

    The kernels see to that themselves. What Python and numpy compute for them, rotary tables and scales, goes by the
    mode of the process, which any library may have changed.
    """
    if not (_ONE + _LITTLE == 1.0 and -_ONE - _LITTLE == -1.0 and _ONE - _LITTLE == 1.0):
        raise EngineError(
            "this process does not round floating-point numbers to nearest",
            hint="some library has called fesetround, and no row made now could be reproduced",
        )


def kernel_set_digest(*, native: bool = False, device: str = "cpu") -> str:
    """SHA-256 (hex) over the outputs of every op. Raises EngineError if `native` is not to be had."""
    with torch.device(device):
        return _digest(native)


def _digest(native: bool) -> str:
    digest = hashlib.sha256()
    T, H, Hq, Hk, D, V = 37, 288, 4, 2, 32, 515
    x = _numbers(1, T, H)
    table = pack(_numbers(2, V, H).to(torch.bfloat16), native=native)
    embedded = kernels.embedding(torch.arange(T, dtype=torch.int32) * 13, table)
    normed = kernels.rms_norm(x * 3, _numbers(3, H), 1e-5)
    qkv = kernels.linear(
        normed,
        pack(_numbers(4, (Hq + 2 * Hk) * D, H).to(torch.bfloat16), native=native),
        _numbers(5, (Hq + 2 * Hk) * D),
    )
    cache = (
        torch.zeros(2, Hk, D // 2, 32, 2, dtype=torch.bfloat16),
        torch.zeros(2, Hk, 16, D, 2, dtype=torch.bfloat16),
    )
    positions = torch.arange(T, dtype=torch.int32)
    place = (positions, torch.arange(T))
    norms = (_numbers(6, D), _numbers(7, D))
    rotary = (_numbers(8, T, D // 2), _numbers(9, T, D // 2))
    q = kernels.rotary_store(qkv, norms, 1e-6, rotary, place, cache)
    tables, start = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([0, T], dtype=torch.int32)
    attended = kernels.attention(q, cache, tables, start, positions)
    out = kernels.linear(attended, pack(_numbers(10, H, Hq * D).to(torch.bfloat16), native=native), residual=x)
    gate_up = pack(_numbers(11, 128, H).to(torch.bfloat16), native=native)
    gated = kernels.linear_silu_mul(normed, gate_up)
    logits = kernels.linear(normed, table)
    _prove_rows(normed, table, gate_up)
    for tensor in (embedded, normed, qkv, *cache, q, attended, out, gated, logits):
        digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    for processed in (False, True):
        draws = kernels.sample(logits, _sample_rows(T), processed_logprobs=processed)
        for array in (draws.token, draws.logprob, draws.top_ids, draws.top_values, draws.finite):
            digest.update(array.tobytes())
    return digest.hexdigest()


def experts_digest(*, native: bool = False, device: str = "cpu") -> str:
    """SHA-256 (hex) over the outputs of the ops of a MoE layer. Raises as `kernel_set_digest`."""
    with torch.device(device):
        return _experts_digest(native)


def _experts_digest(native: bool) -> str:
    digest = hashlib.sha256()
    T, H, inner, E = 37, 288, 288, 11
    x = _numbers(12, T, H).to(torch.bfloat16)
    gate_up = pack_experts(_numbers(13, E, 2 * inner, H).to(torch.bfloat16), native=native)
    down = pack_experts(_numbers(14, E, H, inner).to(torch.bfloat16), native=native)
    logits, bias, shared = _numbers(15, T, E) * 8, _numbers(16, E), _numbers(17, T, H)
    logits[5:9] = logits[5:9].round()  # among them equal ones
    softmax, sigmoid = Routing(4, "softmax", True, 1.0), Routing(3, "sigmoid", True, 2.5)
    plain = Routing(2, "softmax", False, 1.0)
    for routing, biases in ((softmax, None), (sigmoid, bias), (plain, None)):
        chosen, weights = kernels.route(logits, biases, routing)
        rows = torch.arange(T, dtype=torch.int32).repeat_interleave(routing.top_k)
        y = kernels.experts(x, Pairs(rows, chosen.reshape(-1)), gate_up, down)
        for t in (0, T - 1):  # a token alone: every expert has one pair of it, or none
            alone = kernels.experts(x, Pairs(rows[:1].repeat(routing.top_k) + t, chosen[t].clone()), gate_up, down)
            if not torch.equal(alone, y[t * routing.top_k : (t + 1) * routing.top_k]):
                raise EngineError(f"experts give other bits for token {t} alone than among {T}")
        summed = kernels.combine(y.view(T, routing.top_k, H), weights, shared if biases is not None else None, shared)
        for tensor in (chosen, weights, y, summed):
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def _prove_rows(x: torch.Tensor, table: PackedWeight, gate_up: PackedWeight) -> None:
    """Linears of few rows and of many, which take other paths through the kernels, against those of all rows of x."""
    many = x.repeat(5, 1)  # more than one block of rows
    for op, weight in ((kernels.linear, table), (kernels.linear_silu_mul, gate_up)):
        whole: torch.Tensor = op(x, weight)
        for M in (1, 2, 6, 13, len(x)):
            if not torch.equal(op(x[:M], weight), whole[:M]):
                raise EngineError(f"a linear of {M} rows gives other bits than one of {len(x)}")
        if not torch.equal(op(many, weight), whole.repeat(5, 1)):
            raise EngineError(f"a linear of {len(many)} rows gives other bits than one of {len(x)}")


def _numbers(lane: int, *shape: int) -> torch.Tensor:
    """float32 in [-1, 1), made by integer arithmetic alone."""
    count = int(np.prod(shape))
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(lane << 40)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    numbers = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return torch.from_numpy(numbers).view(shape).to(torch.get_default_device())


def _sample_rows(R: int) -> SampleRows:
    row = range(R)
    return rows_of_every_kind(
        row,
        bias=[{3: 1.5} for _ in row],
        banned=[(r, 500) for r in row],
        output=[{7: 2, r + 40: 1} for r in row],
        seen=[(7, r + 40, 400) for r in row],
    )


def rows_of_every_kind(
    rows: Sequence[int],
    *,
    bias: Sequence[dict[int, float]],
    banned: Sequence[Iterable[int]],
    output: Sequence[dict[int, int]],
    seen: Sequence[Iterable[int]],
) -> SampleRows:
    """Greedy, plain, filtered and penalised rows, by the number of each; the lists of ids are the caller's."""
    row = np.array(rows)
    return SampleRows(
        seed=row.astype(np.uint64) << np.uint64(33),
        position=row.astype(np.int64),
        temperature=np.where(row % 5 == 0, 0, 0.5 + row / 16).astype(np.float32),
        top_p=np.where(row % 3 == 1, 0.75, 1.0).astype(np.float64),
        min_p=np.where(row % 7 == 3, 0.125, 0).astype(np.float32),
        top_k=np.where(row % 4 == 2, 9, 0).astype(np.int32),
        presence_penalty=np.where(row % 6 == 1, 0.5, 0).astype(np.float32),
        frequency_penalty=np.where(row % 6 == 2, 0.25, 0).astype(np.float32),
        repetition_penalty=np.where(row % 6 == 3, 1.25, 1).astype(np.float32),
        bias=IdLists.with_values(bias, np.float32),
        banned=IdLists.of(banned),
        output=IdLists.with_values(output, np.int32),
        seen=IdLists.of(seen),
        top_logprobs=(row % 22 - 1).astype(np.int32),
    )
