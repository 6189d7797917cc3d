"""Weights in the layout of the CPU kernels, kept in a cache file for later starts.

A linear weight is packed as kernels/packing.py says. Norms and biases are float32 [N]. Names, for layer i:

    embed                   token table, and the head too when the embeddings are tied
    layers.{i}.qkv          q, k and v along N          layers.{i}.qkv_bias (Qwen2)
    layers.{i}.q_norm, layers.{i}.k_norm (Qwen3)        layers.{i}.o
    layers.{i}.gate_up      gate and up along N         layers.{i}.down
    layers.{i}.input_norm, layers.{i}.post_norm         final_norm
    lm_head                 only when it is not tied

The file is the tensors, each at a multiple of 64 bytes, then a JSON footer, then 40 bytes: length of the footer, magic,
xxh3_128 of all before. It is named by the digest of the model's files and the version of the layout.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import torch
import xxhash

from batchgen.kernels.cpu.memory import zeros
from batchgen.kernels.packing import pack
from batchgen.models.config import ModelConfig
from batchgen.models.locking import exclusive
from batchgen.models.weights import EMBEDDING, LM_HEAD, Checkpoint, combine_digests, tensor_digest

# Goes up with every change of what is packed or of how: dequantising, rounding, names, order.
LAYOUT = 1

_MAGIC = b"batchgen.packed\n"
_TAIL = 8 + len(_MAGIC) + 16
_ALIGN = 64
_TEMPORARY = ".packed-"


class _DamagedError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """`tensors` are to be read, never written."""

    config: ModelConfig
    weights_digest: str
    tensors: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @classmethod
    def open_or_build(cls, open_model: Callable[[], Checkpoint], cache_dir: Path, key: str) -> Self:
        """Reads the cache file of `key` (`files.source_digest` of the model), or builds it.

        `open_model` is called only to build. A cache that cannot be written is a RuntimeWarning, and the weights are
        then held in memory; one that is torn or altered is built again. Raises ModelError if the model is at fault.
        """
        path = cache_dir / f"{key}-{LAYOUT}.packed"
        try:
            return cls._read(path, key)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (_DamagedError, OSError) as e:
            warnings.warn(f"{path}: {e}; building it again", RuntimeWarning, stacklevel=2)
        model = open_model()
        try:
            with exclusive(cache_dir):
                with suppress(FileNotFoundError, _DamagedError):  # unless another process was faster
                    return cls._read(path, key)
                for stale in cache_dir.glob(f"{_TEMPORARY}*"):  # of a process that was killed
                    stale.unlink()
                _write(path, key, model)
            return cls._read(path, key)
        except (_DamagedError, OSError) as e:
            warnings.warn(f"{path}: {e}; the packed weights stay in memory", RuntimeWarning, stacklevel=2)
            digests: dict[str, str] = {}
            tensors = dict(_packed(model, digests))
            return cls(model.config, combine_digests(model.config, digests), tensors)

    @classmethod
    def _read(cls, path: Path, key: str) -> Self:
        """Raises FileNotFoundError, and _DamagedError unless every byte is as it was written."""
        size = path.stat().st_size
        if size < _TAIL:
            raise _DamagedError("is too short")
        # Read, not mapped: all of it is hashed anyway, and the kernels want it in huge pages.
        data = zeros(size, dtype=torch.uint8)
        view = data.numpy()
        with path.open("rb") as file:
            if file.readinto(view.data) != size:
                raise _DamagedError("changed while it was read")
        tail = view[size - _TAIL :].tobytes()
        if tail[8:-16] != _MAGIC:
            raise _DamagedError("is torn")
        if xxhash.xxh3_128(view[: size - 16].data).digest() != tail[-16:]:
            raise _DamagedError("does not hold what was written")
        start = size - _TAIL - int.from_bytes(tail[:8], "little")
        footer = json.loads(view[start : size - _TAIL].tobytes())
        if footer["key"] != key or footer["layout"] != LAYOUT:
            raise _DamagedError("is of another model")
        tensors = {}
        for name, (dtype, shape, at) in footer["tensors"].items():
            kind = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
            count = torch.Size(shape).numel()
            tensors[name] = data[at : at + count * kind.itemsize].view(kind).view(shape)
        try:
            config = ModelConfig.from_json(footer["config"])
        except (TypeError, KeyError, ValueError) as e:
            raise _DamagedError("was written by another version") from e
        return cls(config, footer["weights_digest"], tensors)


def _packed(model: Checkpoint, digests: dict[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every packed tensor of `model`, one in memory at a time. Fills in the digest of each tensor that it read."""
    return fused(model, digests, lambda weight: pack(weight).data)


def fused(
    model: Checkpoint, digests: dict[str, str], layout: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor under its name above, linears by `layout` of bf16 [N, K]; digests as of `_packed`."""

    def take(name: str) -> torch.Tensor:
        tensor = model.tensor(name)
        digests[name] = tensor_digest(tensor)
        return tensor

    def linear(*names: str) -> torch.Tensor:
        return layout(torch.cat([take(name) for name in names]))

    def vector(*names: str) -> torch.Tensor:
        return torch.cat([take(name) for name in names]).float()

    yield "embed", linear(EMBEDDING)
    for i in range(model.config.num_layers):
        to, layer = f"layers.{i}.", f"model.layers.{i}."
        attention = layer + "self_attn."
        qkv = [f"{attention}{part}_proj" for part in "qkv"]
        yield to + "input_norm", vector(layer + "input_layernorm.weight")
        yield to + "qkv", linear(*(f"{name}.weight" for name in qkv))
        if model.config.qkv_bias:
            yield to + "qkv_bias", vector(*(f"{name}.bias" for name in qkv))
        if model.config.qk_norm:
            yield to + "q_norm", vector(attention + "q_norm.weight")
            yield to + "k_norm", vector(attention + "k_norm.weight")
        yield to + "o", linear(attention + "o_proj.weight")
        yield to + "post_norm", vector(layer + "post_attention_layernorm.weight")
        yield to + "gate_up", linear(layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight")
        yield to + "down", linear(layer + "mlp.down_proj.weight")
    yield "final_norm", vector("model.norm.weight")
    if not model.config.tie_word_embeddings:
        yield "lm_head", linear(LM_HEAD)


def _write(path: Path, key: str, model: Checkpoint) -> None:
    """Writes the cache file under a temporary name and renames it. Leaves nothing behind on failure."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(fd, "wb") as file:
            _write_content(file, key, model)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _write_content(file: BinaryIO, key: str, model: Checkpoint) -> None:
    digest = xxhash.xxh3_128()
    at = 0

    def write(data: bytes | memoryview) -> None:
        nonlocal at
        file.write(data)
        digest.update(data)
        at += len(data)

    digests: dict[str, str] = {}
    places = {}
    for name, tensor in _packed(model, digests):
        write(bytes(-at % _ALIGN))
        places[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at)
        write(tensor.view(-1).view(torch.uint8).numpy().data)
    footer = {
        "layout": LAYOUT,
        "key": key,
        "weights_digest": combine_digests(model.config, digests),
        "config": model.config.to_json(),
        "tensors": places,
    }
    encoded = json.dumps(footer).encode()
    write(encoded + len(encoded).to_bytes(8, "little") + _MAGIC)
    file.write(digest.digest())
