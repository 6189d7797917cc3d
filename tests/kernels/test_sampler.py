"""The sampler: bit by bit against its twin on every instruction set, and what must not matter, swept."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.bitwise import assert_bitwise
from support.sampling import assert_same_draws, language_like, random_rows, sample_rows, take

from batchgen import _cpu
from batchgen.errors import EngineError
from batchgen.kernels.cpu.sampler import sample as compiled
from batchgen.kernels.reference import sampler as reference
from batchgen.kernels.reference.noise import words
from batchgen.kernels.sample_rows import Draws, IdLists, Kept, SampleRows

Array = NDArray[np.float32]
INF = np.inf


def sample(logits: Array, rows: SampleRows, *, processed: bool = False, reach: float = 6.0) -> Draws:
    return compiled(torch.from_numpy(logits), rows, processed_logprobs=processed, reach=reach)


def assert_every_set_equals(expected: Draws, logits: Array, rows: SampleRows, *, processed: bool) -> None:
    before = _cpu.in_use()
    try:
        for name in _cpu.instruction_sets():
            _cpu.use(name)
            assert_same_draws(sample(logits, rows, processed=processed), expected, name)
    finally:
        _cpu.use(before)


def some_logits(rng: np.random.Generator, R: int, V: int) -> Array:
    """One kind a row: usual, many ties, signed zeros, huge, subnormal, all equal, one far ahead."""
    x = rng.standard_normal((R, V)).astype(np.float32) * 4
    for r in range(R):
        kind = int(rng.integers(7))
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


@pytest.mark.parametrize("V", [*range(1, 71), 127, 128, 129, 1000])
def test_equals_the_twin_for_every_small_vocabulary(V: int) -> None:
    rng = np.random.default_rng(V)
    R = 20
    logits, rows = some_logits(rng, R, V), random_rows(rng, R, V)
    for processed in (False, True):
        expected = reference.sample(logits, rows, processed_logprobs=processed)
        assert_every_set_equals(expected, logits, rows, processed=processed)


@pytest.mark.parametrize("V", [49_152, 151_936])
def test_equals_the_twin_for_real_vocabularies(V: int) -> None:
    rng = np.random.default_rng(V)
    R = 6
    logits = np.concatenate([language_like(rng, R - 2, V), some_logits(rng, 2, V)])
    rows = random_rows(rng, R, V)
    expected = reference.sample(logits, rows, processed_logprobs=True)
    assert_every_set_equals(expected, logits, rows, processed=True)


def kept_ids(rows: SampleRows, room: int) -> tuple[Kept, SampleRows]:
    """`rows`, the first of which asks for nothing and the others for `room` kept ids."""
    kept = Kept.empty([0, *[room] * (len(rows) - 1)])
    return kept, replace(rows, kept=kept)


@pytest.mark.parametrize(("V", "room"), [(1, 1), (67, 20), (67, 67), (1000, 1000), (49_152, 300)])
def test_kept_ids_equal_the_twins(V: int, room: int) -> None:
    """As sets, on every instruction set; and what is drawn is what is drawn without."""
    rng, R = np.random.default_rng(V), 40 if V <= 1000 else 8
    logits, plain = some_logits(rng, R, V), random_rows(rng, R, V)
    expected, rows = kept_ids(plain, room)
    reference.sample(logits, rows, processed_logprobs=False)
    before = _cpu.in_use()
    try:
        for name in _cpu.instruction_sets():
            _cpu.use(name)
            found, rows = kept_ids(plain, room)
            draws = sample(logits, rows, processed=True)
            assert_bitwise(found.size, expected.size, name)
            for r in range(1, R):
                ids = found.of_row(r)
                assert ids == expected.of_row(r)
                assert not ids or draws.token[r] in ids
                assert (ids == ()) is bool(found.size[r] > room)
            assert_same_draws(draws, sample(logits, plain, processed=True))
    finally:
        _cpu.use(before)


def test_a_change_of_one_ulp_is_seen() -> None:
    logits = language_like(np.random.default_rng(3), 1, 500)
    rows = sample_rows(1, temperature=0.8, top_p=0.9, top_logprobs=5)
    nudged = logits.copy()
    token = sample(logits, rows).token[0]
    nudged[0, token] = np.nextafter(nudged[0, token], np.float32(INF))
    with pytest.raises(AssertionError, match="differ"):
        assert_same_draws(sample(nudged, rows), sample(logits, rows))


def test_golden_hash() -> None:
    """A change of any bit is a new numerics profile: if this fails on purpose, name the profile anew."""
    R, V = 16, 3000
    logits = (words(7, 0, 0, R * V).reshape(R, V) >> 8).astype(np.float32) * np.float32(2**-21) - np.float32(4)
    rows = sample_rows(
        R,
        seed=np.arange(R, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        position=np.arange(R) * 1000,
        temperature=[0.0, 0.5, 1.0, 2.0] * 4,
        top_p=[1.0] * 4 + [0.9] * 8 + [0.5] * 4,
        top_k=[0] * 8 + [40] * 8,
        min_p=[0.0] * 12 + [0.3] * 4,
        output=[{1: 2, 2999: 1}] * R,
        seen=[[1, 5, 2999]] * R,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        top_logprobs=20,
    )
    digest = hashlib.sha256()
    for processed in (False, True):
        draws = sample(logits, rows, processed=processed)
        for name in Draws.__slots__:
            digest.update(getattr(draws, name).tobytes())
    assert digest.hexdigest() == "fbc37977b66ccf168d3f59a096167f910ab40c9bf8ef25f03379965e4d956acb"


@pytest.mark.parametrize("reach", [0.0, 0.3, 2.0, 6.0, 11.0, 25.0, 1e9])
def test_how_far_candidates_are_looked_for_is_not_seen(reach: float) -> None:
    rng = np.random.default_rng(5)
    for V in (70, 49_152):
        rows = random_rows(rng, 20, V)
        logits = language_like(rng, 20, V)
        for processed in (False, True):
            default = sample(logits, rows, processed=processed)
            assert_same_draws(sample(logits, rows, processed=processed, reach=reach), default)


def test_a_row_alone_is_the_row_among_64_others_at_every_place() -> None:
    """Guards against noise or filters that hang on the batch: a seeded row next to a top-k row, 44 rows or 45."""
    rng = np.random.default_rng(6)
    V, R = 300, 65
    logits, rows = some_logits(rng, R, V), random_rows(rng, R, V)
    logits[9, 3] = np.nan
    alone = sample(logits[:1], take(rows, [0]), processed=True)
    for place in range(R):
        order = [*range(1, place + 1), 0, *range(place + 1, R)]
        among = sample(logits[order], take(rows, order), processed=True)
        for name in Draws.__slots__:
            assert_bitwise(getattr(among, name)[place], getattr(alone, name)[0], f"{name} at {place}")
    whole = sample(logits, rows, processed=True)
    for size in range(1, R + 1):
        part = sample(logits[:size], take(rows, list(range(size))), processed=True)
        for name in Draws.__slots__:
            assert_bitwise(getattr(part, name), getattr(whole, name)[:size], f"{name} of {size}")


def test_threads_are_not_seen() -> None:
    rng = np.random.default_rng(7)
    logits, rows = some_logits(rng, 40, 999), random_rows(rng, 40, 999)
    before = _cpu.threads()
    draws = []
    for n in (1, 3):
        _cpu.set_threads(n)
        draws.append(sample(logits, rows))
    _cpu.set_threads(before)
    assert_same_draws(draws[1], draws[0])


def test_logits_are_only_read() -> None:
    rng = np.random.default_rng(8)
    logits, rows = some_logits(rng, 30, 77), random_rows(rng, 30, 77)
    before = logits.copy()
    sample(logits, rows)
    assert_bitwise(logits, before)


@pytest.mark.parametrize("bad", [INF, -INF, np.nan])
@pytest.mark.parametrize("place", [0, 15, 16, 63, 64, 76])
def test_a_row_that_is_not_finite_fails_alone(bad: float, place: int) -> None:
    rng = np.random.default_rng(9)
    logits, rows = some_logits(rng, 5, 77), random_rows(rng, 5, 77)
    healthy = sample(logits, rows)
    logits[2, place] = bad
    draws = sample(logits, rows)
    assert draws.finite.tolist() == [1, 1, 0, 1, 1]
    assert draws.token[2] == -1
    assert np.isnan(draws.logprob[2])
    others = [0, 1, 3, 4]
    for name in Draws.__slots__:
        assert_bitwise(getattr(draws, name)[others], getattr(healthy, name)[others])


def test_a_row_with_every_token_banned_fails_alone() -> None:
    draws = sample(np.zeros((2, 3), np.float32), sample_rows(2, banned=[[0, 1, 2], [0, 1]]))
    assert draws.finite.tolist() == [0, 1]
    assert draws.token.tolist() == [-1, 2]


WRONG: dict[str, Any] = {
    "temperature": {"temperature": -1.0},
    "top_p": {"top_p": 0.0},
    "min_p": {"min_p": np.nan},
    "repetition_penalty": {"repetition_penalty": 0.0},
    "frequency_penalty": {"frequency_penalty": INF},
    "position": {"position": -1},
    "top_logprobs": {"top_logprobs": 21},
    r"bias\.values": {"bias": [{1: np.nan}, {}]},
    r"banned\.ids": {"banned": [[], [10]]},
    r"seen\.ids": {"seen": [[-1], []]},
}


@pytest.mark.parametrize("name", WRONG)
def test_values_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(EngineError, match=name):
        sample(np.zeros((2, 10), np.float32), sample_rows(2, **WRONG[name]))


def test_wrong_arrays_are_refused() -> None:
    good = sample_rows(2)
    logits = torch.zeros(2, 10)
    fields = {name: getattr(good, name) for name in SampleRows.__slots__}
    bad_start = IdLists(np.array([0, 2, 1], np.int32), np.array([3], np.int32))
    for wrong, message in (
        ({"seed": good.seed.astype(np.int64)}, "seed as contiguous uint64"),
        ({"top_k": np.zeros(3, np.int32)}, "top_k"),
        ({"min_p": np.zeros(4, np.float32)[::2]}, "min_p"),
        ({"banned": bad_start}, r"banned\.start must ascend"),
        ({"output": IdLists.of([[1], [2]])}, "output.values .* got nothing"),
    ):
        with pytest.raises(EngineError, match=message):
            compiled(logits, SampleRows(**{**fields, **wrong}), processed_logprobs=False)
    for wrong_logits in (torch.zeros(3, 10), torch.zeros(2, 10, dtype=torch.float64), torch.zeros(2, 20)[:, ::2]):
        with pytest.raises(EngineError, match="contiguous"):
            compiled(wrong_logits, good, processed_logprobs=False)
