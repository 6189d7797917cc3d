"""What the sampler's options mean, worked out by hand or in float64, and the statistics of its draws."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.bitwise import assert_bitwise
from support.sampling import language_like, sample_rows

from batchgen.kernels.cpu.sampler import sample as compiled
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.kernels.sample_rows import Draws

Array = NDArray[np.float32]


def sample(logits: Any, R: int = 1, *, processed: bool = True, **fields: Any) -> Draws:
    """One row of logits, or one for each of R rows."""
    x = np.broadcast_to(np.asarray(logits, np.float32), (R, np.shape(logits)[-1])).copy()
    return compiled(torch.from_numpy(x), sample_rows(R, **fields), processed_logprobs=processed)


def kept(logits: Any, **fields: Any) -> list[int]:
    """The ids that the filters leave, best first (at most 20)."""
    ids = sample(logits, top_logprobs=20, **fields).top_ids[0]
    return [int(i) for i in ids if i >= 0]


def softmax(logits: Any) -> NDArray[np.float64]:
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    result: NDArray[np.float64] = e / e.sum()
    return result


def test_greedy_is_argmax_and_the_lower_id_on_a_tie() -> None:
    assert sample([1.0, 3.0, 3.0, 2.0], temperature=0).token[0] == 1
    assert sample([-1.0, -0.0, 0.0, -0.0], temperature=0).token[0] == 1
    assert sample([-1.0, 0.0, -0.0], temperature=0, top_p=0.1, top_k=1, min_p=1).token[0] == 1


def test_top_k_1_is_argmax() -> None:
    rng = np.random.default_rng(0)
    logits = np.rint(language_like(rng, 200, 100))  # many ties at the top
    greedy = sample(logits, 200, temperature=0).token
    for fields in ({"top_k": 1}, {"top_p": 1e-12}, {"temperature": 100.0, "top_k": 1, "top_p": 0.5}):
        assert_bitwise(sample(logits, 200, seed=np.arange(200), **fields).token, greedy)
    assert_bitwise(np.argmax(logits, axis=1).astype(np.int32), greedy)


def test_filters_off_is_the_plain_gumbel_maximum() -> None:
    logits = language_like(np.random.default_rng(1), 1, 2000)[0]
    z = logits - logits.max()
    for seed in range(100):
        expected = int(np.argmax(z + gumbel(seed, 5, DRAW_LANE, len(z))))
        assert sample(logits, seed=seed, position=5).token[0] == expected
    # Filters that are on and leave all do not change the draw either: the noise belongs to the id.
    plain = sample(logits, 100, seed=np.arange(100)).token
    assert_bitwise(sample(logits, 100, seed=np.arange(100), min_p=1e-30).token, plain)
    assert_bitwise(sample(logits, 100, seed=np.arange(100), top_k=1999).token, plain)


def test_top_k_keeps_the_first_of_the_total_order() -> None:
    assert kept([2.0, 5.0, 2.0, 2.0, 4.0], top_k=3) == [1, 4, 0]
    assert kept([0.0, -0.0, 0.0], top_k=2) == [0, 1]
    assert kept([1.0, 2.0], top_k=7) == kept([1.0, 2.0], top_k=-1) == [1, 0]


def test_top_p_keeps_the_shortest_prefix_that_reaches_it() -> None:
    logits = np.log([0.5, 0.125, 0.25, 0.125])
    assert kept(logits, top_p=0.49) == [0]
    assert kept(logits, top_p=0.51) == [0, 2]
    assert kept(logits, top_p=0.76) == [0, 2, 1]
    assert kept(logits, top_p=0.9) == [0, 2, 1, 3]
    assert kept([0.0] * 8, top_p=0.5) == [0, 1, 2, 3]  # exactly half: the mass before the fifth is not below it
    assert kept([0.0] * 8, top_p=np.nextafter(0.5, 1)) == [0, 1, 2, 3]  # one part in 2^53 of 2^43 is no whole unit
    assert kept([0.0] * 8, top_p=0.5 + 1e-12) == [0, 1, 2, 3, 4]


def test_top_p_is_taken_of_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert kept(logits, top_p=0.55) == [0, 1]
    assert kept(logits, top_k=2, top_p=0.55) == [0]  # 0.4 / 0.7 reaches it


def test_min_p_is_relative_to_the_best() -> None:
    logits = np.log([0.5, 0.26, 0.2, 0.04])
    assert kept(logits, min_p=0.5) == [0, 1]
    assert kept(logits, min_p=0.39) == [0, 1, 2]
    assert kept([3.0, 3.0, 2.9999], min_p=1.0) == [0, 1]


def test_filters_see_the_temperature() -> None:
    logits = np.log([0.5, 0.25, 0.25])
    assert kept(logits, top_p=0.6, temperature=0.5) == [0]  # 0.25 : 0.0625 : 0.0625
    assert kept(logits, min_p=0.6, temperature=2.0) == [0, 1, 2]  # sqrt(1/2) is more than 0.6


def test_the_order_is_that_of_the_values_even_where_temperature_makes_them_equal() -> None:
    tiny = np.float32(1e-45)
    assert kept([0.0, tiny], temperature=100.0, top_k=1) == [1]
    assert kept([1.0, np.nextafter(np.float32(1), np.float32(2))], temperature=100.0, top_k=1) == [1]


def test_penalties_are_those_of_the_field() -> None:
    fields: dict[str, Any] = {
        "seen": [[0, 1, 3]],
        "output": [{1: 3, 2: 1}],
        "repetition_penalty": 2.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "bias": [{4: 1.5}],
        "banned": [[5]],
    }
    adjusted = np.array([4 / 2, -1 * 2 - 3 * 0.5 - 0.25, 3 - 0.5 - 0.25, 0, 0.5 + 1.5])
    draws = sample([4.0, -1.0, 3.0, 0.0, 0.5, 100.0], temperature=0, top_logprobs=20, **fields)
    assert draws.token[0] == 2
    assert [i for i in draws.top_ids[0] if i >= 0] == [2, 0, 4, 3, 1]
    assert np.allclose(draws.top_values[0, :5], np.log(softmax(adjusted))[[2, 0, 4, 3, 1]], atol=1e-6)


def test_bias_comes_before_the_penalty_and_a_ban_outlives_both() -> None:
    assert sample([0.0, 0.5], temperature=0, bias=[{0: 4.0}], seen=[[0]], repetition_penalty=10.0).token[0] == 1
    assert sample([-1.0, 0.0], temperature=0, banned=[[1]], bias=[{1: 100.0}]).token[0] == 0
    assert sample([-1.0, 0.0], banned=[[1]], seen=[[1]], output=[{1: 1}], presence_penalty=-2.0).token[0] == 0


def test_values_saturate_instead_of_overflowing() -> None:
    top = np.finfo(np.float32).max
    draws = sample([top, 1.0, -top], temperature=0.01, seen=[[0, 2]], repetition_penalty=0.01, top_logprobs=3)
    assert (draws.finite[0], draws.token[0], draws.logprob[0]) == (1, 0, 0.0)
    assert sample([-top, -top], seen=[[0, 1]], repetition_penalty=100.0, temperature=0).token[0] == 0


def test_raw_logprobs_ignore_everything() -> None:
    logits = language_like(np.random.default_rng(2), 1, 5000)[0]
    exact = np.log(softmax(logits))
    draws = sample(logits, processed=False, temperature=0.3, top_k=2, bias=[{7: 50.0}], top_logprobs=20)
    best = np.argsort(-logits, kind="stable")[:20]
    assert draws.top_ids[0].tolist() == best.tolist()
    assert np.allclose(draws.top_values[0], exact[best], atol=2e-6)
    assert np.isclose(draws.logprob[0], exact[draws.token[0]], atol=2e-6)
    assert draws.token[0] == 7  # far from the best: its logprob is that of the raw logits all the same


def test_processed_logprobs_are_of_what_is_drawn_from() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    draws = sample(logits, top_k=3, temperature=0.5, top_logprobs=3)
    p = np.array([0.16, 0.09, 0.04]) / 0.29
    assert draws.top_ids[0, :4].tolist() == [0, 1, 2, -1]
    assert np.allclose(draws.top_values[0, :3], np.log(p), atol=1e-6)
    assert (draws.top_values[0, 3:] == -np.inf).all()
    assert np.isclose(draws.logprob[0], np.log(p)[draws.token[0]], atol=1e-6)
    greedy = sample(logits, temperature=0, top_k=1, top_logprobs=4)  # of all the tokens at temperature 1
    assert np.allclose(greedy.top_values[0, :4], logits, atol=1e-6)


def test_only_what_is_asked_for_is_listed() -> None:
    draws = sample([1.0, 2.0, 3.0], 3, top_logprobs=[-1, 0, 2])
    assert np.isnan(draws.logprob).tolist() == [True, False, False]
    assert (draws.top_ids >= 0).sum(axis=1).tolist() == [0, 0, 2]


N = 20_000
LOGITS = np.array([0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5, 0.25], np.float32)
CHI_SQUARE_7 = 29.88  # 1 in 10,000, at 7 degrees of freedom


def chi_square(tokens: NDArray[np.int32], p: NDArray[np.float64]) -> float:
    counts = np.bincount(tokens, minlength=len(p))
    assert counts[p == 0].sum() == 0
    expected = p[p > 0] * len(tokens)
    return float(((counts[p > 0] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("axis", ["seed", "position"])
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7}, {"temperature": 3.0}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}], ids=str
)
def test_draws_follow_the_distribution(axis: str, fields: dict[str, Any]) -> None:
    p = softmax(LOGITS / fields.get("temperature", 1.0))
    is_kept = np.isin(np.arange(len(p)), kept(LOGITS, **fields))
    assert is_kept.all() == ("temperature" in fields or not fields)
    p = np.where(is_kept, p, 0) / p[is_kept].sum()
    numbers: dict[str, Any] = {"seed": 99, axis: np.arange(N)}
    tokens = sample(LOGITS, N, **numbers, **fields).token
    assert chi_square(tokens, p) < CHI_SQUARE_7


def test_the_statistic_sees_a_wrong_distribution() -> None:
    tokens = sample(LOGITS, N, seed=np.arange(N)).token
    assert chi_square(tokens, softmax(LOGITS / 1.1)) > CHI_SQUARE_7


@pytest.mark.parametrize("axis", ["seed", "position"])
def test_neighbouring_draws_are_independent(axis: str) -> None:
    numbers: dict[str, Any] = {"seed": 7, axis: np.arange(N)}
    tokens = sample(LOGITS, N, **numbers).token
    p = softmax(LOGITS)
    pairs = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64)
    expected = np.outer(p, p).reshape(-1) * (N - 1)
    assert ((pairs - expected) ** 2 / expected).sum() < 115  # 63 degrees of freedom, 1 in 10,000
