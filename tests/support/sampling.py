"""Rows for the sampler: plain ones to change a field of, and random ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.bitwise import assert_bitwise

from batchgen.kernels.sample_rows import Draws, IdLists, SampleRows

_PLAIN: dict[str, tuple[Any, type[np.generic]]] = {
    "seed": (1, np.uint64),
    "position": (0, np.int64),
    "temperature": (1.0, np.float32),
    "top_p": (1.0, np.float64),
    "min_p": (0.0, np.float32),
    "top_k": (0, np.int32),
    "presence_penalty": (0.0, np.float32),
    "frequency_penalty": (0.0, np.float32),
    "repetition_penalty": (1.0, np.float32),
    "top_logprobs": (-1, np.int32),
}


def sample_rows(R: int, **fields: Any) -> SampleRows:
    """R rows that draw from the plain softmax, with `fields` changed: a scalar or a list for the arrays, a list of
    dicts (bias, output) or of lists of ids (banned, seen) for the id lists."""
    arrays: dict[str, Any] = {n: np.full(R, 1, d) * np.asarray(fields.pop(n, v), d) for n, (v, d) in _PLAIN.items()}
    lists: dict[str, Any] = {
        "bias": IdLists.with_values(fields.pop("bias", [{}] * R), np.float32),
        "output": IdLists.with_values(fields.pop("output", [{}] * R), np.int32),
        "banned": IdLists.of(fields.pop("banned", [[]] * R)),
        "seen": IdLists.of(fields.pop("seen", [[]] * R)),
    }
    assert not fields, f"no such field: {fields}"
    return SampleRows(**arrays, **lists)


def random_rows(rng: np.random.Generator, R: int, V: int) -> SampleRows:
    """Every parameter on or off at random, with lists of ids."""

    def some(most: int) -> list[int]:
        ids: list[int] = rng.choice(V, min(V, int(rng.integers(0, most))), replace=False).tolist()
        return ids

    def pick(*values: float) -> list[float]:
        chosen: list[float] = rng.choice(values, R).tolist()
        return chosen

    return sample_rows(
        R,
        seed=rng.integers(0, 2**64, R, dtype=np.uint64),
        position=rng.choice([0, 1, 77, 2**32 - 1, 2**32, 2**40 + 5], R),
        temperature=pick(0, 1, 1, 0.8, 0.01, 1e-6, 2.5, 100),
        top_p=pick(1, 1, 0.95, 0.5, 1e-9, 1 - 2**-53),
        min_p=pick(0, 0, 0.05, 0.5, 1, 1e-30),
        top_k=pick(0, -1, 1, 2, 20, 50, V, V + 1, max(V // 2, 1)),
        presence_penalty=pick(0, 0, 0.5, -2),
        frequency_penalty=pick(0, 0, 0.25, -2),
        repetition_penalty=pick(1, 1, 1.3, 0.01, 100),
        bias=[{i: float(np.float32(rng.uniform(-100, 100))) for i in some(5)} for _ in range(R)],
        banned=[some(max(V // 2, 1)) for _ in range(R)],
        output=[{i: int(rng.integers(1, 9)) for i in some(8)} for _ in range(R)],
        seen=[some(40) for _ in range(R)],
        top_logprobs=pick(-1, 0, 1, 5, 20),
    )


def take(rows: SampleRows, order: list[int]) -> SampleRows:
    """The rows of these numbers, in this order."""

    def lists(x: IdLists) -> IdLists:
        parts = [x.of_row(r) for r in order]
        start = np.cumsum([0, *(p.stop - p.start for p in parts)], dtype=np.int32)
        ids = np.concatenate([x.ids[p] for p in parts])
        return IdLists(start, ids, None if x.values is None else np.concatenate([x.values[p] for p in parts]))

    fields: dict[str, Any] = {name: getattr(rows, name)[order] for name in _PLAIN}
    for name in ("bias", "banned", "output", "seen"):
        fields[name] = lists(getattr(rows, name))
    return SampleRows(**fields)


def assert_same_draws(actual: Draws, expected: Draws, what: str = "") -> None:
    for name in Draws.__slots__:
        assert_bitwise(getattr(actual, name), getattr(expected, name), f"{what} {name}")


def language_like(rng: np.random.Generator, R: int, V: int) -> NDArray[np.float32]:
    """Logits shaped like a language model's: a wide body far below a few likely tokens."""
    x = rng.standard_normal((R, V)) * 2.5 - 5
    for r in range(R):
        x[r, rng.integers(0, V, 40)] += np.abs(rng.standard_normal(40) * 6)
    return x.astype(np.float32)
