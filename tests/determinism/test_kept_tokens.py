"""The kept tokens of a draw are those that its filters left: worked out from its logits, the same in any company.

Guards against a second reading of the filters beside the sampler's, sets of a neighbour, and sets of a draw that a
preemption or a stop string took back.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.model_cases import as_bits, ask, completions, ids, long_requests, make_engine, requests

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.sample_rows import Draws, Kept, SampleRows
from batchgen.loader import LoadedModel
from batchgen.records import Completion, Request, SamplingParams

pytestmark = pytest.mark.parametrize("model", ["llama"], indirect=True)  # what follows the logits knows no model
LIMITS: list[dict[str, Any]] = [
    {"max_num_seqs": 3, "max_num_batched_tokens": 17, "num_blocks": 7},
    {"max_num_batched_tokens": 5, "prefix_cache_blocks": 0},
]


def asked(kept_tokens: int | None = 1000) -> list[Request]:
    """Every sampling feature; those with a filter, and those without."""
    wanted = [*requests(21), *long_requests()[:5]]
    return [replace(each, params=replace(each.params, kept_tokens=kept_tokens)) for each in wanted]


@pytest.fixture(scope="module")
def kept(engine: Engine) -> dict[str, Completion]:
    return completions(engine, asked())


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_company_is_not_seen(engine: Engine, kept: dict[str, Completion], limits: dict[str, Any]) -> None:
    for key, completion in completions(engine, asked(), **limits).items():
        assert as_bits(completion) == as_bits(kept[key]), key


def test_nothing_else_changes(engine: Engine, kept: dict[str, Completion]) -> None:
    """And where nothing is filtered, nothing is recorded."""
    plain = completions(engine, asked(None))
    for request in asked():
        done, params = kept[request.row_key], request.params
        assert as_bits(replace(done, kept_tokens=None)) == as_bits(plain[request.row_key])
        is_filtered = params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
        assert (done.kept_tokens is not None) is is_filtered
        assert done.kept_tokens is None or len(done.kept_tokens) == len(done.token_ids) > 0


def by_hand(logits: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """The filters in float64, over a sorted vocabulary."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    z = logits[order].astype(np.float64) / params.temperature
    p = np.exp(z - z[0])
    if params.top_k > 0:
        order, p = order[: params.top_k], p[: params.top_k]
    if params.top_p < 1:
        some = np.cumsum(p) - p < params.top_p * p.sum()
        order, p = order[some], p[some]
    return sorted(order[p >= params.min_p].tolist())


@pytest.fixture
def logits_of(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], NDArray[np.float32]]:
    """What the sampler is given, by seed and position."""
    seen: dict[tuple[int, int], NDArray[np.float32]] = {}
    real = kernels.sample

    def watching(logits: Any, rows: SampleRows, **options: Any) -> Draws:
        for r, name in enumerate(zip(rows.seed.tolist(), rows.position.tolist(), strict=True)):
            seen[name] = logits[r].numpy().copy()
        return real(logits, rows, **options)

    monkeypatch.setattr(kernels, "sample", watching)
    return seen


def test_as_worked_out_by_hand(engine: Engine, logits_of: dict[tuple[int, int], NDArray[np.float32]]) -> None:
    sizes = set()
    filters: list[dict[str, Any]] = [
        {"top_p": 0.9},
        {"top_k": 7},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.5, "min_p": 0.02},
    ]
    for number, fields in enumerate(filters):
        params = SamplingParams(temperature=1.2, max_tokens=6, ignore_eos=True, kept_tokens=1000, **fields)
        wanted = [ask(f"{number}-{i}", ids(5 + i), params) for i in range(4)]
        done = completions(engine, wanted)
        for each in wanted:
            start = len(each.prompt_token_ids)
            expected = [by_hand(logits_of[each.seed, start + i], params) for i in range(6)]
            assert [list(places) for places in done[each.row_key].kept_tokens or ()] == expected
            assert all(t in some for t, some in zip(done[each.row_key].token_ids, expected, strict=True))
            sizes |= {len(some) for some in expected}
    assert len(sizes) > 9


def test_more_than_there_is_room_for(engine: Engine) -> None:
    """An error of that row alone, the same in any company."""
    params = SamplingParams(temperature=2.0, top_p=0.99, max_tokens=4, kept_tokens=20)
    wanted = [ask("wide", ids(9), params), ask("narrow", ids(9), replace(params, top_k=20))]
    done = completions(engine, wanted)
    assert done["wide"].error_code == "kept_tokens"
    assert "more than kept_tokens 20 allows at output position 0; top_k" in (done["wide"].error_message or "")
    assert [len(some) for some in done["narrow"].kept_tokens or ()] == [20] * len(done["narrow"].token_ids)


def test_counter_the_sets_of_a_neighbour_are_caught(
    engine: Engine, kept: dict[str, Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Kept.of_row
    monkeypatch.setattr(Kept, "of_row", lambda self, r: real(self, (r + 1) % len(self.size)))
    with pytest.raises(AssertionError):
        test_company_is_not_seen(engine, kept, LIMITS[0])


def test_processed_logprobs_are_over_them(model: LoadedModel) -> None:
    """With processed logprobs every kept token is listed, and what is listed adds up to 1."""
    engine = make_engine(model, logprobs_mode="processed")
    params = SamplingParams(temperature=1.1, top_k=20, top_p=0.9, max_tokens=5, logprobs=20, kept_tokens=20)
    done = completions(engine, [ask("a", ids(8), params)])["a"]
    assert [sorted(listed) for listed in done.top_logprobs_ids or ()] == [list(some) for some in done.kept_tokens or ()]
    for values in done.top_logprobs_values or ():
        assert np.exp(np.array(values, np.float64)).sum() == pytest.approx(1, abs=1e-5)
