"""AllToAllExchange: rows travel to the ranks of their experts, the answers travel back; exactly those, and no sums.

Three collectives a layer: the counts; the rows with their pairs, as one run of bytes for each rank; the answers.
Of a GPU the host waits once, for the counts.

The order is fixed: rows and pairs arrive by source rank, then by token, then by place in `experts`.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from batchgen.errors import EngineError
from batchgen.kernels.routing import Pairs
from batchgen.parallel.exchange import Arrived
from batchgen.parallel.routes import Routes

Tensor: TypeAlias = torch.Tensor

_WORD = torch.int64  # what is copied and sent: a pair is one, two int32 (which of the rows with it, the local slot)


class _Sent(NamedTuple):
    """What a dispatch leaves for its combine."""

    shape: tuple[int, int]  # T, k
    place: Tensor  # int64 [T k]: where the answer for (t, j) will be among those that come back
    out: Sequence[int]  # pairs sent to each rank
    here: Sequence[int]  # pairs come from each rank


class AllToAllExchange:
    """The exchange of one layer over the ranks of a mesh. Every rank enters it, also without a token."""

    def __init__(self, routes: Routes) -> None:
        self._routes, self._mesh = routes, routes.mesh
        self._sent: _Sent | None = None

    def dispatch(self, x: Tensor, experts: Tensor) -> Arrived:
        """See Exchange."""
        size, (T, k) = self._mesh.size, experts.shape
        slots = self._routes.lookup(experts)
        ranks = self._routes.rank_of[slots]
        goes = ranks[:, :, None] == torch.arange(size, dtype=torch.int32, device=x.device)  # [T, k, size]
        needs = goes.any(dim=1)  # [T, size]
        counts = torch.stack([needs.sum(dim=0), goes.sum(dim=(0, 1))], dim=1)  # [size, 2]: rows, pairs
        both = torch.stack([counts, self._mesh.all_to_all(counts, [1] * size, [1] * size)]).tolist()
        (rows_out, pairs_out), (rows_here, pairs_here) = (tuple(zip(*side, strict=True)) for side in both)

        tokens = torch.argsort(needs.T.reshape(-1), descending=True, stable=True)[: sum(rows_out)] % max(T, 1)
        order = torch.argsort(torch.where(ranks < 0, size, ranks).reshape(-1), stable=True)  # [T k]: pairs by rank
        # [size, T]: where a token's row stands among those of a rank. A sum along the last dimension, for a GPU takes
        # one along the first with a thread for each rank.
        place = needs.T.contiguous().cumsum(dim=1) - 1
        row = place.T.gather(1, ranks.clamp(min=0).long())
        pairs = torch.stack([row.int(), self._routes.local_of[slots]], dim=2).view(-1, 2)[order[: sum(pairs_out)]]
        words = _words(x)
        received = self._mesh.all_to_all(
            _interleaved(x[tokens], rows_out, pairs, pairs_out),
            [n * words + p for n, p in zip(rows_out, pairs_out, strict=True)],
            [n * words + p for n, p in zip(rows_here, pairs_here, strict=True)],
        )
        self._sent = _Sent((T, k), torch.argsort(order), pairs_out, pairs_here)
        return _arrived(received, rows_here, pairs_here, x)

    def combine(self, y: Tensor) -> Tensor:
        """See Exchange."""
        if self._sent is None or len(y) != sum(self._sent.here):
            raise EngineError(f"{len(y)} answers, which fit no dispatch")
        (T, k), place, out, here = self._sent
        self._sent = None
        back = self._mesh.all_to_all(y.contiguous(), send=here, receive=out)
        if len(back) < T * k:
            back = torch.nn.functional.pad(back, (0, 0, 0, T * k - len(back)))  # zeros, where an id of -1 is
        return back[place].view(T, k, y.shape[1])


def _words(x: Tensor) -> int:
    """Of a row. Raises EngineError where it is not a whole number of them."""
    size = x.shape[1] * x.element_size()
    if size % _WORD.itemsize:
        raise EngineError(f"rows of {size} bytes; ranks exchange multiples of {_WORD.itemsize}")
    return size // _WORD.itemsize


def _interleaved(x: Tensor, rows: Sequence[int], pairs: Tensor, pair_counts: Sequence[int]) -> Tensor:
    """int64: for each rank its rows, then its pairs."""
    of_rows = x.view(_WORD).split_with_sizes(rows)
    of_pairs = pairs.contiguous().view(_WORD).split_with_sizes(pair_counts)
    return torch.cat([part.reshape(-1) for both in zip(of_rows, of_pairs, strict=True) for part in both])


def _arrived(received: Tensor, rows: Sequence[int], pairs: Sequence[int], like: Tensor) -> Arrived:
    """What came, with the rows numbered through all ranks."""
    words = _words(like)
    parts = received.split_with_sizes([size for n, p in zip(rows, pairs, strict=True) for size in (n * words, p)])
    x = torch.cat(parts[0::2]).view(like.dtype).view(-1, like.shape[1])
    row, slot = torch.cat(parts[1::2]).view(torch.int32).view(-1, 2).unbind(1)
    first = np.repeat(np.cumsum([0, *rows[:-1]]), pairs).astype(np.int32)
    return Arrived(x, Pairs(row + torch.from_numpy(first).to(x.device), slot.contiguous()))
