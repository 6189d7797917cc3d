"""The experts of each token are those that its router chose: by its twin, over the whole text at once, in any company.

Guards against positions that a preemption or a prefix cache leaves out, experts of a neighbour, and tokens that were
taken back. More ranks and other placements are in test_expert_parallel.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.forward import open_decoder, position_logits
from support.model_cases import as_bits, ask, completions, ids, load_tiny, long_requests, make_engine, requests

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.engine.routes import Routes, Span, recording
from batchgen.engine.scoring import requests_of
from batchgen.errors import EngineError
from batchgen.kernels.reference import moe as twins
from batchgen.loader import LoadedModel
from batchgen.models.decoder import Decoder
from batchgen.records import Completion, Request, SamplingParams

LIMITS: list[dict[str, Any]] = [
    {"max_num_seqs": 3, "max_num_batched_tokens": 17, "num_blocks": 7},
    {"max_num_batched_tokens": 5, "prefix_cache_blocks": 0},
]


@pytest.fixture(scope="module", params=["qwen3_moe", "dots1"])
def moe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("routed"), request.param)


@pytest.fixture(scope="module")
def moe_engine(moe: LoadedModel) -> Engine:
    return make_engine(moe)


@pytest.fixture(scope="module")
def moe_decoder(moe: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_decoder(moe, tmp_path_factory.mktemp("packed"))


def asked(routed: bool = True) -> list[Request]:
    wanted = [*requests(14), *long_requests()[:5]]
    return [replace(each, params=replace(each.params, routed_experts=routed)) for each in wanted]


@pytest.fixture(scope="module")
def routed(moe_engine: Engine) -> dict[str, Completion]:
    return completions(moe_engine, asked())


def experts_of(completion: Completion) -> NDArray[Any]:
    """[tokens, layers, k]"""
    assert completion.routed_experts is not None
    assert completion.routed_experts_shape is not None
    return np.frombuffer(completion.routed_experts, completion.routed_experts_dtype).reshape(
        completion.routed_experts_shape
    )


def by_the_twin(decoder: Decoder, token_ids: tuple[int, ...]) -> NDArray[Any]:
    """One forward of the whole text, routed by the reference; zeros in dense layers."""
    config, chosen = decoder.config, list[torch.Tensor]()

    def route(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        experts, weights = twins.route(*args)
        chosen.append(experts)
        return experts, weights

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "route", route)
        position_logits(decoder, token_ids, [])
    layers = [layer for layer in range(config.num_layers) if config.is_moe(layer)]
    expected = np.zeros((len(token_ids), config.num_layers, 4), np.int32)
    for layer, experts in zip(layers, chosen, strict=True):
        expected[:, layer] = experts
    return expected


def test_by_the_twin(moe_decoder: Decoder, routed: dict[str, Completion]) -> None:
    for request in asked()[::3]:
        done = routed[request.row_key]
        text = (*request.prompt_token_ids, *done.token_ids)
        assert done.routed_experts_dtype == "uint8"
        np.testing.assert_array_equal(experts_of(done), by_the_twin(moe_decoder, text[:-1]), request.row_key)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_company_is_not_seen(moe_engine: Engine, routed: dict[str, Completion], limits: dict[str, Any]) -> None:
    for key, completion in completions(moe_engine, asked(), **limits).items():
        assert as_bits(completion) == as_bits(routed[key]), key


def test_nothing_else_changes(moe_engine: Engine, routed: dict[str, Completion]) -> None:
    none: dict[str, Any] = dict.fromkeys(("routed_experts", "routed_experts_shape", "routed_experts_dtype"))
    for key, plain in completions(moe_engine, asked(False)).items():
        assert as_bits(replace(routed[key], **none)) == as_bits(plain), key


def test_a_warm_cache_and_mates_that_want_none(moe_engine: Engine) -> None:
    """Its own prompt is known from before, from a mate and from itself: all of it is computed again."""
    params = SamplingParams(temperature=1.1, max_tokens=5, ignore_eos=True, routed_experts=True)
    mate = ask("mate", ids(70), replace(params, routed_experts=False))
    wanted = [ask("a", ids(70), params), mate, ask("b", ids(70), params)]
    cold = completions(moe_engine, wanted[:1])["a"]
    assert experts_of(cold).shape[0] == 74
    warm = {done.row_key: done for done in moe_engine.generate(wanted)}
    assert as_bits(warm["a"]) == as_bits(cold)
    assert (experts_of(warm["b"])[:70] == experts_of(cold)[:70]).all()
    assert moe_engine.stats.cached_tokens > 0, "the mate does use it"


def test_of_a_given_continuation(moe_engine: Engine, routed: dict[str, Completion]) -> None:
    """The tokens are the same, so the experts are."""
    some = [request for request in asked() if len(routed[request.row_key].token_ids) > 3][:4]
    pairs = [(request.prompt_token_ids, routed[request.row_key].token_ids) for request in some]
    given = list(requests_of(pairs, SamplingParams(temperature=0, logprobs=1, routed_experts=True)))
    done = completions(moe_engine, given, max_num_batched_tokens=9)
    for number, request in enumerate(some):
        assert (experts_of(done[str(number)]) == experts_of(routed[request.row_key])).all()


def test_more_than_256_experts_take_two_bytes(tmp_path: Path) -> None:
    model = load_tiny(tmp_path, "qwen3_moe", num_experts=300, num_hidden_layers=1, moe_intermediate_size=32)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, routed_experts=True)
    done = completions(make_engine(model), [ask("a", ids(60), params)])["a"]
    assert (done.routed_experts_dtype, done.routed_experts_shape) == ("uint16", (62, 1, 4))
    assert experts_of(done).max() > 255
    decoder = open_decoder(model, tmp_path / "packed")
    assert (experts_of(done) == by_the_twin(decoder, (*ids(60), *done.token_ids[:-1]))).all()


@pytest.mark.parametrize(("num_experts", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_every_id_fits(moe: LoadedModel, num_experts: int, dtype: str) -> None:
    assert moe.config.moe is not None
    config = replace(moe.config, moe=replace(moe.config.moe, num_experts=num_experts))
    layers = [layer for layer in range(config.num_layers) if config.is_moe(layer)]
    chosen, routes = torch.tensor([[0, 1, 2, num_experts - 1]], dtype=torch.int32), Routes()
    with recording([Span(routes, 0, 1)], config):
        for _ in layers:
            kernels.told("route", chosen, {"experts": chosen})
    found = routes.first(1)
    assert found.dtype == dtype
    assert (found[:, layers] == chosen.numpy()).all()


def test_a_dense_model_has_none(tmp_path: Path) -> None:
    engine = make_engine(load_tiny(tmp_path))
    with pytest.raises(EngineError, match="routed_experts: the model has no experts"):
        completions(engine, [ask("a", ids(5), SamplingParams(routed_experts=True))])


def test_counter_positions_that_are_left_out_are_caught(
    moe_engine: Engine, routed: dict[str, Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks after the first, taken a position too late."""
    real = Routes.add

    def late(self: Routes, start: int, experts: NDArray[Any]) -> None:
        real(self, start, np.roll(experts, 1, axis=0) if start else experts)

    monkeypatch.setattr(Routes, "add", late)
    with pytest.raises(AssertionError):
        test_company_is_not_seen(moe_engine, routed, LIMITS[0])
