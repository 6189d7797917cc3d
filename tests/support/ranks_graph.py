"""A layer captured as a CUDA graph on every rank, and replayed with other tokens and after moves."""

import numpy as np
import torch
from numpy.typing import NDArray
from support.ranks_exchange import LAYERS, Case, Shuffled, as_bytes, held_by, layer_of, tokens_here

from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh


def replayed(mesh: Mesh, case: Case) -> tuple[list[NDArray[np.uint8]], int]:
    """As `ranks_exchange.exchanged`, each layer from one graph that is captured before the first step."""
    assert case.padded
    parallel = ExpertParallel(mesh, case.experts, LAYERS, case.redundant, case.interval, Shuffled(case.shuffle))
    weights = held_by(parallel, case, mesh)
    layers = {layer: _Captured(parallel, layer, case, weights[layer]) for layer in LAYERS}
    found = []
    for step in range(case.steps):
        for layer, captured in layers.items():
            answers = captured.replay(*tokens_here(case, layer, step, mesh))
            found.append(as_bytes(answers[: case.counts[mesh.rank]]))
        parallel.end_of_step(weights)
    layers.clear()  # a graph goes before the group that it calls
    torch.cuda.synchronize()
    return found, parallel.moved


class _Captured:
    """One layer's dispatch, experts and combine."""

    def __init__(
        self, parallel: ExpertParallel, layer: int, case: Case, weights: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        device, rows = parallel.mesh.device, max(case.counts)
        self._x = torch.zeros(rows, case.hidden, dtype=torch.bfloat16, device=device)
        self._ids = torch.full((rows, case.k), -1, dtype=torch.int32, device=device)
        exchange = parallel.exchange(layer, padded=True)
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            layer_of(exchange, self._x, self._ids, weights, case.dtype)
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        # Of this thread alone: NCCL's own thread looks at events meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._answers = layer_of(exchange, self._x, self._ids, weights, case.dtype)

    def replay(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        self._x.copy_(x)
        self._ids.copy_(ids)
        self._graph.replay()
        return self._answers
