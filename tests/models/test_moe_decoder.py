"""A decoder with experts: where they are, and how often, is not seen; a rank without tokens serves the others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.bitwise import assert_bitwise
from support.forward import position_logits
from support.model_cases import ids, load_tiny

from batchgen import kernels
from batchgen.errors import ModelError
from batchgen.loader import LoadedModel
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights
from batchgen.parallel.eplb import Greedy
from batchgen.parallel.exchange import Arrived, LocalExchange
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import Placement, permuted

PROMPT = ids(45)


@pytest.fixture(scope="module", params=["qwen3_moe", "dots1"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("moe"), request.param)


def moe_layers(model: LoadedModel) -> list[int]:
    return [layer for layer in range(model.config.num_layers) if model.config.is_moe(layer)]


def make_decoder(model: LoadedModel, parallel: ExpertParallel | None = None) -> Decoder:
    held = None if parallel is None else {layer: parallel.slots(layer) for layer in moe_layers(model)}
    cache = model.path.parent / "cache"
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(model.path), cache, "tiny", held)
    return Decoder(model.config, weights.tensors, model.max_model_len, parallel=parallel)


class Restless(Greedy):
    """Every expert moves at every chance."""

    def again(self, load: NDArray[np.int64], now: Placement) -> Placement:
        """See Policy."""
        return permuted(now, int(load.sum()))


@pytest.mark.parametrize("redundant", [0, 1, 8])
def test_redundant_experts_and_their_moves_cannot_be_seen(model: LoadedModel, redundant: int) -> None:
    expected = position_logits(make_decoder(model), PROMPT, [])
    mesh = Mesh.alone(torch.device("cpu"))
    parallel = ExpertParallel(mesh, 12, moe_layers(model), redundant, 1, Restless())
    decoder = make_decoder(model, parallel)
    for cuts in ([], [1, 7, 33], list(range(1, 45))):
        assert_bitwise(position_logits(decoder, PROMPT, cuts), expected, f"{redundant} redundant, cuts {cuts}")
        decoder.end_of_step()
    assert parallel.moved > 20


def test_other_weights_than_the_slots_are_refused(model: LoadedModel) -> None:
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(model.path), model.path.parent / "cache", "tiny")
    parallel = ExpertParallel(Mesh.alone(torch.device("cpu")), 12, moe_layers(model), redundant=2)
    with pytest.raises(ModelError, match="have 12 experts, and this rank holds 14"):
        Decoder(model.config, weights.tensors, 64, parallel=parallel)


class Counting(LocalExchange):
    """An exchange that counts, and in which rows of another rank arrive."""

    def __init__(self, others: int) -> None:
        super().__init__()
        self.calls = list[str]()
        self._others = others

    def dispatch(self, x: torch.Tensor, experts: torch.Tensor) -> Arrived:
        self.calls.append(f"dispatch {len(x)}")
        self._own = len(x)
        strange = torch.full((self._others, x.shape[1]), 3.0, dtype=x.dtype)
        several = torch.zeros(self._others, experts.shape[1], dtype=torch.int32)
        return super().dispatch(torch.cat([strange, x]), torch.cat([several, experts]))

    def combine(self, y: torch.Tensor) -> torch.Tensor:
        self.calls.append("combine")
        return super().combine(y)[self._others :]


class OneExchange(ExpertParallel):
    """All layers meet in one exchange."""

    one: Counting

    def exchange(self, layer: int, *, padded: bool = False) -> Counting:
        return self.one


def test_rows_of_other_ranks_cannot_be_seen_and_an_idle_rank_serves_them(model: LoadedModel) -> None:
    expected = position_logits(make_decoder(model), PROMPT, [])
    decoder, parallel = make_decoder(model), OneExchange.alone(12)
    decoder.parallel = parallel
    layers = len(moe_layers(model))
    for others in (0, 1, 50):
        parallel.one = Counting(others)
        assert_bitwise(position_logits(decoder, PROMPT, []), expected, f"{others} rows of others")
        assert parallel.one.calls == ["dispatch 45", "combine"] * layers
        parallel.one = Counting(others)
        with kernels.watch(lambda op, outputs: pytest.fail(f"{op} was told of, and its rows are of no token")):
            decoder.idle()
        assert parallel.one.calls == ["dispatch 0", "combine"] * layers


def test_a_dense_model_has_nothing_to_serve(tiny_llama: Path, tmp_path: Path) -> None:
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(tiny_llama), tmp_path, "tiny")
    decoder = Decoder(weights.config, weights.tensors, 64)
    decoder.idle()
    decoder.end_of_step()
    assert decoder.parallel is None


@pytest.mark.parametrize(("changes", "message"), [({"moe_intermediate_size": 80}, "moe_intermediate_size is 80")])
def test_sizes_that_the_kernels_do_not_take(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    model = load_tiny(tmp_path, "qwen3_moe", **changes)
    with pytest.raises(ModelError, match=message):
        make_decoder(model)


def test_the_width_of_dense_layers_counts_only_where_there_are_any(tmp_path: Path) -> None:
    make_decoder(load_tiny(tmp_path / "none", "qwen3_moe", intermediate_size=50))
    with pytest.raises(ModelError, match="intermediate_size is 50"):
        make_decoder(load_tiny(tmp_path / "one", "dots1", intermediate_size=50))
