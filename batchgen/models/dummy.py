"""Drawn weights, for a model whose own are not at hand: the shapes are those of config.json, the values of a hash.

Each tensor is a function of its name and shape alone, the same bytes on every machine.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
import xxhash

from batchgen.models.config_json import read_config_json
from batchgen.models.weights import EMBEDDING, LM_HEAD, ROUTER_BIAS, Checkpoint, Shape, expected_tensors

_VERSION = 1  # goes up with every change of what is drawn
_GAINS = {EMBEDDING: 3.0, LM_HEAD: 3.0}  # of other linears 1, which keeps what goes through them near 1


def open_dummy(folder: Path) -> Checkpoint:
    """A model of the shape that config.json in `folder` says. Raises ModelError as `read_config_json`."""
    config = read_config_json(folder / "config.json")
    shapes = expected_tensors(config)
    return Checkpoint(config, f"{folder} (drawn)", lambda name: _drawn(name, shapes[name]))


def dummy_digest(folder: Path) -> str:
    """In place of `files.source_digest`: of all that the weights are drawn from."""
    return f"dummy{_VERSION}-{xxhash.xxh3_128((folder / 'config.json').read_bytes()).hexdigest()}"


def _drawn(name: str, shape: Shape) -> torch.Tensor:
    """bfloat16, uniform: a linear around 0 with a deviation of gain / sqrt(K), a norm near 1, a bias near 0."""
    key = int.from_bytes(hashlib.sha256(f"batchgen dummy {_VERSION} {name}".encode()).digest()[:16], "little")
    size = torch.Size(shape).numel()
    bits = np.random.Philox(key=key).random_raw(-(-size // 4)).astype("<u8", copy=False).view("<i2")[:size]
    values = torch.from_numpy(bits.astype(np.float32)).view(shape)
    if len(shape) == 1:
        values.mul_(0.1 / 2**15).add_(1.0 if name.endswith("norm.weight") else 0.0)
    else:
        values.mul_(_GAINS.get(name, 1.0) * (3 / shape[-1]) ** 0.5 / 2**15)
    return values if name.endswith(ROUTER_BIAS) else values.to(torch.bfloat16)
