"""Packed weights of models with experts: each expert at its slot, the router's bias exact, parts that are checked."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.bitwise import assert_bitwise
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen.errors import ModelError
from batchgen.kernels.packing import PackedExperts, PackedWeight, unpack
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.files import source_digest
from batchgen.models.fused import Held
from batchgen.models.packed import PackedWeights
from batchgen.models.weights import Checkpoint

Load = Callable[..., PackedWeights]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model", "dots1")


def load(model: Path, cache: Path, held: Held | None = None, *, cached: bool = False) -> PackedWeights:
    """`cached`: fails if the checkpoint is opened."""

    def open_model() -> Checkpoint:
        assert not cached, "the cache was not used"
        return open_checkpoint(model)

    return PackedWeights.open_or_build(open_model, cache, source_digest(model), held)


def test_what_is_packed(model: Path, tmp_path: Path) -> None:
    packed, weights = load(model, tmp_path / "cache"), tiny_weights(tiny_config("dots1"))
    assert {name for name in packed.tensors if name.startswith("layers.0")} == {
        f"layers.0.{name}" for name in ("input_norm", "qkv", "q_norm", "k_norm", "o", "post_norm", "gate_up", "down")
    }
    at, mlp = "layers.1.", "model.layers.1.mlp."
    feed_forward = ("router", "router_bias", "experts_gate_up", "experts_down", "shared_gate_up", "shared_down")
    assert {at + name for name in feed_forward} <= packed.tensors.keys()
    assert not {at + "gate_up", at + "down"} & packed.tensors.keys()
    assert_bitwise(unpack(PackedWeight(packed[at + "router"], 12)), weights[mlp + "gate.weight"])
    experts = PackedExperts(packed[at + "experts_gate_up"], 192), PackedExperts(packed[at + "experts_down"], 128)
    for j in range(12):
        parts = [weights[f"{mlp}experts.{j}.{name}_proj.weight"] for name in ("gate", "up", "down")]
        assert_bitwise(unpack(experts[0].of(j)), torch.cat(parts[:2]), f"expert {j}")
        assert_bitwise(unpack(experts[1].of(j)), parts[2], f"expert {j}")
    shared = [weights[f"{mlp}shared_experts.{name}_proj.weight"] for name in ("gate", "up")]
    assert_bitwise(unpack(PackedWeight(packed[at + "shared_gate_up"], 384)), torch.cat(shared))


def test_the_bias_of_a_router_is_never_rounded(model: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    bias = tiny_weights(tiny_config("dots1"))[name]
    assert bias.dtype == torch.float32
    assert not torch.equal(bias, bias.to(torch.bfloat16).float()), "the case must be one that rounding would change"
    whole = load(model, tmp_path / "cache")
    assert_bitwise(whole["layers.1.router_bias"], bias)
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(torch.int32)[3] ^= 1
    save_file(tensors, file)
    other = load(model, tmp_path / "cache")
    assert other.weights_digest != whole.weights_digest, "its last bit is in the digest"
    tensors[name][3] = float("nan")
    save_file(tensors, file)
    with pytest.raises(ModelError, match="e_score_correction_bias holds NaN"):
        load(model, tmp_path / "cache")


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("held", [(0,), (11, 3, 3, 0), tuple(range(12)), (5, 6, 7)])
def test_a_rank_reads_the_experts_it_holds(model: Path, tmp_path: Path, held: tuple[int, ...], cached: bool) -> None:
    cache = tmp_path / "cache"
    whole = load(model, cache) if cached else load(model, tmp_path / "other")
    part = load(model, cache, {1: held}, cached=cached)
    assert part.weights_digest == whole.weights_digest
    for name, tensor in whole.tensors.items():
        expected = tensor[list(held)] if "experts_" in name else tensor
        assert_bitwise(part[name], expected, name)
        assert part[name].data_ptr() % 64 == 0


def test_a_rank_whose_cache_cannot_be_written_holds_its_experts_all_the_same(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        part = load(model, tmp_path / "file" / "cache", {1: (4, 2)})
    whole = load(model, tmp_path / "cache")
    assert_bitwise(part["layers.1.experts_down"], whole["layers.1.experts_down"][[4, 2]])
    assert part.weights_digest == whole.weights_digest == open_checkpoint(model).weights_digest()


def test_a_damaged_expert_is_found_by_whoever_reads_it(model: Path, tmp_path: Path) -> None:
    """And by nobody else: each has a digest of its own."""
    cache = tmp_path / "cache"
    whole = load(model, cache)
    (file,) = cache.glob("*.packed")
    good = file.read_bytes()
    at = good.find(whole["layers.1.experts_down"][7].view(torch.uint8).numpy().tobytes())
    assert at > 0
    file.write_bytes(good[: at + 100] + bytes([good[at + 100] ^ 1]) + good[at + 101 :])
    load(model, cache, {1: (6, 8)}, cached=True)
    with pytest.warns(
        RuntimeWarning, match=r"does not hold what was written: layers\.1\.experts_down; building it again"
    ):
        again = load(model, cache, {1: (6, 7)})
    assert_bitwise(again["layers.1.experts_down"], whole["layers.1.experts_down"][[6, 7]])
    assert file.read_bytes() == good


def test_other_experts_may_come_in_their_place(model: Path, tmp_path: Path) -> None:
    """What is written to the tensors in memory never reaches the file."""
    first = load(model, tmp_path / "cache", {1: (1, 2)})
    kept = first["layers.1.experts_down"].clone()
    first["layers.1.experts_down"][0] = first["layers.1.experts_down"][1].clone()
    again = load(model, tmp_path / "cache", {1: (1, 2)}, cached=True)
    assert_bitwise(again["layers.1.experts_down"], kept)
