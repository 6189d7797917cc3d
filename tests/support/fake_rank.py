"""A rank of a replica without a model: the real process, mesh and loop around the fake runner.

What goes wrong is asked for by the row keys of requests: "kill 1" ends rank 1 with SIGKILL when it runs such a row,
wherever that row itself is; "exit 1", "raise 1", "refuse 1" and "hang 1" likewise; "slow" makes each step take long.
"kill 1 FILE" does it once: when FILE is not there yet, which it then is.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from support.engine_cases import make_engine
from support.fake_ranks import SteppedRunner
from support.fake_runner import VOCAB_SIZE

from batchgen.engine.batch import Agreed, Chunk, Sampled
from batchgen.engine.engine import Engine
from batchgen.errors import EngineError
from batchgen.executor import rank
from batchgen.executor.run_config import RunConfig
from batchgen.parallel.mesh import Mesh

MODEL: Any = SimpleNamespace(
    config=SimpleNamespace(architecture="FakeForCausalLM", vocab_size=VOCAB_SIZE, moe=SimpleNamespace(num_experts=16))
)
FAULTS = ("kill", "exit", "raise", "refuse", "hang")


class FaultyRunner(SteppedRunner):
    """Does what the requests of all ranks ask for: their wishes travel with what a step wants."""

    def __init__(self, engine: Engine, mesh: Mesh) -> None:
        super().__init__(engine.runner)
        self._mesh = mesh

    def wants(self, chunks: Sequence[Chunk]) -> list[int]:
        fault = target = 0
        for chunk in chunks:
            verb, *rest = chunk.sequence.request.row_key.split(" ")
            if verb in FAULTS and is_due(*rest[1:]):
                fault, target = 1 + FAULTS.index(verb), int(rest[0])
            elif verb == "slow":
                time.sleep(0.02)
        return [*super().wants(chunks), fault, target]

    def step(self, chunks: Sequence[Chunk], agreed: Agreed | None = None) -> list[Sampled]:
        if agreed is None:
            agreed = np.array([self.wants(chunks)])
        for fault, target in agreed[:, 1:3].tolist():
            if fault and target == self._mesh.rank:
                commit(FAULTS[fault - 1])
        return super().step(chunks, agreed)


def is_due(once: str = "") -> bool:
    if once and Path(once).exists():
        return False
    if once:
        Path(once).touch()
    return True


def commit(fault: str) -> None:
    if fault == "hang":
        time.sleep(3600)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit":
        os._exit(3)
    elif fault == "raise":
        raise ZeroDivisionError("by a planted zero")
    raise EngineError("planted", where="the fake runner", hint="take it out")


def start(spec: Any, model: Any, run_config: RunConfig, mesh: Mesh | None = None) -> Engine:
    mesh = mesh or Mesh.alone(torch.device("cpu"))
    if run_config.eplb_interval == 666 and mesh.rank == 1:
        raise EngineError("cannot start", hint="as planted")
    engine = make_engine(run_config.max_num_seqs, run_config.max_num_batched_tokens)
    engine.runner = FaultyRunner(engine, mesh)
    odd = run_config.eplb_interval == 13 and mesh.rank == 1
    engine.fingerprint = {"numerics": "fake", "canary": "odd" if odd else "even"}
    engine.about = {"device": "fake", "rank": mesh.rank}
    return engine


def main(fd: int) -> None:
    vars(rank)["start_rank"] = vars(rank)["start_engine"] = start
    rank.main(fd)
