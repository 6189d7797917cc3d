"""A driver in a process of its own, to be stopped: child_ray.py IN OUT ADDRESS REPLICAS SECONDS

Prints a line once the first shard is committed, and the root at the end.
"""

import sys
from pathlib import Path

from support.fake_jobs import make_job
from support.ray_openings import open_fake

from batchgen.errors import BatchgenError
from batchgen.executor.actor import ReplicaSetup
from batchgen.executor.driver import run_replicas
from batchgen.executor.members import ClusterProgress
from batchgen.executor.needs import needs_of
from batchgen.executor.ray import RayFleet, cluster
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import read_manifest


def drive(folder: Path, out: Path, address: str, replicas: int, seconds: float, on_progress: object) -> JobReport:
    """Run the fake job of `folder` on a cluster, by replicas of two cores each."""
    job = make_job(folder)
    config = RunConfig(
        out, replicas=replicas, rows_per_shard=4, max_num_seqs=8, threads=2, device="cpu", memory_fraction=seconds
    )
    with cluster(address, 2) as nodes:
        needs = needs_of(config, job.spec.numerics, nodes)
        fleet = RayFleet(ReplicaSetup(job.spec, folder, config), needs, open_fake)
        return run_replicas(job, fleet, config, on_progress)  # type: ignore[arg-type]


def main() -> int:
    folder, out, address, replicas, seconds = sys.argv[1:]
    has_begun = False

    def on_progress(progress: ClusterProgress) -> None:
        nonlocal has_begun
        if not has_begun and (Path(out) / "manifest.json").exists() and read_manifest(Path(out)).shards:
            has_begun = True
            print("begun", flush=True)

    try:
        print(drive(Path(folder), Path(out), address, int(replicas), float(seconds), on_progress).root)
    except BatchgenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
