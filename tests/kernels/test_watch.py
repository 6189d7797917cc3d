"""kernels.watch hears what each op returns, and changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.engine.canary import sample_rows
from batchgen.kernels import PackedWeight
from batchgen.kernels.packing import pack

Heard = list[tuple[str, dict[str, Any]]]


@contextmanager
def hearing() -> Iterator[Heard]:
    heard: Heard = []
    with kernels.watch(lambda op, outputs: heard.append((op, dict(outputs)))):
        yield heard


def weight(N: int = 64, K: int = 32) -> PackedWeight:
    return pack(torch.linspace(-1, 1, N * K).view(N, K).to(torch.bfloat16))


def rows(T: int, K: int = 32) -> torch.Tensor:
    return torch.linspace(-2, 2, T * K).view(T, K).to(torch.bfloat16)


def test_it_hears_outputs_while_it_is_open() -> None:
    kernels.linear(rows(3), weight())
    with hearing() as heard:
        y = kernels.linear(rows(3), weight())
        normed = kernels.rms_norm(y, torch.ones(64), 1e-5)
        embedded = kernels.embedding(torch.tensor([1, 5], dtype=torch.int32), weight())
        gated = kernels.linear_silu_mul(rows(2), weight())
    kernels.linear(rows(3), weight())
    assert [op for op, _ in heard] == ["linear", "rms_norm", "embedding", "linear_silu_mul"]
    for (_, outputs), returned in zip(heard, (y, normed, embedded, gated), strict=True):
        assert outputs.keys() == {"out"}
        assert outputs["out"] is returned


def test_keys_and_values_are_outputs_of_rotary_store() -> None:
    Hk, D, T = 2, 32, 5
    qkv = torch.linspace(-1, 1, T * 4 * Hk * D).view(T, 4 * Hk * D)
    cache = (
        torch.zeros(3, Hk, D // 2, 32, 2, dtype=torch.bfloat16),
        torch.zeros(3, Hk, 16, D, 2, dtype=torch.bfloat16),
    )
    slots = torch.tensor([33, 2, 95, 31, 64])
    rotary = (torch.ones(8, D // 2), torch.zeros(8, D // 2))  # no turn: q, k and v are those of qkv, rounded
    place = (torch.arange(T, dtype=torch.int32), slots)
    with hearing() as heard:
        q = kernels.rotary_store(qkv, None, 1e-5, rotary, place, cache)
        start = torch.tensor([0, 1], dtype=torch.int32)
        kernels.attention(q[1:2], cache, torch.tensor([[0]], dtype=torch.int32), start, place[0][2:3])
    [(op, outputs), (attention, _)] = heard
    assert (op, attention) == ("rotary_store", "attention")
    assert list(outputs) == ["q", "k", "v"]
    heads = qkv.to(torch.bfloat16).view(T, 4 * Hk, D)
    for name, wanted in (("q", heads[:, : 2 * Hk]), ("k", heads[:, 2 * Hk : 3 * Hk]), ("v", heads[:, 3 * Hk :])):
        assert_bitwise(outputs[name], wanted.contiguous(), name)


def test_draws_by_name() -> None:
    with hearing() as heard:
        draws = kernels.sample(
            torch.linspace(-3, 3, 80).view(2, 40), sample_rows(range(2), 40), processed_logprobs=True
        )
    [(op, outputs)] = heard
    assert op == "sample"
    assert list(outputs) == ["token", "logprob", "top_ids", "top_values", "finite"]
    assert np.array_equal(outputs["token"], draws.token)


def test_two_observers_hear_the_same_and_an_error_closes() -> None:
    with hearing() as outer:
        with hearing() as inner:
            kernels.linear(rows(1), weight())
        with pytest.raises(RuntimeError), hearing():
            raise RuntimeError
        kernels.linear(rows(2), weight())
    kernels.linear(rows(3), weight())
    assert len(outer) == 2
    assert len(inner) == 1
