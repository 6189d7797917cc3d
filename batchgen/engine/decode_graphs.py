"""CUDA graphs of one token for each of some sequences: one launch instead of hundreds.

A graph is of so many rows (a bucket) and a longest context; it is captured when it is first wanted. Rows that no
sequence has are padding: slot -1 and position -1, which write nothing and whose logits nobody reads.
"""

import collections.abc
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.step_shape import StepShape
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import AnyDecoder, Cache

_SHORTEST = 512  # positions of the shortest context that has graphs of its own


def bucket(rows: int) -> int:
    """The rows of the graph for so many: powers of two up to 16, then multiples of 16."""
    return 1 << (rows - 1).bit_length() if rows <= 16 else -(-rows // 16) * 16


def context_bucket(positions: int, max_model_len: int) -> int:
    """The longest context of the graph for sequences of so many positions: a power of two, or the longest there is."""
    longest = -(-max_model_len // BLOCK_SIZE) * BLOCK_SIZE
    return min(max(_SHORTEST, 1 << (positions - 1).bit_length()), longest)


class GraphSize(NamedTuple):
    """What a graph must have room for: the most of any rank, so that all ranks run graphs of one size."""

    rows: int
    positions: int  # of the longest context


class Row(NamedTuple):
    """One token of one sequence."""

    block_table: list[int]
    position: int
    token_id: int


FromDraws: TypeAlias = tuple[torch.Tensor, list[int] | None]  # tokens int32 on the device; which of them, None: all


class _Inputs(NamedTuple):
    """Views of one buffer, on the host (numpy) or the device (torch)."""

    slots: Any  # int64 [S]
    token_ids: Any  # int32 [S]
    positions: Any  # int32 [S]
    block_tables: Any  # int32 [S, W]


class _Graph:
    """One captured step and the buffers that it reads."""

    def __init__(self, decoder: AnyDecoder, cache: list[Cache], S: int, context: int, pool: Any) -> None:
        device, W = decoder.device, context // BLOCK_SIZE
        self._S, self._W = S, W
        size = 8 * S + 4 * S * (2 + W)
        # Two on the host: while one is on its way up, the other is written.
        self._hosts = [torch.zeros(size, dtype=torch.uint8).pin_memory() for _ in range(2)]
        self._device = torch.empty(size, dtype=torch.uint8, device=device)
        self._token_ids = _views(self._device, S, W).token_ids
        on_device = _views(self._device, S, W)
        self._fill([])
        step = StepTensors(
            token_ids=on_device.token_ids,
            positions=on_device.positions,
            slots=on_device.slots,
            query_start=torch.arange(S + 1, dtype=torch.int32, device=device),
            block_tables=on_device.block_tables,
            sample_rows=torch.arange(S, device=device),
            shape=StepShape(S, 1, context, is_padded=True),
        )
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            decoder.forward(step, cache)  # compiles, and sets the library up
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Of this thread alone: NCCL's own may look at its events while this one captures.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._logits = decoder.forward(step, cache)

    def run(self, rows: collections.abc.Sequence[Row], draws: FromDraws | None) -> torch.Tensor:
        """Logits float32 [rows, V], good until the next run of any graph."""
        self._fill(rows)
        if draws and rows:
            tokens, which = draws
            if which is not None:
                tokens = tokens[torch.tensor(which).to(tokens.device, non_blocking=True)]
            torch.clamp(tokens, min=0, out=self._token_ids[: len(rows)])  # -1: nothing was drawn, and nobody goes on
        return self.replay(len(rows))

    def replay(self, rows: int) -> torch.Tensor:
        """Once more what was run last."""
        self._graph.replay()
        return self._logits[:rows]

    def _fill(self, rows: collections.abc.Sequence[Row]) -> None:
        """Write the inputs and send them up; what no row has is padding."""
        self._hosts.reverse()
        inputs, R = _Inputs(*(part.numpy() for part in _views(self._hosts[0], self._S, self._W))), len(rows)
        inputs.slots[R:], inputs.positions[R:], inputs.token_ids[R:] = -1, -1, 0
        positions: NDArray[np.int64] = np.array([row.position for row in rows], np.int64)
        inputs.positions[:R] = positions
        inputs.token_ids[:R] = [row.token_id for row in rows]
        tables = inputs.block_tables
        for at, row in enumerate(rows):
            table = row.block_table[: self._W]
            tables[at, : len(table)] = table
        block = tables[np.arange(R), positions // BLOCK_SIZE].astype(np.int64)
        inputs.slots[:R] = block * BLOCK_SIZE + positions % BLOCK_SIZE
        self._device.copy_(self._hosts[0], non_blocking=True)


def _views(buffer: torch.Tensor, S: int, W: int) -> _Inputs:
    wide, narrow = buffer[: 8 * S].view(torch.int64), buffer[8 * S :].view(torch.int32)
    return _Inputs(wide, narrow[:S], narrow[S : 2 * S], narrow[2 * S :].view(S, W))


class DecodeGraphs:
    """The graphs of one decoder over one cache."""

    def __init__(self, decoder: AnyDecoder, cache: list[Cache], max_model_len: int) -> None:
        self._decoder, self._cache, self._max_model_len = decoder, cache, max_model_len
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def forward(
        self, rows: collections.abc.Sequence[Row], draws: FromDraws | None = None, size: GraphSize | None = None
    ) -> torch.Tensor:
        """Logits float32 [R, V], good until the next call; `draws`: where the token ids come from instead.

        There may be fewer rows than `size` says, and none; without it there are as many. The caller has waited for what
        the call before the last one led to: its inputs are written over.
        """
        size = size or GraphSize(len(rows), max(row.position for row in rows) + 1)
        key = bucket(size.rows), context_bucket(size.positions, self._max_model_len)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _Graph(self._decoder, self._cache, *key, self._pool)
        return graph.run(rows, draws)
