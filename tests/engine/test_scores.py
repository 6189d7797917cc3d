"""The scores that a replay shows are those that the sampler of the machine compares, bit for bit."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.model_cases import load_tiny, make_engine, requests
from support.sampling import random_rows, sample_rows, take

from batchgen import kernels
from batchgen.engine import scores as scores_module
from batchgen.engine.admission import ModelLimits
from batchgen.engine.scores import Scores, score, scores_after
from batchgen.executor.start import open_weights
from batchgen.kernels.reference import noise
from batchgen.kernels.sample_rows import SampleRows
from batchgen.models.decoder import Decoder

V = 300


def kernel_draw(logits: NDArray[np.float32], rows: SampleRows) -> int:
    return int(kernels.sample(torch.from_numpy(logits)[None], rows, processed_logprobs=False).token[0])


def numbers(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, V).astype(np.float32)


def check_order(logits: NDArray[np.float32], rows: SampleRows) -> Scores:
    """The token that the kernel draws has the greatest score among the candidates."""
    found = score(logits, rows)
    assert found.drawn == kernel_draw(logits, rows)
    if found.drawn >= 0:
        assert found.scores[found.drawn] == found.scores[found.is_candidate].max()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_drawn_token_has_the_greatest_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 5, V)
    for r in range(5):
        check_order(numbers(seed), take(rows, [r]))


def flip(logits: NDArray[np.float32], rows: SampleRows, token: int) -> int:
    """The least logit, as an ordered integer, at which the kernel draws `token`."""
    low, high = -(2**31), int(ordered(np.float32(1000)))
    while high - low > 1:
        middle = (low + high) // 2
        drawn = kernel_draw(with_logit(logits, token, middle), rows)
        low, high = (low, middle) if drawn == token else (middle, high)
    return high


def ordered(value: np.float32) -> int:
    """float32 -> integer, in the order of the numbers."""
    bits = int(value.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def with_logit(logits: NDArray[np.float32], token: int, number: int) -> NDArray[np.float32]:
    bits = number if number >= 0 else (-number) | 0x80000000
    changed = logits.copy()
    changed[token] = np.array([bits & 0xFFFFFFFF], np.uint32).view(np.float32)[0]
    return changed if np.isfinite(changed).all() else logits


@pytest.mark.parametrize("seed", range(12))
def test_where_the_kernel_changes_its_mind_the_scores_do(seed: int) -> None:
    """The logit of another token is moved to the very bit at which the kernel takes it: so do the scores."""
    temperature, penalty = [0.0, 0.7, 1.0, 1.9][seed % 4], [1.0, 1.3][seed % 2]
    token = 17 + seed
    rows = sample_rows(
        1, seed=[seed], position=[99], temperature=temperature, repetition_penalty=penalty, seen=[[token, 3]]
    )
    logits = numbers(seed)
    assert kernel_draw(logits, rows) != token
    at = flip(logits, rows, token)
    before, after = (check_order(with_logit(logits, token, at + step), rows) for step in (-1, 0))
    assert (before.drawn != token, after.drawn) == (True, token)
    gap = after.scores[token] - np.partition(after.scores, -2)[-2]
    assert 0 <= gap < 1e-4, "a draw that was close, and not just any"


def test_counter_a_score_that_is_rounded_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(seed: int, position: int, lane: int, count: int) -> NDArray[np.float32]:
        return right(seed, position, lane, count) * np.float32(1 + 2**-16)

    right = noise.gumbel
    monkeypatch.setattr(scores_module, "gumbel", off)
    with pytest.raises(AssertionError):
        test_where_the_kernel_changes_its_mind_the_scores_do(1)


def test_nothing_is_drawn_from_what_is_not_finite_or_all_banned() -> None:
    logits = numbers(1)
    banned = score(logits, sample_rows(1, banned=[list(range(V))]))
    logits[7] = np.nan
    for found in (banned, score(logits, sample_rows(1))):
        assert found.drawn == -1
        assert not found.is_candidate.any()


def test_what_is_filtered_has_a_score_and_what_is_banned_has_none() -> None:
    logits = numbers(1)
    best = np.argsort(-logits, kind="stable")
    found = score(logits, sample_rows(1, top_k=[2], banned=[[int(best[0])]]))
    assert found.is_candidate.nonzero()[0].tolist() == sorted(best[1:3].tolist())
    assert found.scores[best[0]] == -np.inf
    assert np.isfinite(found.scores[best[3:]]).all()


def test_a_real_row_at_every_position(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After each beginning of what an engine made, its next token is the one with the greatest score."""
    model = load_tiny(tmp_path_factory.mktemp("scores"))
    wanted = requests(14)
    made = {completion.row_key: completion for completion in make_engine(model).generate(wanted)}
    weights = open_weights(model.path)
    decoder = Decoder(model.config, weights.tensors, model.max_model_len)
    limits = ModelLimits(model.config.vocab_size, model.max_model_len, model.eos_token_ids)
    seen = 0
    for request in wanted:
        ids = made[request.row_key].token_ids
        for at in range(len(ids)):
            assert scores_after(decoder, limits, request, ids[:at]).drawn == ids[at], f"{request.row_key} at {at}"
            seen += 1
    assert seen > 100
