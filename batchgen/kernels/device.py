"""Which device the ops run on, and what it is."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from batchgen.errors import EngineError
from batchgen.kernels.cpu.native import machine

Wanted: TypeAlias = Literal["auto", "cpu", "cuda"]

Device: TypeAlias = torch.device

CPU = torch.device("cpu")
OLDEST = (8, 0)  # compute capability
TENSOR_CORES = "native-sm90/1"  # the profile whose ops are those of kernels/triton

_PORTABLE = "portable/1 gives the same bits on every CPU and GPU: --device cpu"


def choose(wanted: Wanted, numerics: str) -> torch.device:
    """The device for a job of that profile. Raises EngineError when the profile or `wanted` asks for one that is not.

    auto: the current NVIDIA GPU where it can be used and the profile has kernels for it, else the CPU.
    """
    if numerics == TENSOR_CORES:
        return _tensor_cores(wanted, numerics)
    if wanted == "cpu" or (wanted == "auto" and (numerics != "portable/1" or _obstacle() is not None)):
        return CPU
    if numerics != "portable/1":
        raise EngineError(f"{numerics} is a profile of CPUs", hint="leave --device out, or ask for portable/1")
    return _gpu(_PORTABLE)


def choose_for_rank(wanted: Wanted, numerics: str, rank: int) -> torch.device:
    """As `choose`, for one of several processes on a host: the GPU of its number, which may be none that is there."""
    if wanted != "cpu" and rank < torch.cuda.device_count():
        torch.cuda.set_device(rank)
    device = choose(wanted, numerics)
    return device if device.type == "cpu" else torch.device("cuda", rank)


def num_gpus() -> int:
    """Those that this process may use."""
    return torch.cuda.device_count()


def _tensor_cores(wanted: Wanted, numerics: str) -> torch.device:
    """An NVIDIA GPU of the generation that the profile is written for."""
    hint = "run the job where there is one, or ask for portable/1, which gives other bits"
    if wanted == "cpu":
        raise EngineError(f"{numerics} is a profile of NVIDIA GPUs", hint="leave --device cpu out")
    device = _gpu(hint)
    found = torch.cuda.get_device_capability(device)
    if found[0] != 9:
        raise EngineError(
            f"{numerics} needs a GPU of compute capability 9.0 (Hopper); this {torch.cuda.get_device_name(device)} has "
            f"{found[0]}.{found[1]}",
            hint=hint,
        )
    if find_spec("triton") is None:
        raise EngineError(f"{numerics} needs the package triton, which torch brings along on Linux", hint=hint)
    return device


def _gpu(hint: str) -> torch.device:
    """The current GPU."""
    if obstacle := _obstacle():
        raise EngineError(obstacle, hint=hint)
    return torch.device("cuda", torch.cuda.current_device())


def _obstacle() -> str | None:
    """Why no GPU can be used; None where one can."""
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU on this machine"
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        return f"the GPU has compute capability {capability[0]}.{capability[1]}; the kernels need 8.0 (Ampere) or later"
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "CUDA kernels need the package cuda-core: pip install '.[cuda]' in a clone"
    return None


def describe(device: torch.device) -> dict[str, str | int]:
    """What the ops run on. No bit of portable/1 depends on it."""
    if device.type == "cpu":
        return {"device": "cpu", **machine()}
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": torch.cuda.get_device_name(device),
        "compute_capability": f"{major}.{minor}",
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "unknown",
    }


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found[0] if found else "unknown"


def free_bytes(device: torch.device) -> int:
    """Of the GPU's memory, what neither this process's tensors nor another program holds."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
