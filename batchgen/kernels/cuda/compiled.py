"""From a CUDA C++ file of this folder to a kernel that can be launched.

Sources are compiled by NVRTC once for each architecture; the result is kept in the folder of `cache_folder`, under a
name made of all that it hangs on.
"""

import hashlib
import os
import re
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from batchgen.errors import EngineError

_HERE = Path(__file__).parent
_FOLDERS = (_HERE, _HERE.parents[2] / "csrc")  # installed, the shared headers lie here; in a checkout, there
_STAND_INS = {"simd.h": "scalar.cuh"}
_INCLUDE = re.compile(r'#include "([\w.]+)"')
_OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "device_as_default_execution_space": True,  # what csrc/ declares has no __device__
    "fma": False,
    "ftz": False,
    "prec_div": True,
    "prec_sqrt": True,
}


def source(name: str) -> str:
    """The text of a .cu file with its includes in place, each once, so that it compiles without any folder."""
    return _expanded(name, set())


def _expanded(name: str, done: set[str]) -> str:
    name = _STAND_INS.get(name, name)
    if name in done:
        return ""
    done.add(name)
    path = next(path for folder in _FOLDERS if (path := folder / name).exists())
    lines = path.read_text(encoding="utf-8").splitlines()
    parts = [_expanded(found[1], done) if (found := _INCLUDE.match(line)) else line for line in lines]
    return "\n".join(part for part in parts if part != "#pragma once")


def cache_folder() -> Path:
    """cuda in $BATCHGEN_CACHE, else in batchgen in $XDG_CACHE_HOME, else in ~/.cache/batchgen."""
    own = os.environ.get("BATCHGEN_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own or Path(user) / "batchgen") / "cuda"


@cache
def kernel(file: str, name: str, device: int, **macros: int) -> Any:
    """The kernel `name` of `file`, compiled for the architecture of that device with these macros defined.

    Raises EngineError when cuda-core is missing, the device is too old or the compiler refuses the source.
    """
    return _library(file, torch.cuda.get_device_capability(device), tuple(sorted(macros.items()))).get_kernel(name)


@cache
def _library(file: str, capability: tuple[int, int], macros: tuple[tuple[str, int], ...]) -> Any:
    if capability < (8, 0):
        raise EngineError(
            f"there are no kernels for a GPU of compute capability {capability[0]}.{capability[1]}",
            hint="8.0 (Ampere) or later is needed; portable/1 also runs on the CPU, with the same bits",
        )
    try:
        from cuda.bindings import nvrtc
        from cuda.core import ObjectCode
    except ImportError as error:
        raise EngineError(f"CUDA kernels need cuda-core ({error})", hint="pip install '.[cuda]' in a clone") from error
    text = "".join(f"#define {name} {value}\n" for name, value in macros) + source(file)
    options = {**_OPTIONS, "arch": f"sm_{capability[0]}{capability[1]}"}
    key = hashlib.sha256(repr((text, sorted(options.items()), nvrtc.nvrtcVersion())).encode()).hexdigest()
    path = cache_folder() / f"{Path(file).stem}-{key[:32]}.cubin"
    cubin = _stored(path)
    if cubin is None:
        cubin = _compiled(file, text, options)
        _store(path, cubin)
    return ObjectCode.from_cubin(cubin, name=file)


def _compiled(file: str, text: str, options: dict[str, Any]) -> bytes:
    from cuda.core import Program, ProgramOptions

    try:
        return bytes(Program(text, "c++", ProgramOptions(name=file, **options)).compile("cubin").code)
    except Exception as error:  # cuda-core has an exception for each layer beneath it
        raise EngineError(f"NVRTC could not compile {file}: {error}") from error


def _stored(path: Path) -> bytes | None:
    """What `_store` wrote; None when there is nothing, or not all of it."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, cubin = data[:32], data[32:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


def _store(path: Path, cubin: bytes) -> None:
    """Written beside and renamed. A folder that cannot be written costs the next start the compiler's time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(cubin).digest() + cubin)
        os.replace(file.name, path)
    except OSError:
        return


def launch(compiled: Any, device: torch.device, grid: tuple[int, ...], block: int, *arguments: int | float) -> None:
    """Queue a kernel on torch's current stream. Integers and addresses are passed as 64 bits, floats as doubles.

    Raises EngineError unless `device` is torch's current one.
    """
    if device.index != torch.cuda.current_device():
        raise EngineError(f"a tensor lies on {device}, but the current device is {torch.cuda.current_device()}")
    if 0 not in grid:
        _queue()(_stream(torch.cuda.current_stream(device).cuda_stream), _config(grid, block), compiled, *arguments)


@cache
def _queue() -> Any:
    from cuda.core import launch as queue

    return queue


@lru_cache(maxsize=64)
def _stream(handle: int) -> Any:
    from cuda.core import Stream

    return Stream.from_handle(handle)


@lru_cache(maxsize=4096)
def _config(grid: tuple[int, ...], block: int) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block)
