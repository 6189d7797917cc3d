"""RunConfig: how a job is run. No field may change a bit of the output; what may is in spec.py."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from batchgen.places import Place, seen_from

DeviceName: TypeAlias = Literal["auto", "cpu", "cuda"]

MAX_RANKS = 8  # of one host
MAX_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Recorded in the manifest, never hashed. The defaults fit a small machine."""

    out: Place  # the run folder
    executor: Literal["local", "ray"] = "local"
    replicas: int = 1  # engines that work on the job, each of expert_parallel_size ranks
    device: DeviceName = "auto"  # auto: an NVIDIA GPU where there is one
    max_num_seqs: int = 64  # sequences that run at once, on each rank
    max_num_batched_tokens: int = 256  # tokens of one engine step of a rank; more leave the cache of a CPU
    kv_cache_bytes: int | None = None  # of each rank; None: as the engine sees fit
    memory_fraction: float = 0.9  # of a GPU's memory that is free after the weights, for the KV cache
    prefix_cache: bool = True  # sequences that begin alike share what is computed of their beginnings
    threads: int | None = None  # of each rank; None: the ranks share all cores
    job_dir: Place | None = None  # the folder of the job file, where its relative paths begin
    rows_per_shard: int | None = None  # input rows in a file; None: as fits the job. A resumed run keeps its own
    probe: float = 0.005  # share of samples that are made twice and compared, and at least two; 0: none, 1: all
    expert_parallel_size: int = 1  # ranks (processes, each on a GPU of its own) that share the experts of a model
    redundant_experts: int = 0  # of a layer: experts that a second rank or more hold too
    eplb_interval: int = 0  # steps after which experts move to where the load is even; 0: never
    guard: bool = False  # a process that dies is started again, and a row that kills it each time is an error row
    watchdog_seconds: float = 300.0  # without a step, after which the processes of an engine are taken for dead
    reuse: tuple[Place, ...] = ()  # runs of which samples are taken that would be made again

    def __post_init__(self) -> None:
        """Raise ValueError for a share that is none, and for a number out of its range."""
        if not 0 <= self.probe <= 1:
            raise ValueError(f"probe must be a share from 0 to 1, got {self.probe}")
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}")

        if not 1 <= self.expert_parallel_size <= MAX_RANKS:
            raise ValueError(f"expert_parallel_size must be from 1 to {MAX_RANKS}, got {self.expert_parallel_size}")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas must be from 1 to {MAX_REPLICAS}, got {self.replicas}")
        if not self.watchdog_seconds > 0:
            raise ValueError(f"watchdog_seconds must be above 0, got {self.watchdog_seconds}")
        for name in ("redundant_experts", "eplb_interval"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name} must not be negative, got {value}")

    @property
    def most_at_once(self) -> int:
        """Sequences that run at once on all ranks together."""
        return self.max_num_seqs * self.expert_parallel_size

    def recorded(self) -> dict[str, Any]:
        """JSON for the manifest. Names no place but `job_dir`, seen from the run folder, for a run may be moved.

        `reuse` is a part of its own there.
        """
        there = None if self.job_dir is None else seen_from(self.job_dir, self.out)
        values = {name: value for name, value in asdict(self).items() if name not in ("out", "reuse")}
        return values | {"job_dir": there}
