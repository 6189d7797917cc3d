"""What a replica needs of a cluster, and whether there is room for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from batchgen.errors import EngineError
from batchgen.executor.run_config import RunConfig
from batchgen.kernels.device import TENSOR_CORES


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster, and what it offers to all who use it."""

    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one replica, all of it on one machine."""

    device: Literal["cpu", "cuda"]
    cpus: int
    gpus: int
    threads: int  # of each rank, on a CPU

    @property
    def bundle(self) -> dict[str, float]:
        """As the resources of a placement group."""
        return {"CPU": float(self.cpus)} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def room(self, nodes: Sequence[Node]) -> int:
        """How many replicas these nodes hold when nobody else uses them."""
        return sum(min(node.cpus // self.cpus, node.gpus // self.gpus if self.gpus else node.cpus) for node in nodes)


def needs_of(config: RunConfig, numerics: str, nodes: Sequence[Node]) -> Needs:
    """What each replica of a job is given: a GPU for each rank, or an even share of the cores.

    Raises EngineError when no node could hold one replica.
    """
    ranks, most_gpus = config.expert_parallel_size, max((node.gpus for node in nodes), default=0)
    has_choice = config.device == "auto" and numerics == "portable/1"
    if numerics == TENSOR_CORES or config.device == "cuda" or (has_choice and most_gpus):
        needs = Needs("cuda", 1, ranks, config.threads or 1)
        if most_gpus < ranks:
            other = "; --device cpu needs none" if numerics != TENSOR_CORES else ""
            raise EngineError(
                f"a replica needs {_count(ranks, 'GPU')} on one machine, and the largest of the cluster has "
                f"{most_gpus}",
                where="expert_parallel_size" if ranks > 1 else "ray",
                hint=f"ask for fewer ranks, or add a machine{other}",
            )
    else:
        most_cpus = max((node.cpus for node in nodes), default=0)
        share = sum(node.cpus for node in nodes) // config.replicas
        cpus = ranks * config.threads if config.threads else max(ranks, min(share, most_cpus))
        needs = Needs("cpu", cpus, 0, max(1, cpus // ranks))
        if most_cpus < cpus:
            raise EngineError(
                f"a replica needs {_count(cpus, 'core')} on one machine, and the largest of the cluster has "
                f"{most_cpus}",
                where="ray",
                hint="ask for fewer --threads or ranks, or add a machine",
            )
    if not needs.room(nodes):
        raise EngineError(f"no machine of the cluster has both {_count(needs.gpus, 'GPU')} and a core", where="ray")
    return needs


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
