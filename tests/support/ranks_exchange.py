"""A MoE layer reduced to what `parallel` does for it: an expert that works row by row, and the sum at home.

The same functions make what is expected, on one rank, and what many ranks give.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.parallel.eplb import Load
from batchgen.parallel.exchange import Exchange, LocalExchange
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import Placement, initial, permuted

Tensor = torch.Tensor

LAYERS = (1, 3)


@dataclass(frozen=True)
class Case:
    """One exchange over some ranks, or a few steps of it."""

    counts: tuple[int, ...]  # tokens of each rank
    experts: int = 16
    k: int = 4
    hidden: int = 24
    dtype: torch.dtype = torch.float32  # of the answers
    redundant: int = 0
    shuffle: int | None = None  # the seed of a placement in another order
    steps: int = 1
    interval: int = 0
    padded: bool = False  # PaddedExchange, rows filled up to the longest rank's
    forget_moves: bool = False  # the fault: placements switch, weights stay

    @property
    def tokens(self) -> int:
        return sum(self.counts)


class Shuffled:
    """A policy that looks at no load: it begins in an order drawn by `seed`, and draws another each time."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed

    def start(self, num_experts: int, size: int, redundant: int) -> Placement:
        """See Policy."""
        first = initial(num_experts, size, redundant)
        return first if self._seed is None else permuted(first, self._seed)

    def again(self, load: Load, now: Placement) -> Placement:
        """See Policy. Which experts have copies changes too."""
        random = np.random.default_rng([*load.tolist(), *now.slots])
        extra = random.integers(0, now.num_experts, len(now.slots) - now.num_experts).tolist()
        return permuted(Placement(now.num_experts, (*range(now.num_experts), *extra), now.size), int(load.sum()))


def weights_of(experts: tuple[int, ...], layer: int, hidden: int) -> tuple[Tensor, Tensor]:
    """Two stacked tensors, the slots of these experts: float32 [slots, H] and bf16 [slots, 2, H]."""
    # Drawn on the CPU for every device, and worked with by operations that are exact on all.
    drawn = [torch.Generator().manual_seed(1000 * layer + expert) for expert in experts]
    scale = torch.stack([torch.randn(hidden, generator=generator) for generator in drawn])
    more = torch.stack([torch.randn(2, hidden, generator=generator) for generator in drawn]).bfloat16()
    return scale, more


