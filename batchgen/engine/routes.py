"""Which experts the tokens of a sequence went to: what the routers of each layer chose."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.models.config import ModelConfig

# uint8 or uint16 [positions, layers, k]: ids of experts, ascending; 0 in layers without experts.
Experts: TypeAlias = NDArray[Any]


def refused_on_gpu() -> EngineError:
    """To raise where routes are asked for and a GPU computes."""
    hint = "leave it out, or run on a CPU"
    return EngineError("a GPU does not tell which experts it chose", where="routed_experts", hint=hint)


class Routes:
    """Those of one sequence, position by position from 0 on, as far as it was computed."""

    def __init__(self) -> None:
        self._parts: list[Experts] = []
        self._length = 0

    def add(self, start: int, experts: Experts) -> None:
        """What was chosen from position `start` on. Positions that are known, from before a preemption, stay."""
        assert start <= self._length, "a position was left out"
        new = experts[self._length - start :].copy()  # a view would keep the whole step
        self._parts += [new] if len(new) else []
        self._length += len(new)

    def first(self, size: int) -> Experts:
        """Of so many positions."""
        assert size <= self._length, "a position was not computed"
        return np.concatenate(self._parts)[:size]


class Span(NamedTuple):
    """Positions of one sequence in a step."""

    routes: Routes | None  # None: nobody asks
    start: int
    length: int


@contextmanager
def recording(spans: Sequence[Span], config: ModelConfig) -> Iterator[None]:
    """A block that computes one forward of tokens that are `spans`, side by side; their routes are longer after it.

    Raises EngineError for a model without experts, and on a GPU.
    """
    if all(span.routes is None for span in spans):
        yield
        return
    moe = config.moe
    if moe is None:
        raise EngineError("the model has no experts", where="routed_experts", hint="leave it out")
    ends = np.cumsum([span.length for span in spans])
    shape = ends[-1], config.num_layers, moe.routing.top_k
    experts: Experts = np.zeros(shape, np.uint8 if moe.num_experts <= 256 else np.uint16)
    layers = iter([layer for layer in range(config.num_layers) if config.is_moe(layer)])

    def see(op: str, outputs: kernels.Outputs) -> None:
        if op == "route":
            chosen: Any = outputs["experts"]
            if not chosen.is_cpu:
                raise refused_on_gpu()
            experts[:, next(layers)] = chosen.numpy()

    with kernels.watch(see):
        yield
    assert next(layers, None) is None, "a layer did not tell what it chose"
    for span, end in zip(spans, ends, strict=True):
        if span.routes is not None:
            span.routes.add(span.start, experts[end - span.length : end])
