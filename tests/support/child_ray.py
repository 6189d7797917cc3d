"""A driver in a process of its own, to be stopped: child_ray.py IN OUT ADDRESS REPLICAS SECONDS [processes]

With `processes` replicas are real processes around the fake runner, and SECONDS are not looked at.
Prints a line once the first shard is committed, and the root at the end.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from support.fake_jobs import make_job
from support.ray_openings import build_short, open_fake, open_processes

from batchgen.errors import BatchgenError
from batchgen.executor.actor import Opening, ReplicaSetup
from batchgen.executor.driver import run_replicas
from batchgen.executor.members import ClusterProgress
from batchgen.executor.needs import needs_of
from batchgen.executor.ray import RayFleet, cluster
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import read_manifest


def drive(
    folder: Path,
    out: Path,
    address: str,
    replicas: int,
    seconds: float,
    on_progress: Callable[[ClusterProgress], None],
    processes: bool = False,
) -> JobReport:
    """Run the fake job of `folder` on a cluster, by replicas of two cores each."""
    job = make_job(folder, build_short) if processes else make_job(folder)
    config = RunConfig(
        out, replicas=replicas, rows_per_shard=4, max_num_seqs=8, threads=2, device="cpu", memory_fraction=seconds
    )
    with cluster(address, 2) as nodes:
        needs = needs_of(config, job.spec.numerics, nodes)
        opening: Opening = open_processes if processes else open_fake
        fleet = RayFleet(ReplicaSetup(job.spec, folder, config), needs, opening)
        return run_replicas(job, fleet, config, on_progress)


def main() -> int:
    folder, out, address, replicas, seconds, *processes = sys.argv[1:]
    has_begun = False

    def on_progress(progress: ClusterProgress) -> None:
        nonlocal has_begun
        if not has_begun and (Path(out) / "manifest.json").exists() and read_manifest(Path(out)).shards:
            has_begun = True
            print("begun", flush=True)

    try:
        of = (Path(folder), Path(out), address, int(replicas), float(seconds))
        print(drive(*of, on_progress, bool(processes)).root)
    except BatchgenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
