"""Time every implementation of the linears of some models on this GPU and write the tuned table.

    python -m benchmarks.tune_linears --out batchgen/kernels/triton/nvidia-h200.json

The table names the fastest for each shape and range of M. It cannot change a bit: see kernels/triton/proof.py. At the
end every M up to 300 is timed with it, and those that take far longer than a larger M are named.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from batchgen.kernels.triton.linear import run_linear, run_linear_silu_mul
from batchgen.kernels.triton.tile import Tile
from batchgen.kernels.triton.tuning import LIBRARY, PLAIN, Choice, Library, digest_of, table_of, written
from batchgen.kernels.triton.wide import Wide
from benchmarks.gpu_timing import replay_us

# Qwen3-1.7B and Qwen3-8B: qkv, o, gate and up, down, logits; Qwen3-30B-A3B: qkv, o, router.
SHAPES = [
    ("linear", 4096, 2048), ("linear", 2048, 2048), ("linear_silu_mul", 12288, 2048), ("linear", 12288, 2048),
    ("linear", 2048, 6144), ("logits", 151936, 2048),
    ("linear", 6144, 4096), ("linear", 4096, 4096), ("linear_silu_mul", 24576, 4096), ("linear", 24576, 4096),
    ("linear", 4096, 12288), ("logits", 151936, 4096),
    ("linear", 5120, 2048), ("linear", 2048, 4096), ("logits", 128, 2048),
]  # fmt: skip
ROWS = (1, 16, 32, 64, 96, 128, 256, 8192)  # bounds of the ranges; the last stands for all that is larger
SHARED_BYTES = 227 * 1024
SEVERAL = 300_000_000  # bytes of weights that one graph walks through, so that none stay in the L2 cache

# n, k, warps, stages of a tile, by its m.
CUTS: dict[int, list[tuple[int, int, int, int]]] = {
    16: [
        (16, 128, 2, 8), (16, 256, 1, 6), (16, 256, 2, 5), (16, 256, 2, 8), (16, 256, 4, 6), (16, 512, 2, 5),
        (16, 512, 4, 5),
        (32, 128, 2, 6), (32, 128, 4, 8), (32, 256, 2, 5), (32, 256, 4, 4), (32, 256, 4, 6), (32, 512, 4, 4),
        (64, 64, 4, 8), (64, 128, 2, 5), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 4), (64, 256, 8, 4),
        (128, 64, 4, 6), (128, 128, 4, 4), (128, 128, 8, 4),
    ],
    32: [
        (16, 256, 2, 6), (16, 256, 4, 5), (32, 128, 4, 5), (32, 128, 4, 8), (32, 256, 4, 4), (64, 64, 4, 8),
        (64, 128, 4, 5), (128, 64, 4, 6), (128, 128, 8, 4),
    ],
    64: [
        (16, 128, 4, 5), (32, 64, 4, 6), (32, 128, 4, 5), (64, 64, 4, 5), (64, 128, 4, 4), (128, 64, 4, 4),
        (128, 64, 8, 5), (128, 128, 8, 3),
    ],
    128: [(32, 64, 4, 5), (64, 64, 4, 5), (64, 64, 8, 5), (64, 128, 8, 3), (128, 64, 8, 4)],
}  # fmt: skip
LINES = (0, 256)
WIDE = [
    Wide(128, 128, 64, 8, 3, True), Wide(128, 128, 64, 8, 4, False), Wide(128, 64, 64, 8, 4, True),
    Wide(128, 64, 64, 4, 4, False),
    Wide(256, 64, 64, 8, 3, True),
]  # fmt: skip


def candidates(op: str, M: int) -> Iterator[Tile | Wide]:
    """Kernels of our own that are worth a try."""
    if op == "linear_silu_mul" and M >= 96:
        yield from WIDE
    if M > 256:
        return
    m = next((size for size in CUTS if size >= M), 128)
    for n, k, warps, stages in CUTS[m]:
        shared = (m + n * (2 if op == "linear_silu_mul" else 1)) * k * 2 * (stages - (m < 64))
        if shared <= SHARED_BYTES and not (op == "logits" and n < 32):
            yield from (Tile(m, n, k, warps, stages, lines) for lines in (LINES if m <= 64 else (0,)))


def run(op: str, x: torch.Tensor, weight: torch.Tensor, choice: Choice) -> torch.Tensor:
    """One op by one implementation."""
    if op == "linear_silu_mul":
        return run_linear_silu_mul(x, weight, choice)
    return run_linear(x, weight, choice, torch.float32 if op == "logits" else torch.bfloat16)


def compile_tiles(jobs: Iterable[tuple[str, Tile | Wide]]) -> None:
    """In a process of its own: the compiled kernels go to Triton's cache."""
    for op, tile in jobs:
        x = torch.zeros(2 * tile.m, 2048, dtype=torch.bfloat16, device="cuda")
        weight = torch.zeros(256, 2048, dtype=torch.bfloat16, device="cuda")
        try:
            run(op, x, weight, tile)
        except Exception as error:  # too large for this GPU: it will not be timed
            print(op, tile, str(error)[:80], flush=True)


