"""The cache file of packed weights: tensors that are checked one by one, so that a reader may take some of them.

The tensors come first, each at a multiple of 64 bytes, then a JSON footer, then 40 bytes: the length of the footer, a
magic word, xxh3_128 of the footer and these two. The footer has an xxh3_128 of each tensor, of one of experts an
xxh3_128 of each expert.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
import xxhash

from batchgen.kernels.cpu.memory import zeros

TEMPORARY = ".packed-"  # begins the name of a file that is being written

_MAGIC = b"batchgen.packed\n"
_TAIL = 8 + len(_MAGIC) + 16
_ALIGN = 64
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class DamagedError(Exception):
    """The file is not what was written."""


class Footer(NamedTuple):
    """What the file says of itself."""

    about: dict[str, Any]  # what was given to `write`
    tensors: dict[str, tuple[str, list[int], int, list[str]]]  # dtype, shape, place, digests of its parts


def write(
    path: Path, tensors: Iterable[tuple[str, torch.Tensor]], about: dict[str, Any], stacked: frozenset[str]
) -> None:
    """Under a temporary name, then renamed; nothing is left behind on failure.

    `about` is read after the last tensor, and may be filled in by who makes them. `stacked`: names of tensors whose
    first dimension counts experts.
    """
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(fd, "wb") as file:
            _write(file, tensors, about, stacked)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _write(
    file: BinaryIO, tensors: Iterable[tuple[str, torch.Tensor]], about: dict[str, Any], stacked: frozenset[str]
) -> None:
    places, at = {}, 0
    for name, tensor in tensors:
        at += file.write(bytes(-at % _ALIGN))
        parts = [part.reshape(-1).view(torch.uint8).numpy().data for part in (tensor if name in stacked else [tensor])]
        digests = [xxhash.xxh3_128(part).hexdigest() for part in parts]
        places[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at, digests)
        for part in parts:
            at += file.write(part)
    encoded = json.dumps({"about": about, "tensors": places, "end": at}).encode()
    end = encoded + len(encoded).to_bytes(8, "little") + _MAGIC
    file.write(end + xxhash.xxh3_128(end).digest())


def read_footer(file: BinaryIO) -> Footer:
    """Raises DamagedError unless it is whole, and the file as long as it was."""
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL:
        raise DamagedError("is too short")
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    start = size - _TAIL - int.from_bytes(tail[:8], "little")
    if tail[8:-16] != _MAGIC or start < 0:
        raise DamagedError("is torn")
    file.seek(start)
    encoded = file.read(size - _TAIL - start)
    if xxhash.xxh3_128(encoded + tail[:-16]).digest() != tail[-16:]:
        raise DamagedError("does not hold what was written")
    footer = json.loads(encoded)
    if footer["end"] != start:
        raise DamagedError("has lost a part")
    return Footer(footer["about"], footer["tensors"])


def read_tensors(file: BinaryIO, footer: Footer, slots: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """All tensors; of those named in `slots` only these experts, in this order. Raises DamagedError."""
    wanted = {name: slots.get(name, range(len(digests))) for name, (*_, digests) in footer.tensors.items()}
    sizes = {name: _size(footer, name) // len(footer.tensors[name][3]) for name in wanted}
    starts, total = {}, 0
    for name, parts in wanted.items():
        starts[name] = total
        total += -(-sizes[name] * len(parts) // _ALIGN) * _ALIGN
    # Read, not mapped: all of it is hashed anyway, and the kernels want it in huge pages.
    data = zeros(total, dtype=torch.uint8)
    tensors = {}
    for name, parts in wanted.items():
        dtype, shape, at, digests = footer.tensors[name]
        room = data[starts[name] : starts[name] + sizes[name] * len(parts)]
        for i, part in enumerate(parts):
            here = room[i * sizes[name] : (i + 1) * sizes[name]].numpy().data
            file.seek(at + part * sizes[name])
            if file.readinto(here) != sizes[name]:  # type: ignore[attr-defined]
                raise DamagedError("changed while it was read")
            if xxhash.xxh3_128(here).hexdigest() != digests[part]:
                raise DamagedError(f"does not hold what was written: {name}")
        tensors[name] = room.view(_DTYPES[dtype]).view([len(parts), *shape[1:]] if name in slots else shape)
    return tensors


def _size(footer: Footer, name: str) -> int:
    dtype, shape, _, _ = footer.tensors[name]
    return torch.Size(shape).numel() * _DTYPES[dtype].itemsize
