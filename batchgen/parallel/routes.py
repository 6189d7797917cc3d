"""Routes: the placement of one layer as tensors on the device, and the count of what its experts had to do."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import SPREAD, STRIDE, Placement

Tensor: TypeAlias = torch.Tensor


class Routes:
    """Which slot serves a token's expert, and where that slot is.

    An id of -1 goes nowhere, for rows of padding: its slot, rank and local slot are -1 too, by the row that each table
    has more. The tables stay where they are when the placement changes, so a CUDA graph that reads them follows it.
    """

    def __init__(self, mesh: Mesh, placement: Placement, *, counting: bool) -> None:
        self.mesh, self.placement = mesh, placement
        ranks, bounds = placement.ranks(), np.array(placement.bounds())
        local = np.arange(len(ranks)) - bounds[ranks]
        self.rank_of = self._up(np.append(ranks, -1))  # int32 [slots + 1]
        self.local_of = self._up(np.append(local, -1))  # int32 [slots + 1], the number of a slot on its own rank
        self.here = self._up(np.append(np.where(ranks == mesh.rank, local, -1), -1))  # that, -1 for another rank's
        self._table = self._up(_table(placement))  # int32 [experts + 1, columns]
        self._load = torch.zeros(placement.num_experts + 1, dtype=torch.int64, device=mesh.device) if counting else None

    def _up(self, numbers: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int32)).to(self.mesh.device)

    def lookup(self, experts: Tensor) -> Tensor:
        """The slot of each id, which is counted.  int32 [T, k], logical ids or -1 -> int32 [T, k]."""
        if self._load is not None:
            ids = experts.reshape(-1) + 1
            self._load.index_add_(0, ids, self._load.new_ones(()).expand(len(ids)))
        if self._table.shape[1] == 1:
            return self._table[:, 0][experts]
        rows = torch.arange(len(experts), dtype=torch.int64, device=experts.device)
        return self._table[experts, ((self.mesh.rank + rows * STRIDE) % SPREAD)[:, None]]

    def switch(self, placement: Placement) -> None:
        """Follow another placement, with as many slots, from now on."""
        self.placement = placement
        self._table.copy_(self._up(_table(placement)))

    def take_load(self) -> NDArray[np.int64]:
        """How many rows of this rank each expert was given since the last time  -> int64 [experts]."""
        assert self._load is not None
        load: NDArray[np.int64] = self._load[1:].cpu().numpy().copy()
        self._load.zero_()
        return load


def _table(placement: Placement) -> NDArray[np.int32]:
    """The slots of the experts, and a row of -1, which an id of -1 finds."""
    return np.pad(placement.table(), ((0, 1), (0, 0)), constant_values=-1)
