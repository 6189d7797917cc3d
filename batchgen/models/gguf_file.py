"""The GGUF container: metadata and where each tensor's bytes lie. No torch; numpy for arrays of numbers.

The `gguf` package reads the same and takes 1.7 s over a vocabulary of 49,152 tokens, because it keeps a numpy
array for each string; here it is 0.1 s, and every length is checked against the file.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from batchgen.errors import ModelError


class GgmlType(NamedTuple):
    """A way to store numbers: `block` values in `size` bytes."""

    name: str
    block: int
    size: int


GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    8: GgmlType("Q8_0", 32, 34),
    12: GgmlType("Q4_K", 256, 144),
    14: GgmlType("Q6_K", 256, 210),
    30: GgmlType("BF16", 1, 2),
}
_NOT_SUPPORTED = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 39: "MXFP4"}

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is in the usual order, last axis contiguous; `start` is in bytes from the start of the file."""

    shape: tuple[int, ...]
    type: GgmlType
    start: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.type.block * self.type.size


class GgufFile:
    """A GGUF file, version 2 or 3, little endian. `metadata` holds Python values, arrays as lists.

    Raises ModelError if it is not such a file, is torn, or holds a tensor of a type that is not in `GGML_TYPES`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                self._bytes = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            cursor = _Cursor(self._bytes)
            if (magic := cursor.take(4)) != b"GGUF":
                raise ValueError(f"it starts with {magic!r}, not with GGUF")
            if (version := cursor.scalar("I")) not in (2, 3):
                raise ValueError(f"version {version} is not known (2 and 3 are; big-endian files are not)")
            num_tensors, num_fields = cursor.scalar("Q"), cursor.scalar("Q")
            self.metadata = dict(cursor.field() for _ in range(num_fields))
            alignment = self.metadata.get("general.alignment", 32)
            if not isinstance(alignment, int) or alignment < 1:
                raise ValueError(f"general.alignment is {alignment!r}")
            tensors = [cursor.tensor() for _ in range(num_tensors)]
            base = -(-cursor.at // alignment) * alignment
            self.tensors = {name: GgufTensor(shape, kind, base + start) for name, shape, kind, start in tensors}
            if len(self.tensors) != num_tensors or len(self.metadata) != num_fields:
                raise ValueError("a name occurs twice")
            for name, tensor in self.tensors.items():
                if tensor.start + tensor.nbytes > len(self._bytes):
                    raise EOFError(f"it ends inside tensor {name}")
        except (OSError, EOFError, ValueError) as e:
            hint = "fetch the file again" if isinstance(e, EOFError) else ""
            raise ModelError(f"cannot be read as GGUF: {e}", where=str(path), hint=hint) from e

    def data(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """The stored bytes of a tensor: uint8 [nbytes], read-only, mapped from the file."""
        tensor = self.tensors[name]
        return np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.start)


class _Cursor:
    """Reads forward; EOFError past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise EOFError("it ends too early")
        return self._data[start : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, length = self.scalar("I"), self.scalar("Q")
            if item in _SCALARS:
                dtype = np.dtype("<" + _SCALARS[item])
                return np.frombuffer(self.take(length * dtype.itemsize), dtype).tolist()
            return [self.value(item) for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"metadata of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def field(self) -> tuple[str, Any]:
        return self.string(), self.value(self.scalar("I"))

    def tensor(self) -> tuple[str, tuple[int, ...], GgmlType, int]:
        """Name, shape, type, and start relative to the data section."""
        name = self.string()
        axes = self.scalar("I")
        shape = tuple(reversed([self.scalar("Q") for _ in range(axes)]))
        code, start = self.scalar("I"), self.scalar("Q")
        if code not in GGML_TYPES:
            known = ", ".join(t.name for t in GGML_TYPES.values())
            raise ValueError(f"tensor {name} is stored as {_NOT_SUPPORTED.get(code, f'type {code}')}; known: {known}")
        if axes == 0 or shape[-1] % GGML_TYPES[code].block:
            raise ValueError(f"tensor {name} of shape {list(shape)} cannot be stored as {GGML_TYPES[code].name}")
        return name, shape, GGML_TYPES[code], start
