"""The decoder of native-sm90/1 on a CPU, its ops stood in for by their twins: it means what the portable one means."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.model_cases import MAX_MODEL_LEN, load_tiny
from support.native_twins import over_twins

from batchgen.engine.canary import LENGTH, NUM_BLOCKS, Span, step_of
from batchgen.engine.trace import Recorder
from batchgen.errors import ModelError
from batchgen.kernels.device import CPU
from batchgen.kernels.step_shape import StepShape
from batchgen.loader import LoadedModel
from batchgen.models.any_decoder import AnyDecoder
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.op_names import op_names
from batchgen.models.packed import PackedWeights

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "dots1")


@pytest.fixture(scope="module")
def native() -> Iterator[Callable[..., AnyDecoder]]:
    with over_twins() as decoder:
        yield decoder


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("native"), request.param)


@pytest.fixture(scope="module")
def weights(model: LoadedModel) -> DeviceWeights:
    return DeviceWeights.load(open_checkpoint(model.path), CPU)


@pytest.fixture(scope="module")
def packed(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> PackedWeights:
    folder = tmp_path_factory.mktemp("packed")
    return PackedWeights.open_or_build(lambda: open_checkpoint(model.path), folder, "tiny")


def logits(decoder: AnyDecoder, *steps: list[Span]) -> torch.Tensor:
    """Of every position of the canary's prompt, computed in these steps."""
    cache, parts = decoder.new_cache(NUM_BLOCKS), []
    for spans in steps:
        lengths = [span.stop - span.start for span in spans]
        shape = StepShape(lengths.count(1), max(lengths), LENGTH)
        parts.append(decoder.forward(step_of(spans, decoder.config.vocab_size)._replace(shape=shape), cache).clone())
    return torch.cat(parts)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative, of the rows but for a tenth: where two experts are nearly as good, the last bit may choose."""
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).quantile(0.9))


def test_it_means_what_the_portable_one_means(
    model: LoadedModel, weights: DeviceWeights, packed: PackedWeights, native: Callable[..., AnyDecoder]
) -> None:
    portable = Decoder(model.config, packed.tensors, MAX_MODEL_LEN)
    decoder = native(model.config, weights.tensors, MAX_MODEL_LEN, CPU)
    expected = logits(portable, [Span(0, 0, LENGTH)])
    near = 0.05 if model.config.moe else 0.03
    assert distance(logits(decoder, [Span(0, 0, LENGTH)]), expected) < near
    assert distance(logits(decoder, [Span(0, 0, 31)], [Span(0, 31, LENGTH)]), expected) < near
    others = logits(decoder, [Span(1, 0, LENGTH)])
    assert distance(others, expected) > 0.5, "the measure must be able to fail"


def test_the_digest_is_of_the_weights_alone(weights: DeviceWeights, packed: PackedWeights) -> None:
    assert weights.weights_digest == packed.weights_digest
    assert weights.tensors.keys() == packed.tensors.keys()


def test_random_weights_fit(model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder]) -> None:
    made = DeviceWeights.seeded(model.config, CPU)
    assert {name: (t.shape, t.dtype) for name, t in made.tensors.items()} == {
        name: (t.shape, t.dtype) for name, t in weights.tensors.items()
    }
    again = DeviceWeights.seeded(model.config, CPU)
    assert all(torch.equal(made[name], again[name]) for name in made.tensors)
    found = logits(native(model.config, made.tensors, MAX_MODEL_LEN, CPU), [Span(0, 0, LENGTH)])
    assert found.isfinite().all()
    assert found.std() > 0.5, "on flat logits nothing shows"


def test_its_ops_are_those_of_the_names(
    model: LoadedModel, weights: DeviceWeights, native: Callable[..., AnyDecoder]
) -> None:
    decoder = native(model.config, weights.tensors, MAX_MODEL_LEN, CPU)
    names = op_names(model.config)
    recorder = Recorder(names)
    with recorder.step([(i, i) for i in range(LENGTH)], [(i, i) for i in range(LENGTH)]):
        logits(decoder, [Span(0, 0, LENGTH)])
    assert {place.op for place in recorder.trace.digests} == set(range(len(names) - 1))


def test_sizes_that_the_kernels_do_not_take(tmp_path: Path, native: Callable[..., AnyDecoder]) -> None:
    model = load_tiny(tmp_path, intermediate_size=328)
    tensors = DeviceWeights.load(open_checkpoint(model.path), CPU).tensors
    with pytest.raises(ModelError, match="intermediate_size is 328; the kernels take multiples of 16"):
        native(model.config, tensors, MAX_MODEL_LEN, CPU)
