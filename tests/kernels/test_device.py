"""Which device a job gets, on a machine with and without an NVIDIA GPU. What torch says of the machine is made up."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_cases import load_tiny, make_engine

from batchgen.engine.kv_cache import block_bytes
from batchgen.errors import EngineError
from batchgen.executor import start
from batchgen.executor.run_config import RunConfig
from batchgen.kernels import device
from batchgen.kernels.device import CPU, TENSOR_CORES, choose, describe


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, *packages: str) -> None:
    """A machine with a GPU of that compute capability, or with none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Pretender")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(device, "find_spec", lambda name: name if name in packages else None)


CUDA = ("cuda", "cuda.core")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    assert choose("auto", "portable/1") == CPU == choose("cpu", "portable/1") == choose("auto", "native-amx/1")
    with pytest.raises(EngineError, match="torch finds no NVIDIA GPU"):
        choose("cuda", "portable/1")


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (8, 6), *CUDA)
    assert choose("auto", "portable/1") == torch.device("cuda", 0) == choose("cuda", "portable/1")
    assert choose("cpu", "portable/1") == CPU == choose("auto", "native-amx/1")
    with pytest.raises(EngineError, match="native-amx/1 is a profile of CPUs"):
        choose("cuda", "native-amx/1")


@pytest.mark.parametrize(
    ("capability", "packages", "message"),
    [((7, 5), CUDA, r"capability 7\.5; the kernels need 8\.0"), ((9, 0), ("cuda",), "need the package cuda-core")],
)
def test_a_gpu_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], packages: Any, message: str
) -> None:
    pretend(monkeypatch, capability, *packages)
    assert choose("auto", "portable/1") == CPU
    with pytest.raises(EngineError, match=message):
        choose("cuda", "portable/1")


def test_a_cpu_describes_itself() -> None:
    assert describe(CPU)["device"] == "cpu"
    assert {"instruction_set", "threads"} < describe(CPU).keys()


def test_a_gpu_without_room_for_one_sequence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = load_tiny(tmp_path)
    decoder = make_engine(model).runner._model  # type: ignore[attr-defined]
    monkeypatch.setattr(decoder, "device", torch.device("cuda", 0))
    monkeypatch.setattr(start, "free_bytes", lambda _: 10 * block_bytes(model.config))
    with pytest.raises(EngineError, match=r"needs .* GiB of KV cache, and has (?s:.*)lower model\.max_model_len"):
        start._num_blocks(decoder, 320, RunConfig(tmp_path))
    assert start._num_blocks(decoder, 256, RunConfig(tmp_path)) == 9
    assert start._num_blocks(decoder, 256, RunConfig(tmp_path, max_num_seqs=1)) == 8
    assert start._num_blocks(decoder, 64, RunConfig(tmp_path, memory_fraction=0.5)) == 5


@pytest.mark.parametrize("fraction", [0.0, 1.5])
def test_a_fraction_is_a_fraction(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory_fraction"):
        RunConfig(tmp_path, memory_fraction=fraction)


@pytest.mark.parametrize(
    ("capability", "packages", "message"),
    [
        (None, (), "torch finds no NVIDIA GPU"),
        ((8, 0), CUDA, r"needs a GPU of compute capability 9\.0 \(Hopper\); this Pretender has 8\.0"),
        ((10, 0), CUDA, r"this Pretender has 10\.0"),
        ((9, 0), CUDA, "needs the package triton"),
    ],
)
def test_where_the_tensor_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch, capability: Any, packages: Any, message: str
) -> None:
    pretend(monkeypatch, capability, *packages)
    with pytest.raises(EngineError, match=message) as refused:
        choose("auto", TENSOR_CORES)
    assert "portable/1" in str(refused.value)
    with pytest.raises(EngineError, match="is a profile of NVIDIA GPUs"):
        choose("cpu", TENSOR_CORES)


def test_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 0), *CUDA, "triton")
    assert choose("auto", TENSOR_CORES) == torch.device("cuda", 0) == choose("cuda", TENSOR_CORES)


def test_limits_fit_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    assert start.fitting_limits("auto", "portable/1") == {}
    pretend(monkeypatch, (9, 0), *CUDA)
    assert start.fitting_limits("auto", "portable/1") == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    assert start.fitting_limits("cpu", "portable/1") == {} == start.fitting_limits("auto", "native-amx/1")