def tokens_of(case: Case, layer: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """x bf16 [T, H], ids int32 [T, k] ascending, weights float32 [T, k], of the tokens of all ranks."""
    random = torch.Generator().manual_seed(100 * step + layer)
    x = torch.randn(case.tokens, case.hidden, generator=random).bfloat16()
    # Low ids are asked for more often, so that loads differ.
    liking = torch.rand(case.tokens, case.experts, generator=random) * torch.linspace(1.5, 0.5, case.experts)
    ids = liking.topk(case.k).indices.sort(dim=1).values.int()
    return x, ids, torch.rand(case.tokens, case.k, generator=random)


def run_experts(x: Tensor, rows: Tensor, slots: Tensor, weights: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """One answer a pair, of that row and that slot alone; NaN for a slot of -1, so that it shows where it is used."""
    at, of = x[rows].float(), slots.long().clamp(min=0)
    y = at * weights[0][of] + weights[1][of, 0].float() * at.clamp(-1, 1) + weights[1][of, 1].float()
    return y.masked_fill((slots < 0)[:, None], float("nan")).to(dtype)


def summed(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum at home: from +0, by place.  rows [T, k, H], weights float32 [T, k] -> float32 [T, H]."""
    total = torch.zeros(rows.shape[0], rows.shape[2])
    for j in range(rows.shape[1]):
        total = total + weights[:, j, None] * rows[:, j].float()
    return total


def layer_of(exchange: Exchange, x: Tensor, ids: Tensor, weights: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """[T, k, H]"""
    arrived = exchange.dispatch(x, ids)
    return exchange.combine(run_experts(arrived.x, arrived.pairs.rows, arrived.pairs.slots, weights, dtype))


def expected(case: Case) -> list[Tensor]:
    """[T, k, H] of all tokens for each step and layer, from one rank."""
    everything = {layer: weights_of(tuple(range(case.experts)), layer, case.hidden) for layer in LAYERS}
    found = []
    for step in range(case.steps):
        for layer in LAYERS:
            x, ids, _ = tokens_of(case, layer, step)
            found.append(layer_of(LocalExchange(), x, ids, everything[layer], case.dtype))
    return found


def held_by(parallel: ExpertParallel, case: Case, mesh: Mesh) -> dict[int, tuple[Tensor, Tensor]]:
    """The weights that this rank should hold now."""
    pairs = {layer: weights_of(parallel.slots(layer), layer, case.hidden) for layer in LAYERS}
    return {layer: (a.to(mesh.device), b.to(mesh.device)) for layer, (a, b) in pairs.items()}


def tokens_here(case: Case, layer: int, step: int, mesh: Mesh) -> tuple[Tensor, Tensor]:
    """x and ids of this rank's tokens, with rows of padding where the case is padded."""
    x, ids, _ = tokens_of(case, layer, step)
    first, count = sum(case.counts[: mesh.rank]), case.counts[mesh.rank]
    more = max(case.counts) - count if case.padded else 0
    x = torch.nn.functional.pad(x[first : first + count], (0, 0, 0, more), value=float("nan"))
    ids = torch.nn.functional.pad(ids[first : first + count], (0, 0, 0, more), value=-1)
    return x.to(mesh.device), ids.to(mesh.device)


def as_bytes(answers: Tensor) -> NDArray[np.uint8]:
    """uint8 [T, k, bytes of H]"""
    return answers.contiguous().view(torch.uint8).cpu().numpy()


def exchanged(mesh: Mesh, case: Case) -> tuple[list[NDArray[np.uint8]], int]:
    """The same, of this rank's tokens, bytes as they are; and how many slots were overwritten by moves."""
    policy = Shuffled(case.shuffle)
    parallel = ExpertParallel(mesh, case.experts, LAYERS, case.redundant, case.interval, policy)
    weights = held_by(parallel, case, mesh)
    found = []
    for step in range(case.steps):
        for layer in LAYERS:
            x, ids = tokens_here(case, layer, step, mesh)
            answers = layer_of(parallel.exchange(layer, padded=case.padded), x, ids, weights[layer], case.dtype)
            found.append(as_bytes(answers[: case.counts[mesh.rank]]))
        moving = {layer: tuple(t.clone() for t in pair) for layer, pair in weights.items()}
        parallel.end_of_step(moving if case.forget_moves else weights)
    for layer, held in held_by(parallel, case, mesh).items():
        same = all(torch.equal(a, b) for a, b in zip(weights[layer], held, strict=True))
        assert same or case.forget_moves, f"layer {layer} does not hold what its placement says"
    return found, parallel.moved


def many(mesh: Mesh, cases: list[Case]) -> list[tuple[list[NDArray[np.uint8]], int]]:
    """`exchanged` of one case after the other."""
    return [exchanged(mesh, case) for case in cases]


def order_of_arrival(mesh: Mesh, case: Case) -> tuple[list[int], list[list[int]]]:
    """The global token of each row that arrives, and of each pair [global token, place, expert], in layer 1."""
    parallel = ExpertParallel(mesh, case.experts, LAYERS, case.redundant, 0, Shuffled(case.shuffle))
    first = sum(case.counts[: mesh.rank])
    _, ids, _ = tokens_of(case, 1, 0)
    x = torch.arange(case.tokens, dtype=torch.float32)[first : first + case.counts[mesh.rank], None].repeat(1, 2)
    exchange = parallel.exchange(1)
    arrived = exchange.dispatch(x, ids[first : first + case.counts[mesh.rank]])
    exchange.combine(torch.zeros(len(arrived.pairs.rows), 2))
    tokens = [int(token) for token in arrived.x[:, 0]]
    held = parallel.slots(1)
    pairs = []
    for row, slot in zip(arrived.pairs.rows.tolist(), arrived.pairs.slots.tolist(), strict=True):
        expert = held[slot]
        pairs.append([tokens[row], ids[tokens[row]].tolist().index(expert), expert])
    return tokens, pairs


def summed_by_rank(mesh: Mesh, case: Case, own_first: bool) -> NDArray[np.float32]:
    """The fault that the package does not have: each rank adds what its experts gave, the home adds the ranks' sums.

    `own_first`: the home begins with its own, so that the order hangs on where a token lives. float32 [T, H].
    """
    parallel = ExpertParallel(mesh, case.experts, LAYERS, case.redundant, 0, Shuffled(case.shuffle))
    first = sum(case.counts[: mesh.rank])
    mine = slice(first, first + case.counts[mesh.rank])
    x, ids, weights = (part[mine] for part in tokens_of(case, 1, 0))
    held = weights_of(parallel.slots(1), 1, case.hidden)
    rows = layer_of(parallel.exchange(1), x, ids, held, case.dtype)
    placement = parallel.placement(1)
    rank_of = torch.tensor([placement.ranks()[slots[0]] for slots in placement.copies()])[ids.long()]
    start = mesh.rank if own_first else 0
    order = [(start + i) % mesh.size for i in range(mesh.size)]
    total = torch.zeros(rows.shape[0], rows.shape[2])
    for rank in order:
        total = total + summed(torch.where((rank_of == rank)[:, :, None], rows, 0), weights)
    return total.numpy()
