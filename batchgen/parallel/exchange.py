"""What a MoE layer calls to bring rows to the experts and their answers home: dispatch, then combine.

    LocalExchange      one rank: nothing moves                                       (this file)
    AllToAllExchange   many ranks, exactly the rows that are needed                  (all_to_all.py)
    PaddedExchange     many ranks, static shapes, for a CUDA graph                   (padded.py)

Shape legend: T tokens of this rank's step, k experts a token, H hidden; R rows that arrived here, P (row, slot) pairs.
"""

from typing import NamedTuple, Protocol, TypeAlias

import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs
from batchgen.parallel.routes import Routes

Tensor: TypeAlias = torch.Tensor


class Arrived(NamedTuple):
    """What the experts of this rank are to do: for each pair, expert `pairs.slots[p]` on row `x[pairs.rows[p]]`."""

    x: Tensor  # [R, H], the dtype that was sent
    pairs: Pairs


class Exchange(Protocol):
    """One layer's way to the experts. A dispatch is followed by its combine, on every rank alike."""

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """Send each row to the ranks of its experts, once each.

        x bf16 [T, H]; experts int32 [T, k], logical ids, none twice in a row. T may be 0. An id of -1 goes nowhere:
        for rows of padding.
        """

    def combine(self, y: Tensor) -> Tensor:
        """Bring the answers home.  y [P, H], one row a pair -> [T, k, H] by (token, place in `experts`), not summed.

        What stands at an id of -1 is undefined.
        """


class RowNumbers:
    """The row of each pair when every row has k pairs: 0 0 1 1 2 2 …

    They are kept, for in a CUDA graph every small kernel counts; none that a graph may read is ever let go.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.device], list[Tensor]] = {}

    def of(self, rows: int, k: int, device: torch.device) -> Tensor:
        """int32 [rows * k]"""
        kept = self._kept.setdefault((k, device), [])
        if kept and len(kept[-1]) >= rows * k:
            return kept[-1][: rows * k]
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _row_numbers(rows, k, device)  # its memory is the graph's
        kept.append(_row_numbers(2 * rows, k, device))
        return kept[-1][: rows * k]


def _row_numbers(rows: int, k: int, device: torch.device) -> Tensor:
    return torch.arange(rows, dtype=torch.int32, device=device)[:, None].expand(rows, k).reshape(-1)


class LocalExchange:
    """The exchange of a rank that holds every expert: in slot i the expert i, or as `routes` say."""

    def __init__(self, routes: Routes | None = None, numbers: RowNumbers | None = None) -> None:
        self._routes, self._numbers = routes, numbers or RowNumbers()
        self._shape: tuple[int, int] | None = None

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """See Exchange. The pairs are all (token, expert), by token, then by place; the slot of an id of -1 is -1."""
        T, k = experts.shape
        self._shape = T, k
        slots = experts if self._routes is None else self._routes.lookup(experts)
        return Arrived(x, Pairs(self._numbers.of(T, k, x.device), slots.reshape(-1)))

    def combine(self, y: Tensor) -> Tensor:
        """See Exchange: a view of y."""
        if self._shape is None:
            raise EngineError("combine without a dispatch")
        T, k = self._shape
        self._shape = None
        return y.view(T, k, y.shape[1])
