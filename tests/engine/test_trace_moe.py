"""Traces and self-tests of a model with experts: a fault in any op of such a layer is seen, and found where it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.model_cases import load_tiny, make_engine, requests

from batchgen.engine.self_test import self_test
from batchgen.engine.trace import Recorder, Trace, TracingRunner, first_difference
from batchgen.errors import EngineError
from batchgen.executor.start import open_weights
from batchgen.kernels import cpu
from batchgen.loader import LoadedModel
from batchgen.models.decoder import Decoder
from batchgen.models.op_names import op_names
from batchgen.models.packed import PackedWeights

FAR = 10**6
TARGET = requests()[9]
MANY = 40  # rows, which a step has in company alone
K = 4  # experts of a token

# The op of batchgen.kernels, what tells its launch in the layer with experts from those elsewhere, and its name in a
# self-test.
OPS: dict[str, tuple[str, Callable[..., bool], str]] = {
    "router linear": ("linear", lambda x, weight, *rest: weight.rows == 12, r"linear \(router, 12 x 128\)"),
    "choice of experts": ("route", lambda *args: True, "route"),
    "experts": ("experts", lambda *args: True, r"experts \(12 of 192 x 128\)"),
    "shared gate and up linear": (
        "linear_silu_mul",
        lambda x, weight: weight.rows == 384,
        r"linear_silu_mul \(shared gate and up, 384 x 128\)",
    ),
    "shared down linear": (
        "linear",
        lambda x, weight, *rest: weight.columns == 192,
        r"linear \(shared down, 128 x 192\)",
    ),
    "sum of experts": ("combine", lambda *args: True, "combine"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("trace"), "dots1")


def plant(monkeypatch: pytest.MonkeyPatch, role: str, when: Callable[[int], bool]) -> None:
    """The op of that role gives another last bit in each row whenever `when` says so of the number of tokens."""
    op, is_there, _ = OPS[role]
    right = getattr(cpu, op)

    def twin(*args: Any) -> Any:
        out = right(*args)
        tokens = len(args[1].rows) // K if op == "experts" else len(args[0])
        if is_there(*args) and when(tokens):
            (out[1] if op == "route" else out).view(torch.int16)[:, 0] ^= 1
        return out

    monkeypatch.setattr(cpu, op, twin)


def trace(model: LoadedModel, company: int, begin: Callable[[], None] = lambda: None, **how: Any) -> Trace:
    """Of TARGET among as many requests; alone for 0. `begin` is called once the engine has proven itself."""
    engine = make_engine(model, **how)
    recorder = Recorder(op_names(model.config))
    engine.runner = TracingRunner(engine.runner, recorder, TARGET)
    begin()
    list(engine.generate(requests(company) if company else [TARGET]))
    return recorder.trace


@pytest.mark.parametrize(
    "how", [{"max_num_seqs": 64}, {"max_num_seqs": 8, "max_num_batched_tokens": 7}, {"max_num_seqs": 5, "threads": 2}]
)
def test_company_cannot_be_seen(model: LoadedModel, how: dict[str, Any]) -> None:
    alone, crowded = trace(model, 0), trace(model, 24, **how)
    assert first_difference(alone, crowded, FAR) is None
    assert alone.digests.keys() == crowded.digests.keys()
    assert {alone.names[place.op].role for place in alone.digests} >= OPS.keys()


@pytest.mark.parametrize("role", OPS)
def test_a_fault_in_company_is_found_in_its_op(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    alone = trace(model, 0, prefix_cache=False, max_num_batched_tokens=MANY)
    crowded = trace(
        model, 24, lambda: plant(monkeypatch, role, lambda tokens: tokens > MANY), prefix_cache=False, num_blocks=400
    )
    place = first_difference(alone, crowded, FAR)
    assert place is not None
    assert (alone.names[place.op].layer, alone.names[place.op].role) == (1, role)


@pytest.fixture
def decoder(model: LoadedModel) -> Decoder:
    weights = open_weights(model.path)
    assert isinstance(weights, PackedWeights)
    return Decoder(weights.config, weights.tensors, model.max_model_len)


def test_both_kinds_of_layers_are_proven(decoder: Decoder) -> None:
    found = self_test(decoder, 256)
    assert (found.ops, found.max_rows) == (1 + 8 + 12 + 2, 256)


@pytest.mark.parametrize(
    ("role", "tokens"),
    [(role, tokens) for role in OPS for tokens in (1, 2, 7, 17, 33)]
    + [(role, 200) for role in OPS if OPS[role][0] not in ("route", "combine")],  # which have one path for any number
)
def test_an_op_that_depends_on_its_rows_at_one_size(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, role: str, tokens: int
) -> None:
    plant(monkeypatch, role, lambda found: found == tokens)
    with pytest.raises(EngineError, match=f"self-test: {OPS[role][2]}: a launch of {tokens} rows"):
        self_test(decoder, 200)


def test_experts_that_look_at_the_order_of_pairs(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.experts

    def twin(x: torch.Tensor, pairs: Any, *rest: Any) -> torch.Tensor:
        y = right(x, pairs, *rest)
        if len(pairs.rows) and int(pairs.rows[0]) > int(pairs.rows[-1]):
            y.view(torch.int32)[0, 0] ^= 1
        return y

    monkeypatch.setattr(cpu, "experts", twin)
    with pytest.raises(EngineError, match="a launch of pairs backwards gives other bits"):
        self_test(decoder, 64)


def test_a_large_model_of_two_kinds_goes_through_one_of_each(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is affordable, layer 1, the first with experts, is among those that are run in every way."""
    monkeypatch.setattr("batchgen.engine.canary.AFFORDABLE", 1)
    canary = self_test(decoder, 64).canary
    monkeypatch.setattr("batchgen.engine.canary.AFFORDABLE", 2**28)
    assert self_test(decoder, 64).canary == canary
    right = cpu.combine
    monkeypatch.setattr("batchgen.engine.canary.AFFORDABLE", 1)

    def twin(rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = right(rows, *rest)
        if len(rows) == 30:  # of a chunk of the canary; no proof of an op has as many
            out.view(torch.int32)[3, 5] ^= 1 << 20
        return out

    monkeypatch.setattr(cpu, "combine", twin)
    with pytest.raises(EngineError, match=r"the canary in chunks .*; layer 1, sum of experts, at position 4, is the"):
        self_test(decoder, 64)
