"""Times of device work: replays of CUDA graphs, and the two limits of the device that they stand against."""

from collections.abc import Callable
from statistics import median

import torch


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The work as a graph, warmed up before."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replay_us(work: Callable[[], object], seconds: float = 0.02) -> float:
    """Microseconds of one replay of the work: the median of at least five, of about `seconds` in all."""
    graph = capture(work)
    graph.replay()
    first = _elapsed_us(graph)
    count = max(5, min(200, int(seconds * 1e6 / max(first, 1.0))))
    return median(_elapsed_us(graph) for _ in range(count))


def _elapsed_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def copy_limit() -> float:
    """Bytes a microsecond, read and written, of a large copy on the device."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 8 * source.numel() / replay_us(lambda: torch.neg(source, out=target), 0.1)


def matrix_limit() -> float:
    """Floating-point operations a microsecond of an 8192^3 bf16 product of random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / replay_us(lambda: a @ b)
