"""portable/1 on a GPU: the sampler has the bits of the CPU for every kind of row."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.bitwise import assert_bitwise
from support.on_gpu import GPU
from support.sampling import assert_same_draws, language_like, random_rows, sample_rows, take

from batchgen import kernels
from batchgen.kernels.cuda.compiled import kernel, launch
from batchgen.kernels.cuda.sampler import draw, upload
from batchgen.kernels.reference.elementary import exp, log
from batchgen.kernels.reference.noise import DRAW_LANE, gumbel
from batchgen.kernels.sample_rows import Draws, SampleRows

pytestmark = GPU
Array = NDArray[np.float32]
DEVICE = torch.device("cuda", 0)


def sample(logits: Array, rows: SampleRows, *, on: str, processed: bool = False) -> Draws:
    return kernels.sample(torch.from_numpy(logits).to(on), rows, processed_logprobs=processed)


def assert_same_on_both(logits: Array, rows: SampleRows, what: str = "") -> None:
    for processed in (False, True):
        expected = sample(logits, rows, on="cpu", processed=processed)
        ours = sample(logits, rows, on="cuda", processed=processed)
        assert_same_draws(ours, expected, f"{what} processed {processed}")
        assert_same_draws(sample(logits, rows, on="cuda", processed=processed), ours, f"{what} launched twice")


def some_logits(rng: np.random.Generator, R: int, V: int) -> Array:
    """One kind a row: usual, many ties, signed zeros, huge, subnormal, all equal, one far ahead."""
    x = rng.standard_normal((R, V)).astype(np.float32) * 4
    for r in range(R):
        kind = r % 7
        if kind == 1:
            x[r] = np.rint(x[r])
        elif kind == 2:
            x[r] = np.where(rng.random(V) < 0.5, np.float32(-0.0), np.float32(0.0))
        elif kind == 3:
            x[r] *= np.float32(1e37)
        elif kind == 4:
            x[r] *= np.float32(1e-44)
        elif kind == 5:
            x[r] = x[r, 0]
        elif kind == 6:
            x[r, rng.integers(V)] += np.float32(60)
    return x


@pytest.mark.parametrize("V", [1, 2, 3, 4, 5, 19, 20, 21, 31, 64, 127, 1000, 4095, 4096, 4097, 9001])
def test_equals_the_cpu(V: int) -> None:
    rng = np.random.default_rng(V)
    R = 84
    assert_same_on_both(some_logits(rng, R, V), random_rows(rng, R, V))


@pytest.mark.parametrize("V", [49_152, 151_936, 151_669, 262_144])
def test_equals_the_cpu_for_real_vocabularies(V: int) -> None:
    rng = np.random.default_rng(V)
    R = 42
    logits = np.concatenate([language_like(rng, R - 14, V), some_logits(rng, 14, V)])
    assert_same_on_both(logits, random_rows(rng, R, V))


def test_each_filter_alone_equals_the_cpu() -> None:
    rng = np.random.default_rng(1)
    for V in (777, 32_000):
        logits = np.concatenate([language_like(rng, 20, V), some_logits(rng, 20, V)])
        for fields in (
            {"temperature": 0.0},
            {"temperature": 0.7},
            {"top_k": 1},
            {"top_k": 50},
            {"top_k": V - 1},
            {"top_p": 1e-12},
            {"top_p": 0.9},
            {"top_p": 1 - 2**-53},
            {"min_p": 0.1},
            {"min_p": 1.0},
            {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3},
        ):
            rows = sample_rows(40, seed=rng.integers(0, 2**64, 40, dtype=np.uint64), top_logprobs=20, **fields)
            assert_same_on_both(logits, rows, f"V = {V} {fields}")


def test_the_cut_falls_among_equals() -> None:
    """Thousands of equal values at the edge of top-k and top-p: the lowest ids stay."""
    V = 5000
    logits = np.zeros((40, V), np.float32)
    logits[:, 4000:] = 1
    logits[20:] = np.where(np.arange(V) % 2, np.float32(0.0), np.float32(-0.0))
    top_k = [1, 2, 31, 32, 33, 999, 1000, 1001, 2500, 4999] * 4
    for top_p in (1.0, 0.5, 0.1, 1e-6):
        rows = sample_rows(40, seed=np.arange(40), top_k=top_k, top_p=top_p, top_logprobs=20)
        assert_same_on_both(logits, rows, f"top_p = {top_p}")


def test_what_lies_near_the_maximum_may_not_suffice() -> None:
    """More tokens near it than there is room for, or too few of them for top-k, top-p or a list of the best."""
    rng = np.random.default_rng(4)
    V = 20_000
    flat = rng.standard_normal((6, V)).astype(np.float32)
    peaked = flat * 3 + 40 * (rng.random((6, V)) < 1e-3).astype(np.float32)
    alone = flat - 1000 * (np.arange(V) != 77).astype(np.float32)
    crowd = np.where(np.arange(V) < 4096, np.float32(0), np.float32(-13)) + np.zeros((6, 1), np.float32)
    logits = np.concatenate([flat, peaked, alone, crowd]).astype(np.float32)
    for temperature in (0.0, 0.3, 1.0, 30.0, 1e5):
        for top_k, top_p in ((0, 0.9), (0, 1 - 1e-9), (5, 1.0), (6000, 1.0), (4096, 0.99), (4097, 0.99999)):
            rows = sample_rows(
                24, seed=np.arange(24), temperature=temperature, top_k=top_k, top_p=top_p, top_logprobs=20
            )
            assert_same_on_both(logits, rows, f"{temperature} {top_k} {top_p}")


def test_rows_that_are_not_finite_or_banned_fail_alone() -> None:
    rng = np.random.default_rng(9)
    V = 9001
    logits = some_logits(rng, 12, V)
    rows = random_rows(rng, 12, V)
    for r, (bad, place) in enumerate([(np.inf, 0), (-np.inf, 4095), (np.nan, 4096), (np.nan, V - 1)]):
        logits[2 * r, place] = bad
    assert_same_on_both(logits, rows)
    assert sample(logits, rows, on="cuda").finite[:8:2].tolist() == [0] * 4
    banned = sample_rows(2, banned=[list(range(50)), list(range(49))], top_logprobs=5)
    assert_same_on_both(np.zeros((2, 50), np.float32), banned)


def test_a_row_alone_is_the_row_among_others() -> None:
    rng = np.random.default_rng(6)
    V, R = 4100, 65
    logits, rows = some_logits(rng, R, V), random_rows(rng, R, V)
    whole = sample(logits, rows, on="cuda", processed=True)
    for r in range(R):
        alone = sample(logits[r : r + 1], take(rows, [r]), on="cuda", processed=True)
        for name in Draws.__slots__:
            assert_bitwise(getattr(alone, name)[0], getattr(whole, name)[r], f"{name} of {r}")


def test_many_rows_equal_the_cpu() -> None:
    rng = np.random.default_rng(2)
    assert_same_on_both(language_like(rng, 300, 5000), random_rows(rng, 300, 5000))


def test_a_graph_draws_what_is_uploaded_before_its_replay() -> None:
    rng = np.random.default_rng(3)
    V, R = 3000, 8
    logits = torch.from_numpy(language_like(rng, R, V)).cuda()
    rows = [sample_rows(R, seed=np.arange(R) + s, top_p=0.9, top_k=100, top_logprobs=3) for s in (0, 50)]
    expected = [kernels.sample(logits, of, processed_logprobs=False) for of in rows]
    place = upload(rows[0], V, DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = draw(logits, place, processed_logprobs=False)
    for of, draws in zip(rows, expected, strict=True):
        place.packed.copy_(upload(of, V, DEVICE).packed)
        graph.replay()
        assert_same_draws(answer.numpy(), draws)


def test_logits_are_only_read() -> None:
    rng = np.random.default_rng(8)
    logits = torch.from_numpy(some_logits(rng, 30, 77)).cuda()
    before = logits.clone()
    kernels.sample(logits, random_rows(rng, 30, 77), processed_logprobs=True)
    assert_bitwise(logits, before)


def test_noise_equals_its_twin() -> None:
    for seed, position in ((0, 0), (2**63 + 12345, 2**40 + 5), (7, 2**32 - 1)):
        out = torch.empty(10_001, device="cuda")
        signed = seed - 2**64 if seed >= 2**63 else seed
        launch(kernel("sampler.cu", "noise", 0), DEVICE, (10,), 256, out.data_ptr(), signed, position, len(out))
        assert_bitwise(out, gumbel(seed, position, DRAW_LANE, len(out)))


def test_elementary_functions_equal_their_twins() -> None:
    """Every 4,099th float32 there is, and the edges."""
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    edges = np.array([0, 1, -0.0, -104, -103.97, 88, 88.1, np.inf, -np.inf, np.nan, 2**-126, 2**-149], np.float32)
    x = np.concatenate([bits.view(np.float32), edges])
    given, (exps, logs) = torch.from_numpy(x).cuda(), torch.empty(2, len(x), device="cuda")
    places = (given.data_ptr(), exps.data_ptr(), logs.data_ptr(), len(x))
    launch(kernel("sampler.cu", "elementary", 0), DEVICE, (-(-len(x) // 256),), 256, *places)
    for ours, twin in ((exps, exp(x)), (logs, log(x))):
        plain = ~np.isnan(twin)
        assert np.isnan(ours.cpu().numpy()).tolist() == (~plain).tolist()
        assert_bitwise(ours.cpu().numpy()[plain], twin[plain])
