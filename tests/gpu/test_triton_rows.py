"""Row ops on the GPU: near their twins, and a row's bits do not depend on T."""

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from batchgen.errors import EngineError
from batchgen.kernels.reference import native as twin
from batchgen.kernels.triton import add_rms_norm, embedding, rotary_store, silu_mul

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
SIZES = [1, 2, 3, 7, 16, 33, 100, 256, 700]


def randn(*shape: int) -> torch.Tensor:
    """float32 with row scales over four orders of magnitude."""
    x = torch.randn(shape, device="cuda")
    return x * torch.logspace(-2, 2, shape[0], device="cuda").view(-1, *[1] * (len(shape) - 1))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of a from b, relative."""
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("H", [576, 2048, 4096, 8192])
def test_add_rms_norm(H: int) -> None:
    h, y, weight = randn(700, H), randn(700, H).to(BF16), torch.randn(H, device="cuda")
    for given in (y, None):
        ours, theirs = h.clone(), h.clone()
        out = add_rms_norm(ours, given, weight, 1e-6)
        assert distance(out, twin.add_rms_norm(theirs, given, weight, 1e-6)) < 3e-3
        assert torch.equal(ours, theirs)
        for T in SIZES:
            part = h[:T].clone()
            assert torch.equal(add_rms_norm(part, None if given is None else y[:T], weight, 1e-6), out[:T])
            assert torch.equal(part, ours[:T])


@pytest.mark.parametrize("width", [1536, 6144, 1000])
def test_silu_mul(width: int) -> None:
    x = randn(700, 2 * width).to(BF16)
    out = silu_mul(x)
    assert distance(out, twin.silu_mul(x)) < 3e-3
    assert all(torch.equal(silu_mul(x[:T]), out[:T]) for T in SIZES)


def test_embedding() -> None:
    ids, table = torch.randint(1000, (700,), device="cuda", dtype=torch.int32), randn(1000, 576).to(BF16)
    assert torch.equal(embedding(ids, table), twin.embedding(ids, table))


@pytest.mark.parametrize(("Hq", "Hk", "D"), [(16, 8, 128), (9, 3, 64), (8, 8, 96), (4, 2, 256), (32, 8, 128)])
@pytest.mark.parametrize("is_normed", [True, False])
def test_rotary_store(Hq: int, Hk: int, D: int, is_normed: bool) -> None:
    T, width = 700, (Hq + 2 * Hk) * D
    qkv = randn(T, width).to(BF16)
    bias = None if is_normed else torch.randn(width, device="cuda")
    norms = (torch.randn(D, device="cuda"), torch.randn(D, device="cuda")) if is_normed else None
    angle = torch.rand(900, D // 2, device="cuda") * 6
    rotary = (angle.cos(), angle.sin())
    positions = torch.randint(900, (T,), device="cuda", dtype=torch.int32)
    slots = torch.randperm(30 * 32, device="cuda")[:T]
    slots[5], positions[5] = -1, -1  # padding
    ours, theirs = ([torch.zeros(30, Hk, 32, D, device="cuda", dtype=BF16) for _ in range(2)] for _ in range(2))

    def run(op: object, cache: list[torch.Tensor], rows: slice) -> torch.Tensor:
        place = (positions[rows], slots[rows])
        q: torch.Tensor = op(qkv[rows], bias, norms, 1e-6, rotary, place, tuple(cache))  # type: ignore[operator]
        return q

    q = run(rotary_store, ours, slice(T))
    assert distance(q, run(twin.rotary_store, theirs, slice(T))) < 3e-3
    assert all(distance(a, b) < 3e-3 for a, b in zip(ours, theirs, strict=True))
    assert [int((part != 0).flatten(2).any(-1).any(1).sum()) for part in ours] == [
        int((part != 0).flatten(2).any(-1).any(1).sum()) for part in theirs
    ]
    again = [torch.zeros_like(part) for part in ours]
    for begin in range(0, T, 7):
        assert torch.equal(run(rotary_store, again, slice(begin, begin + 7)), q[begin : begin + 7])
    assert all(torch.equal(a, b) for a, b in zip(again, ours, strict=True))


def test_wrong_operands_are_refused() -> None:
    h = randn(4, 64)
    with pytest.raises(EngineError, match="h is"):
        add_rms_norm(h.to(BF16), None, h[0], 1e-6)
    with pytest.raises(EngineError, match="must be even"):
        silu_mul(randn(2, 7).to(BF16))
