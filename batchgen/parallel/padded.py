"""PaddedExchange: static shapes and no word of the host, so that a CUDA graph can hold the whole layer.

Every rank has the same number of rows T (missing ones are padding, with ids of -1). Every rank sees all rows and all
ids, runs the pairs that fall on its own slots, and marks the others with slot -1. Two collectives a layer.
"""

from typing import TypeAlias

import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs
from batchgen.parallel.exchange import Arrived, RowNumbers
from batchgen.parallel.routes import Routes

Tensor: TypeAlias = torch.Tensor


class PaddedExchange:
    """The exchange of one layer over the ranks of a mesh, for steps of as many rows on every rank."""

    def __init__(self, routes: Routes, numbers: RowNumbers | None = None) -> None:
        self._routes, self._mesh, self._numbers = routes, routes.mesh, numbers or RowNumbers()
        self._owners: Tensor | None = None  # int32 [T, k], the rank that answers

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """See Exchange. R = size T, P = size T k; the slot of another rank's pair, and of nobody's, is -1."""
        (T, k), words = experts.shape, x.shape[1] * x.element_size() // 4
        slots = self._routes.lookup(experts)
        self._owners = self._routes.rank_of[slots]
        # In words, for a GPU copies bytes one by one.
        mine = torch.cat([x.reshape(-1).view(torch.int32), slots.reshape(-1)]).view(torch.uint8)
        everything = self._mesh.all_gather(mine).reshape(-1).view(torch.int32).view(self._mesh.size, T * (words + k))
        rows, ids = everything.split_with_sizes([T * words, T * k], dim=1)
        everyone = rows.reshape(-1).view(x.dtype).view(-1, x.shape[1])
        here = self._routes.here[ids.reshape(-1)]
        return Arrived(everyone, Pairs(self._numbers.of(self._mesh.size * T, k, x.device), here))

    def combine(self, y: Tensor) -> Tensor:
        """See Exchange. What y holds at a slot of -1 goes nowhere."""
        if self._owners is None:
            raise EngineError("combine without a dispatch")
        (T, k), owners = self._owners.shape, self._owners.reshape(-1)
        self._owners = None
        even = [T * k] * self._mesh.size
        back = self._mesh.all_to_all(y, even, even)  # [size * T * k, H], by the rank that answers
        places = torch.arange(T * k, dtype=torch.int32, device=y.device)
        return back[owners.clamp(min=0) * (T * k) + places].view(T, k, y.shape[1])
