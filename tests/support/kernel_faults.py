"""Kernel twins with a planted fault in one op of one layer, for steps of one size, that no self-test can see."""

from typing import Any

import pytest
import torch

from batchgen.kernels import PackedWeight, cpu
from batchgen.kernels.packing import unpack

EIGHT = 8  # rows; the self-test launches nothing of that size in a later layer

# The op of batchgen.kernels, and the packed tensor by which its launch in a layer is known (the one before it, if it
# has none).
OPS = {
    "input norm": ("rms_norm", "input_norm"),
    "qkv linear": ("linear", "qkv"),
    "rotary and cache": ("rotary_store", "qkv"),
    "attention": ("attention", "qkv"),
    "attention output linear": ("linear", "o"),
    "post-attention norm": ("rms_norm", "post_norm"),
    "gate and up linear": ("linear_silu_mul", "gate_up"),
    "down linear": ("linear", "down"),
}


def plant(
    monkeypatch: pytest.MonkeyPatch, op: str, weight: torch.Tensor | None, rows: int = EIGHT, *, reorder: bool = False
) -> list[int]:
    """From now on `op` is wrong in launches of `rows` rows on `weight`, or after a linear on it; None: on any.

    Wrong is the last bit of the last element of the last row, or with `reorder` another order of summation in a linear.
    Returns a list that grows with each wrong launch.
    """
    right, linear, wrong = getattr(cpu, op), cpu.linear, list[int]()
    before: list[torch.Tensor] = []

    def after_linear(x: torch.Tensor, packed: PackedWeight, *rest: Any) -> torch.Tensor:
        before[:] = [packed.data]
        return linear(x, packed, *rest)

    def twin(*args: Any, **options: Any) -> Any:
        is_wrong = len(args[0]) == rows and (weight is None or _same(_weight(op, args, before), weight))
        if not is_wrong:
            return right(*args, **options)
        wrong.append(len(args[0]))
        if reorder:
            return _reordered(*args)
        out = right(*args, **options)
        if op == "sample":
            out.logprob.view("u4")[-1] ^= 1
        else:
            out.view(torch.int16)[(-1,) * (out.dim() - 1)][-1] ^= 1
        return out

    if op in ("attention", "rotary_store"):
        monkeypatch.setattr(cpu, "linear", after_linear)
    monkeypatch.setattr(cpu, op, twin)
    return wrong


def _weight(op: str, args: tuple[Any, ...], before: list[torch.Tensor]) -> torch.Tensor | None:
    if op in ("attention", "rotary_store"):
        return before[0] if before else None
    return args[1].data if isinstance(args[1], PackedWeight) else args[1]


def _same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    return a is not None and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))


def _reordered(x: torch.Tensor, weight: PackedWeight, bias: Any, residual: Any, out: Any) -> torch.Tensor:
    """A split K: the sum over k in two halves that meet as bfloat16."""
    w, half = unpack(weight).float(), weight.columns // 2
    first, second = (x[:, part].float() @ w[:, part].t() for part in (slice(half), slice(half, None)))
    y = first.to(torch.bfloat16).float() + second.to(torch.bfloat16).float()
    for extra in (bias, residual):
        y = y if extra is None else y + extra
    return y if out is None else out.copy_(y)
