"""A Hugging Face folder as a Checkpoint: config.json and safetensors, one file or many with an index."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from batchgen.errors import ModelError
from batchgen.models.config_json import read_config_json
from batchgen.models.files import INDEX, SINGLE, read_index, weight_files
from batchgen.models.weights import Checkpoint, Shape, check_inventory, without_copies

_DTYPES = ("BF16", "F16", "F32")


def open_folder(path: Path) -> Checkpoint:
    """Opens the model folder at `path`, in bfloat16, float16 or float32.

    Raises ModelError if a file or tensor is missing, torn, unknown or of the wrong shape; pickles are never opened.
    """
    config = read_config_json(path / "config.json")
    files = [_File(path / name) for name in weight_files(path)]
    home: dict[str, _File] = {}
    for file in files:
        for name in file.shapes:
            if name in home:
                raise ModelError(f"tensor {name} is also in {home[name].path.name}", where=str(file.path))
            home[name] = file
    index = read_index(path)
    for name, shard in index.items():
        if name not in home or home[name].path.name != shard:
            raise ModelError(f"tensor {name} is not in {shard}", where=str(path / INDEX))

    def where(name: str) -> str:
        return str(home[name].path) if name in home else str(path / index.get(name, INDEX if index else SINGLE))

    def read(name: str) -> torch.Tensor:
        return home[name].read(name)

    names = without_copies(home, config, read, where)
    check_inventory({name: home[name].shapes[name] for name in names}, config, where)
    return Checkpoint(config, str(path), read)


def _open(path: Path) -> Any:
    return safe_open(path, framework="pt")


class _File:
    """One safetensors file, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = _open(path)
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  it is no dict
        except (OSError, SafetensorError) as e:
            raise ModelError(f"cannot be read as safetensors: {e}", where=str(path), hint="fetch it again") from e
        for name, part in slices.items():
            if part.get_dtype() not in _DTYPES:
                known = f"known: {', '.join(_DTYPES)}"
                raise ModelError(f"tensor {name} is stored as {part.get_dtype()}", where=str(path), hint=known)
        self.shapes: dict[str, Shape] = {name: tuple(part.get_shape()) for name, part in slices.items()}

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor
