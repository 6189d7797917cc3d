"""Experts in the decoder of native-sm90/1, on a CPU over the twins: padding, placements, ranks without tokens."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.model_cases import MAX_MODEL_LEN, load_tiny
from support.native_twins import over_twins
from support.ranks_exchange import Shuffled

from batchgen.engine.canary import LENGTH, NUM_BLOCKS, Span, step_of
from batchgen.errors import ModelError
from batchgen.kernels.device import CPU
from batchgen.kernels.routing import Pairs
from batchgen.kernels.step_shape import StepShape
from batchgen.loader import LoadedModel
from batchgen.models.any_decoder import AnyDecoder
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.device_weights import DeviceWeights
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh

EXPERTS = 12


@pytest.fixture(scope="module")
def native() -> Iterator[Callable[..., AnyDecoder]]:
    with over_twins() as decoder:
        yield decoder


@pytest.fixture(scope="module", params=["qwen3_moe", "dots1"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("native"), request.param)


@pytest.fixture(scope="module")
def weights(model: LoadedModel) -> DeviceWeights:
    return DeviceWeights.load(open_checkpoint(model.path), CPU)


def prompt(decoder: AnyDecoder, padding: int = 0) -> torch.Tensor:
    """Logits of the canary's prompt, one token a sequence with so many rows of padding in front of the last."""
    cache = decoder.new_cache(NUM_BLOCKS)
    shape = StepShape(0, LENGTH - 1, LENGTH)
    step = step_of([Span(0, 0, LENGTH - 1)], decoder.config.vocab_size)._replace(shape=shape)
    before = decoder.forward(step, cache)
    last = step_of([Span(0, LENGTH - 1, LENGTH)], decoder.config.vocab_size)
    count = padding + 1

    def padded(x: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat([x.new_full((padding, *x.shape[1:]), value), x])

    last = last._replace(
        token_ids=padded(last.token_ids, 0),
        positions=padded(last.positions, -1),
        slots=padded(last.slots, -1),
        query_start=torch.arange(count + 1, dtype=torch.int32),
        block_tables=padded(last.block_tables, 0),
        sample_rows=torch.arange(count),
        shape=StepShape(count, 1, LENGTH, is_padded=True),
    )
    return torch.cat([before, decoder.forward(last, cache)[padding:]])


def test_padding_goes_to_no_expert(
    model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = native(model.config, weights.tensors, MAX_MODEL_LEN, CPU)
    expected = prompt(decoder)
    ops, asked = sys.modules["batchgen.kernels.triton"], []
    honest = ops.experts

    def experts(x: torch.Tensor, pairs: Pairs, *weights: torch.Tensor) -> torch.Tensor:
        asked.append(pairs.slots)
        y: torch.Tensor = honest(x, pairs, *weights)
        return y

    monkeypatch.setattr(ops, "experts", experts)
    assert torch.equal(prompt(decoder, padding=3), expected)
    slots = asked[-1].view(4, -1)
    assert (slots[:3] == -1).all()
    assert (slots[3] >= 0).all()


def test_where_the_experts_are_cannot_be_seen(
    model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder]
) -> None:
    layers = [i for i in range(model.config.num_layers) if model.config.is_moe(i)]
    expected = prompt(native(model.config, weights.tensors, MAX_MODEL_LEN, CPU))
    parallel = ExpertParallel(Mesh.alone(CPU), EXPERTS, layers, redundant=3, interval=1, policy=Shuffled(5))
    held = {i: parallel.slots(i) for i in layers}
    elsewhere = DeviceWeights.load(open_checkpoint(model.path), CPU, held)
    assert elsewhere.weights_digest == weights.weights_digest
    assert len(elsewhere[f"layers.{layers[-1]}.experts_down"]) == EXPERTS + 3
    decoder = native(model.config, elsewhere.tensors, MAX_MODEL_LEN, CPU, parallel)
    assert torch.equal(prompt(decoder), expected)
    decoder.end_of_step()
    assert parallel.moved > 0
    assert torch.equal(prompt(decoder, padding=2), expected)
    with torch.no_grad():  # counter: the experts of one layer in another order
        elsewhere[f"layers.{layers[-1]}.experts_down"].copy_(elsewhere[f"layers.{layers[-1]}.experts_down"].flip(0))
    assert not torch.equal(prompt(decoder), expected)


def test_a_rank_without_tokens_serves(
    model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder]
) -> None:
    asked: list[int] = []

    class Counting(ExpertParallel):
        def exchange(self, layer: int, *, padded: bool = False):  # type: ignore[no-untyped-def]
            asked.append(layer)
            return super().exchange(layer, padded=padded)

    decoder = native(model.config, weights.tensors, MAX_MODEL_LEN, CPU, Counting.alone(EXPERTS))
    decoder.idle()
    assert asked == [i for i in range(model.config.num_layers) if model.config.is_moe(i)]


def test_weights_of_other_slots_are_refused(
    model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder]
) -> None:
    layers = [i for i in range(model.config.num_layers) if model.config.is_moe(i)]
    parallel = ExpertParallel(Mesh.alone(CPU), EXPERTS, layers, redundant=1)
    with pytest.raises(ModelError, match="have 12 experts, and this rank holds 13"):
        native(model.config, weights.tensors, MAX_MODEL_LEN, CPU, parallel)


def test_seeded_experts_are_the_same_on_whatever_rank(model: LoadedModel) -> None:
    every = DeviceWeights.seeded(model.config, CPU)
    some = DeviceWeights.seeded(model.config, CPU, held=dict.fromkeys(range(model.config.num_layers), (7, 2, 7)))
    last = f"layers.{model.config.num_layers - 1}."
    for name in ("experts_gate_up", "experts_down"):
        assert torch.equal(some[last + name], every[last + name][[7, 2, 7]])
    assert torch.equal(some["lm_head"], every["lm_head"])


def test_sizes_that_the_kernels_do_not_take(tmp_path: Path, native: Callable[..., AnyDecoder]) -> None:
    model = load_tiny(tmp_path, "qwen3_moe", moe_intermediate_size=72)
    tensors = DeviceWeights.load(open_checkpoint(model.path), CPU).tensors
    with pytest.raises(ModelError, match="moe_intermediate_size is 72; the kernels take multiples of 16"):
        native(model.config, tensors, MAX_MODEL_LEN, CPU)
    assert model.config.moe is not None
    many = replace(model.config.moe, num_experts=64, routing=replace(model.config.moe.routing, top_k=33))
    with pytest.raises(ModelError, match="33 experts a token"):
        native(replace(model.config, moe=many), tensors, MAX_MODEL_LEN, CPU)
