"""The decoder of native-sm90/1 where there is no triton: over the twins of its ops."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchgen import kernels
from batchgen.kernels.reference import native as twin
from batchgen.kernels.step_shape import StepShape
from batchgen.models.any_decoder import AnyDecoder

_NAMES = ("embedding", "add_rms_norm", "linear", "linear_silu_mul", "rotary_store", "route", "experts", "combine")
_MODULE = "batchgen.models.native_decoder"


@contextmanager
def over_twins() -> Iterator[Callable[..., AnyDecoder]]:
    """The class NativeDecoder."""

    def attention(q: Any, cache: Any, tables: Any, start: Any, positions: Any, shape: StepShape) -> torch.Tensor:
        return twin.attention(q, cache, tables, start, positions)

    ops = SimpleNamespace(attention=attention, **{name: getattr(twin, name) for name in _NAMES})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "batchgen.kernels.triton", ops)
        patch.setattr(kernels, "triton", ops, raising=False)
        patch.delitem(sys.modules, _MODULE, raising=False)
        __import__(_MODULE)
        yield sys.modules[_MODULE].NativeDecoder
        sys.modules.pop(_MODULE, None)
