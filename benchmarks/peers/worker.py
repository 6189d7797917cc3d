"""Measures one setup in this process and writes what it saw as JSON."""

import importlib
import json
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.base import ModelFiles, Peer

ADAPTERS = {
    "batchgen": ("benchmarks.peers.batchgen_engine", "BatchGen"),
    "ctranslate2": ("benchmarks.peers.ctranslate2_engine", "CTranslate2"),
    "llamacpp": ("benchmarks.peers.llamacpp", "LlamaCpp"),
    "openvino": ("benchmarks.peers.openvino_genai", "OpenVino"),
    "transformers": ("benchmarks.peers.hf", "Transformers"),
    "vllm": ("benchmarks.peers.vllm_cpu", "Vllm"),
}


def changed(left: list[list[int]], right: list[list[int]]) -> int:
    """How many answers differ in any token."""
    return sum(a != b for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, slots=True)
class Timed:
    answers: list[list[int]]
    wall_s: float
    cpu_s: float


def timed(peer: Peer, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> Timed:
    """Runs it once; an answer of another length is an error, since a rate over it would be wrong."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = peer.generate(prompts, max_tokens, seeds)
    done = Timed(answers, time.perf_counter() - wall, time.process_time() - cpu)
    lengths = {len(a) for a in answers}
    if lengths != {max_tokens} or len(answers) != len(prompts):
        raise RuntimeError(f"expected {len(prompts)} answers of {max_tokens} tokens, got lengths {sorted(lengths)}")
    return done


def rates(runs: list[Timed], threads: int) -> dict[str, Any]:
    """Output tokens/s; `cpu_best` is over CPU time / threads: roughly what a quiet machine would give."""
    tokens = sum(map(len, runs[0].answers))
    wall = [tokens / r.wall_s for r in runs]
    cpu = max(tokens * threads / r.cpu_s for r in runs)
    return {"best": max(wall), "median": statistics.median(wall), "runs": wall, "cpu_best": cpu}


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Start-up, greedy and sampled rates, peak memory, then what changes with the batch and with the order."""
    module, name = ADAPTERS[task["setup"]["engine"]]
    prompts, max_tokens, alone = task["prompts"], task["max_tokens"], task["alone"]
    seeds = [1000 + i for i in range(len(prompts))]
    peer: Peer = getattr(importlib.import_module(module), name)(
        ModelFiles(task["files"]), task["threads"], **task["setup"]["options"]
    )
    peer.generate(prompts[:1], 1, None)
    result: dict[str, Any] = {"first_token_s": time.time() - task["spawned"]}
    result |= {"version": peer.version, "compute": peer.compute}
    greedy, sampled, prefill, load = [], [], [], [os.getloadavg()[0]]
    for _ in range(task["repeats"]):
        greedy.append(timed(peer, prompts, max_tokens, None))
        sampled.append(timed(peer, prompts, max_tokens, seeds))
        load.append(os.getloadavg()[0])
        prefill.append(timed(peer, prompts, 1, None))
    result["prefill_s"] = {
        "best": min(p.wall_s for p in prefill),
        "cpu_best": min(p.cpu_s for p in prefill) / task["threads"],
    }
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result |= {"greedy": rates(greedy, task["threads"]), "sampled": rates(sampled, task["threads"]), "load": load}
    if alone:
        picked = range(0, len(prompts), max(1, len(prompts) // alone))[:alone]
        for key, runs, given in (("greedy", greedy, None), ("seeded", sampled, seeds)):
            lone = [timed(peer, [prompts[i]], max_tokens, given and [given[i]]).answers[0] for i in picked]
            result[f"{key}_changed_alone"] = [changed(lone, [runs[-1].answers[i] for i in picked]), len(lone)]
        turned = timed(peer, prompts[::-1], max_tokens, seeds[::-1]).answers[::-1]
        result["seeded_changed_order"] = [changed(turned, sampled[-1].answers), len(prompts)]
        result["seeded_changed_again"] = [changed(sampled[0].answers, sampled[-1].answers), len(prompts)]
    return result


def main(argv: list[str]) -> None:
    """`worker TASK.json RESULT.json`"""
    task = json.loads(Path(argv[0]).read_text())
    Path(argv[1]).write_text(json.dumps(measure(task)))


if __name__ == "__main__":
    main(sys.argv[1:])
