"""Expert load balancing: from what each expert had to do, a placement under which the ranks have equally much to do.

The published algorithm (greedy copies, greedy packing), with every tie decided, and a renumbering that leaves in place
what can stay. Pure: the same load gives the same placement on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from batchgen.errors import EngineError
from batchgen.parallel.placement import Placement, bounds, initial

Load = NDArray[np.int64]  # [num_experts], rows that each expert was given


class Policy(Protocol):
    """Where experts are, to begin with and then. Every rank asks the same and must be told the same."""

    def start(self, num_experts: int, size: int, redundant: int) -> Placement:
        """The placement that the weights are loaded by."""

    def again(self, load: Load, now: Placement) -> Placement:
        """The next one, with as many slots. `load` was counted since the last time, on all ranks."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Move experts when the busiest rank would then have at least `gain` of its load less."""

    gain: float = 0.1

    def start(self, num_experts: int, size: int, redundant: int) -> Placement:
        """See Policy."""
        return initial(num_experts, size, redundant)

    def again(self, load: Load, now: Placement) -> Placement:
        """See Policy."""
        slots = rebalance(load, len(now.slots), groups=1, nodes=1, ranks=now.size)
        better = settled(Placement(now.num_experts, slots, now.size), now)
        worth_it = max(rank_loads(load, better)) <= (1 - self.gain) * max(rank_loads(load, now))
        return better if worth_it else now


def rank_loads(load: Load, placement: Placement) -> list[float]:
    """What each rank has to do when the copies of an expert share its load."""
    counts = np.bincount(placement.slots, minlength=placement.num_experts)
    share = load / counts
    return [float(sum(share[list(placement.slots_of(rank))])) for rank in range(placement.size)]


def rebalance(load: Load, num_slots: int, groups: int, nodes: int, ranks: int) -> tuple[int, ...]:
    """The expert of each slot. Groups of experts stay together on a node when they divide evenly over the nodes.

    Raises EngineError where experts, slots or ranks do not divide as that asks.
    """
    if groups % nodes:
        groups = nodes = 1
    experts = len(load)
    if experts % groups or num_slots % nodes or ranks % nodes or num_slots < max(experts, ranks):
        raise EngineError(
            f"{experts} experts in {groups} groups cannot be placed in {num_slots} slots of {ranks} ranks on {nodes} "
            "nodes",
            hint="groups divide the experts, nodes divide slots and ranks, and every expert has a slot",
        )
    group_size, group_loads = experts // groups, load.reshape(groups, -1).sum(axis=1)
    placed: list[int] = []
    for packed in _pack(group_loads.tolist(), [groups // nodes] * nodes):
        here = [group * group_size + i for group in packed for i in range(group_size)]
        local = _copies(load[here], num_slots // nodes)
        share = load[here] / np.bincount(local)
        capacities = np.diff(bounds(len(local), ranks // nodes)).tolist()
        for slots in _pack([float(share[i]) for i in local], capacities):
            placed.extend(here[local[slot]] for slot in slots)
    return tuple(placed)


def _copies(load: Load, num_slots: int) -> list[int]:
    """One slot for each expert, then each further one for the expert with the largest load a copy.

    Ties: the expert with fewer copies, then the lower one; so that without any load the copies go round.
    """
    slots = list(range(len(load)))
    counts = np.ones(len(load), dtype=np.int64)
    for _ in range(num_slots - len(load)):
        share = load / counts
        most = np.flatnonzero(share == share.max())
        expert = int(most[np.argmin(counts[most])])
        slots.append(expert)
        counts[expert] += 1
    return slots


def _pack(loads: Sequence[float], capacities: Sequence[int]) -> list[list[int]]:
    """Items into packs that hold so many: in descending order (stable), each into the least loaded pack with room.

    Ties: the lowest pack.
    """
    packs: list[list[int]] = [[] for _ in capacities]
    totals = [0.0] * len(capacities)
    for item in sorted(range(len(loads)), key=lambda item: -loads[item]):
        room = [pack for pack, items in enumerate(packs) if len(items) < capacities[pack]]
        best = min(room, key=totals.__getitem__)
        packs[best].append(item)
        totals[best] += loads[item]
    return packs


def settled(wanted: Placement, now: Placement) -> Placement:
    """`wanted` with its ranks and their slots renumbered, so that little has to move from where it is `now`."""
    sizes = np.diff(now.bounds())
    pairs = [(new, old) for new in range(now.size) for old in range(now.size) if sizes[new] == sizes[old]]
    overlap = {(new, old): _common(wanted.slots_of(new), now.slots_of(old)) for new, old in pairs}
    chosen: dict[int, int] = {}  # old rank -> new
    for new, old in sorted(pairs, key=lambda pair: -overlap[pair]):
        if old not in chosen and new not in chosen.values():
            chosen[old] = new
    slots: list[int] = []
    for old in range(now.size):
        slots.extend(_in_place(list(wanted.slots_of(chosen[old])), now.slots_of(old)))
    return Placement(now.num_experts, tuple(slots), now.size)


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(min(a.count(expert), b.count(expert)) for expert in set(a))


def _in_place(wanted: list[int], now: tuple[int, ...]) -> list[int]:
    """The experts of `wanted`, those that are there already in their slots, the others in the slots that are left."""
    slots: list[int | None] = []
    for expert in now:
        slots.append(expert if expert in wanted else None)
        if expert in wanted:
            wanted.remove(expert)
    return [wanted.pop(0) if expert is None else expert for expert in slots]


class Move(NamedTuple):
    """A slot's content, copied to another slot."""

    source: int
    target: int


def moves(old: Placement, new: Placement) -> list[Move]:
    """What has to be copied, by target: from the target's own rank where that has the expert, else its first slot.

    All read what was there under `old`: a source may itself be a target.
    """
    rank_of, copies = old.ranks().tolist(), old.copies()
    found = []
    for target, expert in enumerate(new.slots):
        if old.slots[target] != expert:
            source = min(copies[expert], key=lambda slot: (rank_of[slot] != rank_of[target], slot))
            found.append(Move(source, target))
    return found
