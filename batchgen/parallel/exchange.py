"""What a MoE layer calls to bring rows to the experts and their answers home: dispatch, then combine.

Shape legend: T tokens of this rank's step, k experts a token, H hidden; R rows that arrived here, P (row, slot) pairs.
"""

from typing import NamedTuple, Protocol, TypeAlias

import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs

Tensor: TypeAlias = torch.Tensor


class Arrived(NamedTuple):
    """What the experts of this rank are to do: for each pair, expert `pairs.slots[p]` on row `x[pairs.rows[p]]`."""

    x: Tensor  # [R, H], the dtype that was sent
    pairs: Pairs


class Exchange(Protocol):
    """One layer's way to the experts. A dispatch is followed by its combine, on every rank alike."""

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """Send each row to the ranks of its experts, once each.

        x bf16 [T, H]; experts int32 [T, k], logical ids. T may be 0.
        """

    def combine(self, y: Tensor) -> Tensor:
        """Bring the answers home.  y [P, H], one row a pair -> [T, k, H] by (token, place in `experts`), not summed."""


class LocalExchange:
    """The exchange of a rank that holds every expert, slot i the expert i: nothing moves."""

    def __init__(self) -> None:
        self._shape: tuple[int, int] | None = None

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """See Exchange. The pairs are all (token, expert), by token, then by place."""
        T, k = experts.shape
        self._shape = T, k
        rows = torch.arange(T, dtype=torch.int32, device=x.device).repeat_interleave(k)
        return Arrived(x, Pairs(rows, experts.reshape(-1)))

    def combine(self, y: Tensor) -> Tensor:
        """See Exchange: a view of y."""
        if self._shape is None:
            raise EngineError("combine without a dispatch")
        T, k = self._shape
        self._shape = None
        return y.view(T, k, y.shape[1])
