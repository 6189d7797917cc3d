"""What can be known of a model on disk without its weights: its files and source digest. No torch."""

import json
from pathlib import Path
from typing import Any

import xxhash

from batchgen.errors import ModelError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def weight_files(path: Path) -> list[str]:
    """Names of the safetensors files of a folder, sorted. Raises ModelError if there are none, or one is missing."""
    names = sorted(set(read_index(path).values()))
    if (path / SINGLE).is_file():
        if names not in ([], [SINGLE]):
            raise ModelError(f"holds both {SINGLE} and shards", where=str(path), hint="remove those that are not meant")
        return [SINGLE]
    for name in names:
        if not (path / name).is_file():
            hint = "fetch the folder again"
            raise ModelError(f"the shard {name} is missing", where=str(path / INDEX), hint=hint)
    if names:
        return names
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in _PICKLES)
    if pickles:
        hint = "pickles can run code, so they are not read; save the model with safe_serialization=True"
        raise ModelError(f"the weights are pickled ({pickles[0]})", where=str(path), hint=hint)
    raise ModelError(f"there is neither {SINGLE} nor {INDEX}", where=str(path))


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, empty without an index."""
    file = path / INDEX
    if not file.is_file():
        return {}
    try:
        names: Any = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        if not names or not all(isinstance(shard, str) and Path(shard).name == shard for shard in names.values()):
            raise ValueError("weight_map should give a plain file name for each tensor")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ModelError(f"is not an index of shards: {e}", where=str(file)) from e
    return dict(names)


def source_digest(path: Path) -> str:
    """Hex xxh3_128 over names and contents of the files that config and weights are read from.

    Of contents, not of size and time, so that a changed model never meets the cache of another. A guard against
    accidents; the digest that identifies a model is `Checkpoint.weights_digest`.
    """
    if path.is_dir():
        names = ["config.json", *weight_files(path), *([INDEX] if (path / INDEX).is_file() else [])]
        files = [path / name for name in names]
    else:
        files = [path]
    whole = xxhash.xxh3_128()
    try:
        for file in files:
            content = xxhash.xxh3_128(file.name.encode())
            with file.open("rb") as f:
                while chunk := f.read(1 << 22):
                    content.update(chunk)
            whole.update(content.digest())
    except OSError as e:
        raise ModelError(f"cannot be read: {e.strerror}", where=str(e.filename)) from e
    return whole.hexdigest()