def compile_all(jobs: list[tuple[str, Tile | Wide]], processes: int) -> None:
    """Compile on all cores."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(compile_tiles, [jobs[i::processes] for i in range(processes)])


def tune_shape(op: str, N: int, K: int, log: dict[str, Any]) -> list[list[Any]]:
    """The rules of one shape."""
    count = max(1, min(28, SEVERAL // (N * K * 2)))
    weights = [torch.randn(N, K, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]
    rules: list[list[Any]] = []
    for M in ROWS:
        x = torch.randn(max(M, 64), K, device="cuda", dtype=torch.bfloat16)[:M]

        def microseconds(choice: Choice, x: torch.Tensor = x) -> float:
            try:
                return replay_us(lambda: [run(op, x, w, choice) for w in weights], 0.01) / count
            except Exception:  # too large for this GPU
                return float("inf")

        times: dict[Choice, float] = {tile: microseconds(tile) for tile in candidates(op, M)}
        is_short = op == "linear" and 16 < M <= 128  # at some M between two multiples of 32 the library is very slow
        for library in [Library(size) for size in (32, 64, 96, 128) if size >= M] if is_short else [LIBRARY]:
            times[library] = microseconds(library)
        ranked = sorted(times, key=lambda choice: times[choice])
        limit = N * K * 2 / 4.3e6
        log[f"{op} {N} {K} {M}"] = {str(choice): round(times[choice], 2) for choice in ranked}
        print(f"{op:16s} {N:6d} {K:5d} {M:4d} floor {limit:6.1f}", end=" ")
        print(
            " ".join(f"{written(choice)} {times[choice]:.1f}" for choice in ranked[:3]),
            flush=True,
        )
        rules.append([M if ROWS[-1] > M else None, written(ranked[0])])
        if len(rules) > 1 and rules[-2][1] == rules[-1][1]:
            del rules[-2]
    return rules


def rough(op: str, N: int, K: int) -> dict[int, float]:
    """M -> how many times as long it takes as the next bound of a range, where that is more than 1.25."""
    weight = torch.randn(N, K, device="cuda", dtype=torch.bfloat16) * 0.02
    x = torch.randn(300, K, device="cuda", dtype=torch.bfloat16)
    table, took = table_of(weight.device), {}
    for M in range(1, 301):
        choice = table.choose(op, N, K, M)
        took[M] = replay_us(lambda M=M, choice=choice: run(op, x[:M], weight, choice), 0.0005)  # type: ignore[misc]
    ratios = {M: took[M] / took[next(bound for bound in (*ROWS[:-1], 300) if bound >= M)] for M in took}
    return {M: round(ratio, 2) for M, ratio in ratios.items() if ratio > 1.25}


def main() -> None:
    """Tune, then write the table and, beside it, every time measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=14)
    args = parser.parse_args()
    every = dict.fromkeys((op, tile) for op, *_ in SHAPES for M in ROWS for tile in candidates(op, M))
    compile_all(list(every), args.processes)
    device = torch.device("cuda", torch.cuda.current_device())
    table_of(device)  # forbids the library to split K
    log: dict[str, Any] = {}
    small = [[rows, written(tile)] for rows, tile in PLAIN[:2]]
    content: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device),
        "rules": [[op, N, K, tune_shape(op, N, K, log)] for op, N, K in SHAPES],
        "other": {op: [*small, [None, written(LIBRARY)]] for op in ("linear", "logits", "linear_silu_mul")},
    }
    content["digest"] = digest_of(content)
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    table_of.cache_clear()  # the table that was just written, where it is the one in use
    log["rough"] = {f"{op} {N} {K}": found for op, N, K in SHAPES if (found := rough(op, N, K))}
    print("slower than a larger M:", log["rough"])
    args.out.with_suffix(".times.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
