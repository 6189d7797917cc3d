"""portable/1 on a GPU: router, experts and their sum have the bits of the CPU, and so has a decoder with experts."""

from pathlib import Path

import pytest
import torch
from support.bitwise import assert_bitwise
from support.model_cases import load_tiny
from support.on_gpu import GPU, nan_as_one, up

from batchgen import kernels
from batchgen.engine.self_test import self_test
from batchgen.errors import EngineError
from batchgen.kernels import PackedExperts, Pairs, Routing, golden
from batchgen.kernels.packing import pack_experts
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights

pytestmark = GPU
ROUTINGS = (
    Routing(1, "softmax", True, 1.0),
    Routing(8, "softmax", True, 1.0),
    Routing(3, "softmax", False, 1.0),
    Routing(4, "sigmoid", True, 2.5),
    Routing(2, "sigmoid", False, 1.5),
)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_experts(slots: int, H: int, inner: int) -> tuple[PackedExperts, PackedExperts]:
    gate_up, down = randn(slots, 2 * inner, H, seed=1) / H**0.5, randn(slots, H, inner, seed=2) / inner**0.5
    return pack_experts(gate_up.to(torch.bfloat16)), pack_experts(down.to(torch.bfloat16))


def some_pairs(T: int, k: int, slots: int) -> Pairs:
    """Of T tokens; the last slot has no pair, and slot 0 has one."""
    chosen = torch.stack([torch.randperm(slots - 2, generator=torch.Generator().manual_seed(t))[:k] for t in range(T)])
    chosen = chosen + 1
    chosen[T // 2, 0] = 0
    return Pairs(torch.arange(T, dtype=torch.int32).repeat_interleave(k), chosen.reshape(-1).to(torch.int32))


def test_the_ops_have_their_digest() -> None:
    assert golden.experts_digest(device="cuda") == golden.GOLDEN_EXPERTS["portable/1"]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("E", [8, 15, 16, 33, 128, 300])
def test_route(routing: Routing, E: int) -> None:
    """Random rows, rows of equal values, zeros of both signs, what is huge or no number, in every place."""
    logits = randn(300, E) * 3
    logits[10:40] = logits[10:40].round()
    logits[40:44] = 0
    logits[41, ::2] = -0.0
    logits[44], logits[45, 1], logits[46, 2], logits[47] = 1e30, float("-inf"), float("inf"), -200
    logits[48], logits[49, 0], logits[50, E - 1], logits[51, 3:5] = (float("nan"),) * 4
    bias = randn(E, seed=1).round() if routing.scoring == "sigmoid" else None
    expected = kernels.route(logits, bias, routing)
    found = kernels.route(up(logits), None if bias is None else up(bias), routing)
    assert_bitwise(found[0], expected[0])
    assert_bitwise(nan_as_one(found[1]), nan_as_one(expected[1]))
    for T in (0, 1, 2, 31, 33):
        few = kernels.route(up(logits)[:T], None if bias is None else up(bias), routing)
        assert_bitwise(few[0], found[0][:T], f"T = {T}")


@pytest.mark.parametrize(
    ("T", "k", "slots", "H", "inner"),
    [(1, 1, 3, 16, 32), (9, 3, 7, 48, 96), (70, 4, 12, 128, 96), (300, 8, 40, 272, 320), (1100, 2, 5, 64, 288)],
)
def test_experts(T: int, k: int, slots: int, H: int, inner: int) -> None:
    x, experts, pairs = randn(T, H).to(torch.bfloat16), some_experts(slots, H, inner), some_pairs(T, k, slots)
    expected = kernels.experts(x, pairs, *experts)
    there = up(experts[0]), up(experts[1])
    ours = kernels.experts(up(x), up(pairs), *there)
    assert_bitwise(ours, expected)
    assert_bitwise(kernels.experts(up(x), up(pairs), *there), ours, "launched twice")
    order = torch.randperm(T * k, generator=torch.Generator().manual_seed(4))
    shuffled = Pairs(pairs.rows[order], pairs.slots[order])
    assert_bitwise(kernels.experts(up(x), up(shuffled), *there), expected[order], "in another order")


def test_a_pair_is_the_same_in_any_number_of_tokens() -> None:
    T, k = 150, 3
    x, pairs = up(randn(T, 272).to(torch.bfloat16)), up(some_pairs(T, k, 6))
    experts = some_experts(6, 272, 64)
    there = up(experts[0]), up(experts[1])
    whole = kernels.experts(x, pairs, *there)
    for M in range(T + 1):
        first = kernels.experts(x[:M], Pairs(pairs.rows[: M * k], pairs.slots[: M * k]), *there)
        assert_bitwise(first, whole[: M * k], f"first {M} tokens")


@pytest.mark.parametrize("with_shared", [False, True])
@pytest.mark.parametrize(("T", "k", "H"), [(1, 1, 16), (70, 4, 48), (33, 8, 2048)])
def test_combine(with_shared: bool, T: int, k: int, H: int) -> None:
    rows, weights, residual = randn(T, k, H), randn(T, k, seed=1), randn(T, H, seed=2)
    rows[0, 0, 3], residual[0, 4] = float("nan"), 1e-42
    shared = randn(T, H, seed=3) if with_shared else None
    expected = kernels.combine(rows, weights, shared, residual)
    found = kernels.combine(up(rows), up(weights), None if shared is None else up(shared), up(residual))
    assert_bitwise(nan_as_one(found), nan_as_one(expected))


@pytest.mark.parametrize("family", ["qwen3_moe", "dots1"])
def test_a_decoder_says_what_it_says_on_a_cpu(tmp_path: Path, family: str) -> None:
    """The canary is of all its logits and of draws from them; on the way each op is proven here."""
    model = load_tiny(tmp_path, family)
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(model.path), tmp_path / "cache", "tiny")
    decoders = [Decoder(model.config, weights.tensors, 160, device=torch.device(name)) for name in ("cpu", "cuda:0")]
    canaries = {self_test(decoder, 256).canary for decoder in decoders}
    assert len(canaries) == 1


def test_wrong_operands_are_refused() -> None:
    x, (gate_up, down) = up(torch.zeros(2, 32, dtype=torch.bfloat16)), some_experts(3, 32, 32)
    one = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(EngineError, match=r"on cuda:0, got .* on cpu"):
        kernels.experts(x, Pairs(one, one), gate_up, up(down))
    with pytest.raises(EngineError, match="do not fit rows of 32"):
        kernels.experts(x, Pairs(one, one), up(some_experts(3, 64, 32)[0]), up(down))
    with pytest.raises(EngineError, match="native-amx"):
        kernels.experts(x, Pairs(one, one), up(gate_up)._replace(native=True), up(down)._replace(native=True))
    with pytest.raises(EngineError, match="33 experts of 64"):
        kernels.route(torch.zeros(1, 64, device="cuda"), None, Routing(33, "softmax", True, 1.0))
