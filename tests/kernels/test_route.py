"""Which experts a token goes to, and the sum of their answers: equal to the twins, ties decided, order kept."""

from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise
from support.on_gpu import nan_as_one

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import Routing, reference
from batchgen.kernels.cpu.native import library

SETS = library().instruction_sets()
ROUTINGS = (
    Routing(1, "softmax", True, 1.0),
    Routing(4, "softmax", True, 1.0),
    Routing(3, "softmax", False, 1.0),
    Routing(4, "sigmoid", True, 2.5),
    Routing(2, "sigmoid", False, 1.5),
)


@pytest.fixture(autouse=True, params=SETS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    library().use(request.param)
    library().set_threads(2)
    yield request.param
    library().use(SETS[-1])
    library().set_threads(1)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("E", [4, 15, 16, 33, 128])
def test_equals_the_twin_at_every_number_of_tokens(routing: Routing, E: int) -> None:
    """Random rows, rows of few different values, zeros of both signs, huge and infinite logits."""
    logits = randn(70, E) * 3
    logits[10:40] = logits[10:40].round()
    logits[40:44] = 0
    logits[41, ::2] = -0.0
    logits[44], logits[45, 1], logits[46, 2], logits[47] = 1e30, float("-inf"), float("inf"), -200
    bias = randn(E, seed=1).round() if routing.scoring == "sigmoid" else None
    expected = reference.route(logits, bias, routing)
    for T in range(71):
        chosen, weights = kernels.route(logits[:T], bias, routing)
        assert_bitwise(chosen, expected[0][:T], f"T = {T}")
        assert_bitwise(nan_as_one(weights), nan_as_one(expected[1][:T]), f"T = {T}")
    chosen, weights = kernels.route(logits, bias, routing)
    assert (chosen.diff(dim=1) > 0).all(), "ids ascend, and none is there twice"
    assert ((chosen >= 0) & (chosen < E)).all()
    if routing.norm_topk:
        assert torch.allclose(weights[:44].sum(dim=1), torch.full((44,), routing.scale))


def test_of_equal_scores_the_lowest_id_is_chosen() -> None:
    logits = torch.zeros(3, 20)
    logits[1, [19, 7, 11]] = 1
    logits[2, 0] = -1
    chosen, weights = kernels.route(logits, None, Routing(4, "softmax", True, 1.0))
    assert chosen.tolist() == [[0, 1, 2, 3], [0, 7, 11, 19], [1, 2, 3, 4]]
    assert weights[0].tolist() == [0.25] * 4


def test_the_bias_chooses_and_does_not_weigh() -> None:
    logits, bias = torch.tensor([[2.0, 0.0, -1.0, 1.0]]), torch.tensor([0.0, 0.0, 5.0, 0.0])
    chosen, weights = kernels.route(logits, bias, Routing(2, "sigmoid", False, 1.0))
    assert chosen.tolist() == [[0, 2]]
    assert torch.allclose(weights, logits[:, [0, 2]].sigmoid())


def test_a_bias_that_bfloat16_would_round_decides() -> None:
    bias = torch.tensor([1.0, 1.0 + 2.0**-12])
    assert kernels.route(torch.zeros(1, 2), bias, Routing(1, "sigmoid", True, 1.0))[0].tolist() == [[1]]
    bias[1] = 1.0
    assert kernels.route(torch.zeros(1, 2), bias, Routing(1, "sigmoid", True, 1.0))[0].tolist() == [[0]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_nan_is_not_hidden(routing: Routing) -> None:
    """It is chosen, so that the row ends; the rows beside it do not change."""
    logits = randn(5, 40)
    clean = kernels.route(logits, None, routing)
    logits[2, 17] = float("nan")
    chosen, weights = kernels.route(logits, None, routing)
    assert 17 in chosen[2].tolist()
    assert weights[2].isnan().any()
    others = torch.tensor([0, 1, 3, 4])
    assert_bitwise(chosen[others], clean[0][others])
    assert_bitwise(weights[others], clean[1][others])


@pytest.mark.parametrize("with_shared", [False, True])
@pytest.mark.parametrize(("k", "H"), [(1, 16), (4, 48), (8, 128)])
def test_combine_equals_the_twin_at_every_number_of_tokens(with_shared: bool, k: int, H: int) -> None:
    rows, weights, residual = randn(70, k, H), randn(70, k, seed=1), randn(70, H, seed=2)
    shared = randn(70, H, seed=3) if with_shared else None
    expected = reference.combine(rows, weights, shared, residual)
    for T in range(71):
        part = kernels.combine(rows[:T], weights[:T], None if shared is None else shared[:T], residual[:T])
        assert_bitwise(part, expected[:T], f"T = {T}")


def test_counter_a_sum_in_another_order_is_caught() -> None:
    """Four addends: two commute, and a test with two would see nothing. Sums by halves stand for sums by rank."""
    rows, weights, residual = randn(70, 4, 128), randn(70, 4, seed=1), randn(70, 128, seed=2)
    expected = kernels.combine(rows, weights, None, residual)
    flipped = kernels.combine(rows.flip(1).contiguous(), weights.flip(1).contiguous(), None, residual)
    zero = torch.zeros_like(residual)
    halves = [
        kernels.combine(rows[:, s].contiguous(), weights[:, s].contiguous(), None, zero)
        for s in (slice(2), slice(2, 4))
    ]
    assert not torch.equal(flipped, expected)
    assert not torch.equal(residual + (halves[0] + halves[1]), expected)


def test_what_cannot_be_chosen_is_refused() -> None:
    for k, E in ((0, 4), (5, 4), (33, 64)):
        with pytest.raises(EngineError, match=f"{k} experts of {E} were asked for"):
            kernels.route(torch.zeros(1, E), None, Routing(k, "softmax", True, 1.0))
    with pytest.raises(EngineError, match="float32"):
        kernels.route(torch.zeros(1, 4).double(), None, Routing(1, "softmax", True, 1.0))
    with pytest.raises(EngineError, match="multiples of 16"):
        kernels.combine(torch.zeros(1, 2, 8), torch.zeros(1, 2), None, torch.zeros(1, 8))
