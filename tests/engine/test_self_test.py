"""The proof at a start: no fault that hangs on rows, launches or chunks gets past it; the canary is of the model."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_cases import MAX_MODEL_LEN, load_tiny, make_engine
from support.tiny_models import FAMILIES

from batchgen.engine import canary
from batchgen.engine.canary import LENGTH, POSITIONS, prompt_ids
from batchgen.engine.self_test import SelfTest, self_test
from batchgen.errors import EngineError
from batchgen.executor.start import open_weights
from batchgen.kernels import cpu
from batchgen.kernels.cpu.native import library
from batchgen.loader import LoadedModel
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights

# Of the tiny Llama with seed 0. A change of these is a change of the profile's bits, or of the canary's own definition.
PINNED = "73c342c5e5d8dbd19946998cf73e7ef95cd525ac8adaf97830c544fa24053b1b"
SETS = library().instruction_sets()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("self_test"))


@pytest.fixture(scope="module")
def weights(model: LoadedModel) -> PackedWeights:
    weights = open_weights(model.path)
    assert isinstance(weights, PackedWeights)
    return weights


@pytest.fixture
def decoder(weights: PackedWeights) -> Iterator[Decoder]:
    yield make_decoder(weights)
    library().use(SETS[-1])
    library().set_threads(1)


def make_decoder(
    weights: PackedWeights, changed: dict[str, torch.Tensor] | None = None, positions: int = MAX_MODEL_LEN
) -> Decoder:
    return Decoder(weights.config, {**weights.tensors, **(changed or {})}, positions)


def plant(monkeypatch: pytest.MonkeyPatch, op: str, when: Callable[..., bool]) -> None:
    """The kernel `op` gives another last bit in its last element whenever `when` says so of its arguments."""
    right = getattr(cpu, op)

    def twin(*args: Any, **options: Any) -> Any:
        out = right(*args, **options)
        if when(*args):
            if op == "sample":
                out.token[-1] ^= 1
            else:
                out.view(torch.int16)[(-1,) * out.dim()] ^= 1
        return out

    monkeypatch.setattr(cpu, op, twin)


def every_second() -> Callable[..., bool]:
    launches = count()
    return lambda *args: next(launches) % 2 == 1


def test_what_was_proven_is_told(decoder: Decoder) -> None:
    found = self_test(decoder, 256)
    assert isinstance(found, SelfTest)
    assert (found.ops, found.max_rows, found.canary) == (11, 256, PINNED)
    assert found.comparisons > 100
    assert found.to_json().keys() == {"canary", "ops", "comparisons", "max_rows", "seconds"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_proven(tmp_path: Path, family: str) -> None:
    model = load_tiny(tmp_path, family)
    engine = make_engine(model)
    assert engine.about["self_test"]["canary"] == engine.fingerprint["canary"]  # type: ignore[index]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16, 17, 33, 64, 200])
@pytest.mark.parametrize("op", ["linear", "linear_silu_mul"])
def test_a_linear_that_depends_on_its_rows_at_one_size(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, op: str, rows: int
) -> None:
    columns = decoder.config.intermediate_size if op == "linear" else decoder.config.hidden_size
    plant(monkeypatch, op, lambda x, weight, *rest: len(x) == rows and weight.columns == columns)
    with pytest.raises(EngineError) as refused:
        self_test(decoder, 200)
    name = "linear (down, 128 x 320)" if op == "linear" else "linear_silu_mul (gate and up, 640 x 128)"
    assert name in refused.value.message
    assert f"launch of {rows if rows != 64 else 1} rows" in refused.value.message


@pytest.mark.parametrize(
    "op", ["embedding", "rms_norm", "linear", "rotary_store", "attention", "linear_silu_mul", "sample"]
)
def test_an_op_that_differs_on_its_second_launch(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    plant(monkeypatch, op, every_second())
    with pytest.raises(EngineError, match=rf"self-test: {op}\b.* a second launch gives other bits than the first"):
        self_test(decoder, 64)


def test_keys_that_differ_on_their_second_launch(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rotary_store writes is an output of it, as is what it returns."""
    right, second = cpu.rotary_store, every_second()

    def twin(*args: Any) -> torch.Tensor:
        q = right(*args)
        if second():
            args[-1][0].view(torch.int16)[3, -1, -1, 5, -1] ^= 1
        return q

    monkeypatch.setattr(cpu, "rotary_store", twin)
    with pytest.raises(EngineError, match="rotary_store: a second launch"):
        self_test(decoder, 64)


