"""Replicas on a real Ray cluster of several raylets: the same root, whoever is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.child_ray import drive
from support.children import child_of
from support.fake_jobs import make_job, read_rows, run, write_input
from support.jobs import job_spec, write_parquet
from support.ray_openings import build_short, open_processes
from support.tiny_jobs import make, write_tiny_jobs

from batchgen.errors import EngineError
from batchgen.executor.actor import ReplicaSetup
from batchgen.executor.base import Job
from batchgen.executor.driver import run_replicas
from batchgen.executor.guarded import LONE_DEATHS
from batchgen.executor.members import ClusterProgress
from batchgen.executor.needs import Needs, needs_of
from batchgen.executor.ray import RayFleet, cluster
from batchgen.executor.run_config import RunConfig
from batchgen.io.events import read_events
from batchgen.io.inputs import scan_inputs
from batchgen.io.manifest import read_manifest
from batchgen.job import Cluster, run_job
from batchgen.verify.integrity import verify_run

pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

TESTS = Path(__file__).parents[1]
SOON = 20.0  # seconds in which the processes of a dead driver must be gone


@dataclass
class Raylets:
    """A cluster of a head without cores and nodes of two cores each, which holds one replica each."""

    cluster: Any
    nodes: list[Any]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=2, object_store_memory=80 << 20))

    def remove(self, node: Any) -> None:
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # the other tests may have filled this machine: nobody is killed for that
        "PYTHONPATH": os.pathsep.join([str(TESTS), *_pythonpath()]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        before = signal.getsignal(signal.SIGTERM)
        from ray.cluster_utils import Cluster as RayCluster

        head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
        found = Raylets(RayCluster(initialize_head=True, head_node_args=head), [])
        try:
            found.add()
            found.add()
            yield found
        finally:
            found.cluster.shutdown()
            signal.signal(signal.SIGTERM, before)


def _pythonpath() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("in"), 50, bad=[3])


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    return run(make_job(folder), folder / "alone").root


def events(out: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(out) if event["event"] == name]


def pids(out: Path) -> dict[str, int]:
    return {event["replica"]: event["host"]["pid"] for event in events(out, "join")}


def check(out: Path, root: str) -> None:
    assert read_manifest(out).root == root
    assert verify_run(out).ok
    assert sorted(event["shard"] for event in events(out, "commit")) == list(range(13)), "every shard once"


def once(at: int, act: Callable[[], None]) -> Callable[[ClusterProgress], None]:
    """Do it when so many samples are done."""
    is_done = False

    def on_progress(progress: ClusterProgress) -> None:
        nonlocal is_done
        if progress.done >= at and not is_done:
            is_done = True
            act()

    return on_progress


def test_a_replica_killed_at_20_rows(raylets: Raylets, folder: Path, root: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    killing = once(20, lambda: os.kill(next(iter(pids(out).values())), signal.SIGKILL))
    drive(folder, out, raylets.address, 2, 0.03, killing)
    check(out, root)
    [lost] = events(out, "lost")
    assert lost["shards"]
    assert lost["reason"].startswith(("its process has ended", "it cannot be reached"))


def test_machines_come_and_go(
    raylets: Raylets, folder: Path, root: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is room for two replicas of three. A machine comes, and a replica with it; another goes."""
    out = tmp_path / "run"
    closed = folder / "closed"

    def come() -> None:
        closed.touch()  # nobody works until the third is there
        raylets.add()

    coming, going = once(2, come), once(30, lambda: raylets.remove(raylets.nodes[0]))
    seen = set[tuple[int, int]]()

    def on_progress(progress: ClusterProgress) -> None:
        seen.add((len(progress.replicas), progress.starting))
        coming(progress)
        if (3, 0) in seen:  # not before: a machine that had gone already would leave two for ever
            closed.unlink(missing_ok=True)
            going(progress)

    try:
        drive(folder, out, raylets.address, 3, 0.03, on_progress)
    finally:
        closed.unlink(missing_ok=True)  # it is for every test of the folder
    check(out, root)
    assert {(2, 1), (3, 0)} <= seen, "two work while the third waits for room"
    for lost in events(out, "lost"):
        assert lost["reason"].startswith(("its machine is gone", "it cannot be reached"))
    assert events(out, "lost") or events(out, "twin"), "before it is missed, twins may have taken over what it had"
    assert "raylet" not in capfd.readouterr().out, "Ray tells a long story; the standard output is not for it"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_stopped(
    raylets: Raylets, folder: Path, root: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Its replicas end with it, and another number of them goes on."""
    out = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "support.child_ray", str(folder), str(out), raylets.address, "2", "0.2"]
    with child_of(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TESTS) as driver:
        assert driver.stdout
        assert driver.stdout.readline() == "begun\n"
        driver.send_signal(number)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    if number == signal.SIGINT:
        assert "stopped by SIGINT" in said
    kept = read_manifest(out)
    assert 0 < len(kept.shards) < 13
    assert verify_run(out).counts == {"unfinished": 1}
    limit = time.monotonic() + SOON
    while any(Path(f"/proc/{pid}").exists() for pid in pids(out).values()) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(out).values())
    report = drive(folder, out, raylets.address, 1, 0.001, lambda progress: None)
    assert report.resumed == kept.counts.rows
    check(out, root)


def test_a_row_that_kills_its_process_each_time(raylets: Raylets, tmp_path: Path) -> None:
    """It becomes an error row, its replica lives on, and so does the job."""
    keys = [f"row {i}" for i in range(20)]
    keys[7] = "kill 0"
    write_parquet(tmp_path / "in.parquet", id=keys, prompt=[f"prompt {i}" for i in range(20)])
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}}
    spec = job_spec(entry, sampling={"max_tokens": 8})
    job = Job(spec, b"", scan_inputs(spec, tmp_path), spec.sampling, build_short)
    config = RunConfig(tmp_path / "run", rows_per_shard=5, threads=2, device="cpu", probe=0)
    with cluster(raylets.address, 2) as nodes:
        needs = needs_of(config, spec.numerics, nodes)
        fleet = RayFleet(ReplicaSetup(spec, tmp_path, config), needs, open_processes)
        report = run_replicas(job, fleet, config)
    assert (report.counts.rows, report.counts.error, report.exit_code) == (20, 1, 3)
    errors = {row["row_key"]: row["error_code"] for row in read_rows(tmp_path / "run").to_pylist() if row["error_code"]}
    assert errors == {"kill 0": "replica_died"}
    deaths = [event["reason"].split(";")[0] for event in events(tmp_path / "run", "death")]
    assert deaths == ["rank 0 of 1 was killed by SIGKILL"] * (1 + LONE_DEATHS)
    assert not events(tmp_path / "run", "lost")


def test_a_machine_with_another_batchgen(raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it lacks a module."""
    only_here = ModuleType("only_here")
    exec("def opening(setup, on_death): ...", vars(only_here))
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    with (
        cluster(raylets.address, 2),
        closing(
            RayFleet(ReplicaSetup(job_spec(), tmp_path, RunConfig(tmp_path)), Needs("cpu", 2, 0, 2), only_here.opening)
        ) as fleet,
    ):
        fleet.start()
        limit, heard = time.monotonic() + SOON, list[tuple[str, Any]]()
        while not heard and time.monotonic() < limit:
            heard = fleet.hear(1.0)
    [(name, lost)] = heard
    assert name == "r0"
    assert lost.error.message == "it cannot be made there: ModuleNotFoundError: No module named 'only_here'"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs of a tiny real model, and `alone`, a run of one by one engine."""
    there = write_tiny_jobs(tmp_path_factory.mktemp("tiny"))
    make(there, there / "alone")
    return there


def check_tiny(tiny: Path, out: Path) -> None:
    found, alone = read_manifest(out), read_manifest(tiny / "alone")
    assert (found.root, found.counts, found.fingerprint) == (alone.root, alone.counts, alone.fingerprint)
    assert len(events(out, "join")) == 2
    assert not events(out, "lost")


def test_a_real_model(raylets: Raylets, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(tmp_path / "run", executor="ray", replicas=2, rows_per_shard=4, threads=1, max_num_seqs=3)
    monkeypatch.chdir(tiny)  # replicas are elsewhere: the folder of a job is named whole
    run_job(Path("job.yaml"), config, Cluster(raylets.address))
    check_tiny(tiny, tmp_path / "run")


def test_a_real_model_on_a_cluster_of_its_own(tiny: Path, tmp_path: Path) -> None:
    """Its workers stand in a folder that is there: without one MKL aborts as soon as it multiplies."""
    options = ["--replicas", "2", "--rows-per-shard", "4", "--threads", "1"]
    command = [sys.executable, "-P", "-m", "batchgen", "run", str(tiny / "job.yaml"), "--out", str(tmp_path / "run")]
    quiet = os.environ | {"RAY_memory_monitor_refresh_ms": "0"}
    with child_of([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=quiet) as child:
        _, said = child.communicate(timeout=120)
    assert child.returncode == 3, said  # a row has no prompt
    check_tiny(tiny, tmp_path / "run")


def test_what_is_wrong_is_said_before_anything_is_loaded(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchgen.executor.ray._REACHED", 0.5)
    (tmp_path / "job.yaml").write_text(JOB)
    config = RunConfig(tmp_path / "run", executor="ray", replicas=2)

    def starting(where: Cluster, **how: Any) -> str:
        with pytest.raises(EngineError) as caught:
            run_job(tmp_path / "job.yaml", RunConfig(**{"out": config.out, "executor": "ray"} | how), where)
        assert not config.out.exists()
        return str(caught.value)

    there = Cluster(raylets.address)
    assert starting(there, device="cuda").startswith("ray: a replica needs 1 GPU on one machine, and the largest of")
    assert starting(there, threads=3).startswith("ray: a replica needs 3 cores on one machine, and the largest of")
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        assert starting(Cluster(at)).startswith(f"ray: no cluster answers at {at}: timed out"), "it is silent"
    assert starting(Cluster(at)).startswith(f"ray: no cluster answers at {at}: Connection refused")
    for address in ("ray://head:10001", "head", "head:0", "head:x"):
        assert starting(Cluster(address)).startswith(f"ray: {address!r} is not the address of a Ray cluster")


JOB = """\
version: 1
name: none
model: {path: nowhere}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}}]
row_key: {column: id}
"""


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(EngineError, match=r"Ray is not installed\n  pip install 'batchgen\[cluster\]'"):
        run_job(tmp_path / "job.yaml", RunConfig(tmp_path / "run", executor="ray", replicas=2))
