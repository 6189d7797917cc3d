"""Threads, instruction sets, and the floating-point mode of the process: the machine cannot be seen."""

import ctypes
import platform
import sys
from collections.abc import Iterator

import pytest
import torch
from support.model_cases import assert_same, generate, make_engine, requests, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.errors import EngineError
from batchgen.kernels import golden
from batchgen.kernels.cpu.native import library
from batchgen.loader import LoadedModel

SETS = library().instruction_sets()


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    library().use(SETS[-1])
    library().set_threads(1)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads(model: LoadedModel, alone: dict[str, str], threads: int) -> None:
    assert_same(generate(make_engine(model, threads=threads), requests()), alone, f"{threads} threads")
    assert library().threads() == threads


@pytest.mark.parametrize("isa", SETS)
def test_instruction_sets(model: LoadedModel, alone: dict[str, str], isa: str) -> None:
    library().use(isa)
    assert_same(generate(make_engine(model, threads=2), requests(14 if isa == "scalar" else 64)), alone, isa)


@pytest.mark.parametrize("isa", SETS)
def test_every_set_computes_the_profile(isa: str) -> None:
    library().use(isa)
    assert golden.kernel_set_digest() == golden.GOLDEN["portable/1"]


def test_flushed_denormals_cannot_be_seen(model: LoadedModel, alone: dict[str, str]) -> None:
    """What a host program has set for its own arithmetic, while an engine starts and while it runs."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert_same(generate(make_engine(model, threads=2), requests()), alone, "denormals flushed")
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="numbers of this C library")
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "to zero"])
def test_another_rounding_is_refused(model: LoadedModel, engine: Engine, mode: int) -> None:
    """No engine starts, and none goes on: what Python computes for the kernels would have other bits."""
    math = ctypes.CDLL("libm.so.6")
    assert math.fesetround(mode) == 0
    try:
        with pytest.raises(EngineError, match="does not round"):
            make_engine(model)
        with pytest.raises(EngineError, match="does not round"):
            generate(with_limits(engine), requests(2))
    finally:
        math.fesetround(0)


def test_counter_a_machine_that_computes_otherwise_is_refused(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of one op, and the engine does not start."""
    exact = kernels.rms_norm

    def off_by_one(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = exact(x, weight, eps)
        out.view(torch.int16)[-1, -1] ^= 1
        return out

    monkeypatch.setattr(kernels, "rms_norm", off_by_one)
    with pytest.raises(EngineError, match="do not compute portable/1"):
        make_engine(model)