def test_keys_that_are_not_written(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary's ways share blocks: what an earlier one wrote must not stand in for what a later one does not."""
    right, layer = cpu.rotary_store, count()

    def twin(*args: Any) -> torch.Tensor:
        values = args[-1][1]
        kept = values.clone()
        q = right(*args)
        if len(q) == 1 and next(layer) >= 3:  # the first three single rows are those of the ops' proof
            values.copy_(kept)
        return q

    monkeypatch.setattr(cpu, "rotary_store", twin)
    with pytest.raises(EngineError, match="the canary in chunks"):
        self_test(decoder, 64)


@pytest.mark.parametrize("start", [1, 31, 33])
def test_attention_that_differs_by_chunk(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    plant(monkeypatch, "attention", lambda q, cache, tables, query_start, positions: int(positions[0]) == start)
    with pytest.raises(EngineError, match=f"self-test: attention: a launch of .* rows, from row {start}, gives other"):
        self_test(decoder, 64)


def test_a_fault_of_a_later_layer_is_the_canary_s(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    at = decoder.layers[1].attention.out.data.data_ptr()
    plant(monkeypatch, "linear", lambda x, weight, *rest: weight.data.data_ptr() == at and len(x) == 1)
    with pytest.raises(EngineError) as refused:
        self_test(decoder, 64)
    assert refused.value.message == (
        "self-test: the canary in chunks cut at 1, 31, 32, 33 gives other bits than as a whole; "
        "layer 1, attention output linear, at position 0, is the first"
    )


def test_a_fault_beside_another_prompt_is_the_canary_s(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "attention", lambda q, cache, tables, *rest: len(tables) == 2)
    with pytest.raises(EngineError, match=r"the canary beside another prompt.* layer 0, attention, at position 4"):
        self_test(decoder, 64)


def test_a_large_model_is_run_through_once(
    weights: PackedWeights, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its first layers in every way. The canary is the same."""
    launches: list[int] = []
    monkeypatch.setattr(canary, "AFFORDABLE", 1)
    last = decoder.layers[-1].mlp.down.data.data_ptr()

    def of_the_last(x: torch.Tensor, weight: Any, *rest: Any) -> bool:
        launches.extend([len(x)] * (weight.data.data_ptr() == last))
        return False

    plant(monkeypatch, "linear", of_the_last)
    assert self_test(decoder, 64).canary == PINNED
    assert launches == [LENGTH]
    assert len(decoder.layers) == decoder.config.num_layers == 2

    plant(monkeypatch, "attention", lambda q, cache, tables, *rest: len(tables) == 2)
    with pytest.raises(EngineError, match=r"the canary beside another prompt.* layer 0, attention, at position 4"):
        self_test(decoder, 64)


def test_an_engine_does_not_start_on_a_fault(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the profile's golden digest, which is of other shapes, cannot see."""
    plant(monkeypatch, "linear", lambda x, weight, *rest: len(x) == 17)
    with pytest.raises(EngineError, match="17 rows"):
        make_engine(model)


@pytest.mark.parametrize("positions", [POSITIONS, MAX_MODEL_LEN, 512])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_canary_is_of_no_machine(weights: PackedWeights, decoder: Decoder, threads: int, positions: int) -> None:
    library().set_threads(threads)
    assert self_test(make_decoder(weights, positions=positions), positions).canary == PINNED


@pytest.mark.parametrize("isa", SETS)
def test_the_canary_is_of_no_instruction_set(decoder: Decoder, isa: str) -> None:
    library().use(isa)
    assert self_test(decoder, 16).canary == PINNED


@pytest.mark.parametrize("how", [{"max_num_seqs": 1}, {"max_num_batched_tokens": 1}, {"num_blocks": 5}])
def test_the_canary_is_of_no_limit(model: LoadedModel, how: dict[str, Any]) -> None:
    assert make_engine(model, **how).fingerprint["canary"] == PINNED


@pytest.mark.parametrize("name", ["embed", "layers.0.input_norm", "layers.1.qkv", "layers.1.down", "lm_head"])
def test_one_bit_of_a_weight_changes_it(weights: PackedWeights, name: str) -> None:
    changed = weights[name].clone()
    token = prompt_ids(weights.config.vocab_size, 0)[0]
    place = (token // 32, 0, token % 32, 0) if name == "embed" else (0,) * changed.dim()
    if changed.dtype == torch.bfloat16:
        changed.view(torch.int16)[place] ^= 1
    else:  # holds a bfloat16 of the checkpoint
        changed.view(torch.int32)[place] ^= 1 << 16
    assert self_test(make_decoder(weights, {name: changed}), 64).canary != PINNED


@pytest.mark.skipif(not library().has_amx(), reason="this processor has no AMX")
def test_each_profile_has_its_own(model: LoadedModel) -> None:
    assert make_engine(model, numerics="native-amx/1").fingerprint["canary"] != PINNED


def test_weights_that_give_nan_have_a_canary_too(weights: PackedWeights) -> None:
    """Rows of such a model become errors one by one; its engine starts."""
    huge = torch.full_like(weights["final_norm"], 3e38)
    canaries = {self_test(make_decoder(weights, {"final_norm": huge}), 64).canary for _ in range(2)}
    assert len(canaries) == 1


def test_the_prompt_is_of_the_vocabulary_alone() -> None:
    assert prompt_ids(49152, 0)[:3] != prompt_ids(49152, 1)[:3]
    for vocab_size in (1, 2, 300, 49152, 151936):
        ids = prompt_ids(vocab_size, 0)
        assert len(ids) == POSITIONS > LENGTH
        assert all(0 <= i < vocab_size for i in ids)
