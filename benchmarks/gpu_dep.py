"""A model of experts on one GPU and over several: how many times as fast, and whether the tokens are the same.

    python -m benchmarks.gpu_dep [--ranks 2] [--out FILE.json]

Random weights and prompts as in gpu_engine.py. The ranks are processes that start as executor/rank.py starts them, but
for weights, which are drawn. Each job runs twice, and the second time counts.
"""

import argparse
import hashlib
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from batchgen.engine.admission import ModelLimits
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.batch import Agreed, Chunk, Sampled
from batchgen.engine.engine import Engine
from batchgen.engine.lockstep import Lockstep
from batchgen.engine.native_proof import prove
from batchgen.engine.scheduler import Limits
from batchgen.kernels.device import TENSOR_CORES, choose_for_rank, describe
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.native_decoder import NativeDecoder
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.meeting import free_address
from batchgen.parallel.mesh import Mesh
from batchgen.records import Completion, Request
from benchmarks.gpu_engine import BUDGET, MAX_MODEL_LEN, MODELS, SEQUENCES, Silent, requests

MODEL = "Qwen3-30B-A3B"
JOBS = ((256, 1024, 1), (256, 1024, 64), (512, 1024, 64))  # sequences of all ranks, prompt, output


@dataclass
class Given:
    """An inbox that was full from the start."""

    left: list[Request]

    def was_dropped(self) -> bool:
        return False

    def is_over(self) -> bool:
        return not self.left

    def requests(self) -> Iterator[Request]:
        while self.left:
            yield self.left.pop(0)

    def wait(self) -> None:
        sleep(0.001)


@dataclass
class Timed:
    """A runner that keeps the seconds between the ends of its steps."""

    runner: AheadRunner
    steps: list[tuple[int, int, float]] = field(default_factory=list)  # sequences, tokens, when it ended

    def wants(self, chunks: Sequence[Chunk]) -> list[int]:
        return self.runner.wants(chunks)

    def step(self, chunks: Sequence[Chunk], agreed: Agreed | None = None) -> list[Sampled]:
        drawn = self.runner.step(chunks, agreed)
        self.steps.append((len(chunks), sum(chunk.length for chunk in chunks), perf_counter()))
        return drawn

    def decode_ms(self, count: int) -> float:
        """The median step in which so many sequences decoded, and nothing else."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        took = [b[2] - a[2] for a, b in pairs if b[0] == b[1] == count and a[0] == a[1] == count]
        return float(np.median(took)) * 1e3 if took else 0.0


def rank_main(rank: int, size: int, address: str, results: Any) -> None:
    """One rank: every job, and what it took, to `results`."""
    device, config = choose_for_rank("cuda", TENSOR_CORES, rank), MODELS[MODEL]
    assert config.moe is not None
    mesh = Mesh.alone(device) if size == 1 else Mesh.join(rank, size, address, device)
    layers = range(config.num_layers)
    parallel = ExpertParallel(mesh, config.moe.num_experts, layers)
    held = {layer: parallel.slots(layer) for layer in layers}
    weights = DeviceWeights.seeded(config, device, held=held)
    decoder = NativeDecoder(config, weights.tensors, MAX_MODEL_LEN, device, parallel)
    proof, num_blocks = prove(decoder, BUDGET, SEQUENCES), 512 * 35
    cache = decoder.new_cache(num_blocks)
    runner = AheadRunner(decoder, cache, MAX_MODEL_LEN, processed_logprobs=False)
    model = ModelLimits(config.vocab_size, MAX_MODEL_LEN, frozenset())
    found: dict[str, Any] = {"gpu": describe(device), "canary": proof.canary}
    for job in JOBS:
        count, prompt, output = job
        for _ in range(2):
            timed, done = Timed(runner), list[Completion]()
            engine = Engine(timed, Silent(), model, Limits(512, BUDGET, num_blocks, 0, looks_ahead=True), {})
            own = requests(count, prompt, output)[rank::size]
            mesh.gather_ints([0])
            start = perf_counter()
            Lockstep(engine, timed, mesh).generate(Given(own), done.extend)
            seconds = perf_counter() - start
        tokens = {row.row_key: hashlib.sha256(repr(row.token_ids).encode()).hexdigest() for row in done}
        name = f"{count} x ({prompt} -> {output})"
        found[name] = {"seconds": seconds, "decode ms": timed.decode_ms(len(tokens)), "tokens": tokens}
        print(rank, name, seconds, found[name]["decode ms"], flush=True)
    results.put((rank, found))
    results.close()
    results.join_thread()
    del runner, timed, engine  # graphs go before the communicator that they hold
    mesh.close()


def measure(size: int) -> list[dict[str, Any]]:
    """What each of `size` ranks found."""
    spawn = multiprocessing.get_context("spawn")
    results, address = spawn.Queue(), free_address("127.0.0.1")
    ranks = [spawn.Process(target=rank_main, args=(rank, size, address, results)) for rank in range(size)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=400) for _ in ranks)
    for process in ranks:
        process.join()
    return [found[rank] for rank in range(size)]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    one, many = measure(1)[0], measure(args.ranks)
    assert {rank["canary"] for rank in many} == {one["canary"]}, "the same canary everywhere"
    report: dict[str, Any] = {"gpu": one["gpu"], "ranks": args.ranks, "model": MODEL, "canary": one["canary"]}
    for count, prompt, output in JOBS:
        name = f"{count} x ({prompt} -> {output})"
        alone, spread = one[name], [rank[name] for rank in many]
        tokens = {key: digest for rank in spread for key, digest in rank["tokens"].items()}
        report[name] = {
            "one s": alone["seconds"],
            "ranks s": max(rank["seconds"] for rank in spread),
            "one decode ms": alone["decode ms"],
            "ranks decode ms": max(rank["decode ms"] for rank in spread),
            "rows with the same tokens": sum(tokens[key] == digest for key, digest in alone["tokens"].items()),
        }
        report[name]["times as fast"] = report[name]["one s"] / report[name]["ranks s"]
        print(name, report[name], flush=True)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
