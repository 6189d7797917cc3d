"""ExpertParallel: where the experts of every layer are, how a layer reaches them, and when they move."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np
import torch

from batchgen.errors import EngineError
from batchgen.parallel.all_to_all import AllToAllExchange
from batchgen.parallel.eplb import Greedy, Move, Policy, moves
from batchgen.parallel.exchange import Exchange, LocalExchange, RowNumbers
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.padded import PaddedExchange
from batchgen.parallel.placement import Placement
from batchgen.parallel.routes import Routes

_GREEDY = Greedy()


class ExpertParallel:
    """The experts of a model over the ranks of a mesh. Every rank builds it with the same arguments.

    `layers` are the MoE layers; `redundant` further copies of experts are held; every `interval` steps (0: never) the
    `policy` may move experts. No bit depends on any of them.
    """

    def __init__(
        self,
        mesh: Mesh,
        num_experts: int,
        layers: Iterable[int],
        redundant: int = 0,
        interval: int = 0,
        policy: Policy = _GREEDY,
    ) -> None:
        self.mesh, self.moved = mesh, 0  # slots that end_of_step has overwritten, on all ranks together
        self._interval, self._policy, self._steps = interval, policy, 0
        self._start = policy.start(num_experts, mesh.size, redundant)
        self._routes: dict[int, Routes] = {}
        self._exact: dict[int, Exchange] = {}
        self._padded: dict[int, Exchange] = {}
        self._numbers = RowNumbers()
        for layer in sorted(layers):
            self._add(layer)

    @classmethod
    def alone(cls, num_experts: int) -> Self:
        """One rank, which holds every expert of any layer in its own order."""
        return cls(Mesh.alone(torch.device("cpu")), num_experts, ())

    def _add(self, layer: int) -> None:
        mesh, fixed = self.mesh, self._interval == 0
        if mesh.size == 1 and fixed and self._start.slots == tuple(range(self._start.num_experts)):
            self._exact[layer] = self._padded[layer] = LocalExchange(None, self._numbers)
            return
        routes = self._routes[layer] = Routes(mesh, self._start, counting=not fixed)
        if mesh.size == 1:
            self._exact[layer] = self._padded[layer] = LocalExchange(routes, self._numbers)
        else:
            self._exact[layer], self._padded[layer] = AllToAllExchange(routes), PaddedExchange(routes, self._numbers)

    def exchange(self, layer: int, *, padded: bool = False) -> Exchange:
        """How `layer` reaches its experts; `padded`: with static shapes, as many rows on every rank."""
        if layer not in self._exact:
            self._add(layer)
        return (self._padded if padded else self._exact)[layer]

    def placement(self, layer: int) -> Placement:
        """Where the experts of `layer` are now."""
        return self._routes[layer].placement if layer in self._routes else self._start

    def slots(self, layer: int) -> tuple[int, ...]:
        """The experts that this rank holds in `layer` now, by local slot: what its weights are loaded by."""
        return self.placement(layer).slots_of(self.mesh.rank)

    def end_of_step(self, weights: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Between two steps, on every rank: move experts when it is time to.

        `weights`: for each MoE layer its tensors stacked by local slot, [slots, ...] and contiguous, written in place.
        Raises EngineError where the ranks do not agree on what is to be moved.
        """
        self._steps += 1
        if self._interval == 0 or self._steps % self._interval:
            return
        chosen = self._choose()
        digest = zlib.crc32(repr([placement.slots for placement in chosen.values()]).encode())
        if len(np.unique(self.mesh.gather_ints([digest, self._steps]), axis=0)) > 1:
            hint = "this is a fault of the policy, or of a rank that has counted other steps"
            raise EngineError("the ranks would move different experts", hint=hint)
        for layer, placement in chosen.items():
            todo = moves(self.placement(layer), placement)
            for stacked in weights[layer] if todo else ():
                self._move(stacked, todo, placement)
            self._routes[layer].switch(placement)
            self.moved += len(todo)

    def _choose(self) -> dict[int, Placement]:
        """A placement for each layer, from the rows that all ranks have counted."""
        loads = np.stack([routes.take_load() for routes in self._routes.values()])
        total = self.mesh.gather_ints(loads.reshape(-1).tolist()).sum(axis=0).reshape(loads.shape)
        placed = {}
        for (layer, routes), load in zip(self._routes.items(), total, strict=True):
            now = routes.placement
            placed[layer] = self._policy.again(load, now)
            if (len(placed[layer].slots), placed[layer].size) != (len(now.slots), now.size):
                raise EngineError(f"the policy gives layer {layer} another number of slots or ranks")
        return placed

    def _move(self, stacked: torch.Tensor, todo: Sequence[Move], placement: Placement) -> None:
        """Copy slots of one tensor. All are read before one is written, for a source may be a target too."""
        mesh, rank_of, bounds = self.mesh, placement.ranks().tolist(), placement.bounds()
        first, there = bounds[mesh.rank], bounds[mesh.rank + 1] - bounds[mesh.rank]
        if len(stacked) != there or not stacked.is_contiguous():
            raise EngineError(f"experts to be moved: {there} slots, contiguous; given {tuple(stacked.shape)}")
        # In `todo` the targets ascend, and a stable sort by rank keeps that: both ends name the same order.
        go = sorted((move for move in todo if rank_of[move.source] == mesh.rank), key=lambda move: rank_of[move.target])
        come = sorted(
            (move for move in todo if rank_of[move.target] == mesh.rank), key=lambda move: rank_of[move.source]
        )
        send, receive = [0] * mesh.size, [0] * mesh.size
        for move in go:
            send[rank_of[move.target]] += 1
        for move in come:
            receive[rank_of[move.source]] += 1
        sources = torch.tensor([move.source - first for move in go], dtype=torch.int64, device=stacked.device)
        targets = torch.tensor([move.target - first for move in come], dtype=torch.int64, device=stacked.device)
        stacked[targets] = mesh.all_to_all(stacked[sources], send, receive)
