"""Kills replicas, their processes, machines and drivers at random instants, and demands the same root every time.

    python tests/chaos/cluster.py --kills 200 --seed 1

A real Ray cluster of several raylets on this machine, engines without a model. Ends with status 1 at the first thing
that is not as it must be. docs/cluster.md has a tally.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_jobs import make_job, run, write_input
from support.jobs import write_parquet
from support.ray_openings import build_short, guarded

from batchgen.errors import EngineError
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.events import read_events
from batchgen.io.manifest import read_manifest
from batchgen.verify.integrity import verify_run

TESTS = Path(__file__).parents[1]
KINDS = ("fake", "processes")
MAY_END = {0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
ROWS = 200
MACHINES = 3  # of two cores: a replica each
PATIENCE = 120.0  # seconds in which a run without a kill must end


class StormError(Exception):
    """Something is not as it must be."""


class Storm:
    """`run` is all."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ray.cluster_utils import Cluster

        self._folder, self._chance = folder, random.Random(seed)
        self.tally = Counter[str]()
        head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._machines = [self._machine() for _ in range(MACHINES)]
        self._roots = {kind: self._undisturbed(kind) for kind in KINDS}

    def run(self, kills: int) -> None:
        """New runs until there were so many kills."""
        while sum(n for what, n in self.tally.items() if what.startswith("killed ")) < kills:
            kind = self._chance.choices(KINDS, [2, 1])[0]
            self._one_run(kind, self._folder / f"run-{self.tally['runs']}")
            print(json.dumps(self.tally), flush=True)  # so far

    def close(self) -> None:
        self._cluster.shutdown()

    def _machine(self) -> Any:
        return self._cluster.add_node(num_cpus=2, object_store_memory=80 << 20)

    def _undisturbed(self, kind: str) -> str:
        folder = write_input(self._folder / kind, ROWS, bad=[3])
        if kind == "fake":
            return run(make_job(folder), folder / "alone").root
        rows = ROWS // 2  # each takes long
        keys, prompts = [f"slow {i}" for i in range(rows)], [f"prompt {i}" for i in range(rows)]
        write_parquet(folder / "in.parquet", 17, id=keys, prompt=prompts, label=["a"] * rows, meta=[1] * rows)
        job = make_job(folder, build_short)
        engine = guarded(job.spec)
        root = run_local(job, engine, RunConfig(folder / "alone")).root
        engine.close()
        return root

    def _one_run(self, kind: str, out: Path) -> None:
        kept: set[int] = set()
        most = self._chance.randint(2, 20)  # kills of this run
        while True:
            most = self._one_driver(kind, out, most)
            self.tally["drivers"] += 1
            if (out / "manifest.json").exists():
                kept = self._check(out, kept)
                if read_manifest(out).root is not None:
                    break
        if read_manifest(out).root != self._roots[kind]:
            raise StormError(f"{out} has another root")
        self.tally["runs"] += 1
        for event in read_events(out):
            if event["event"] in ("lost", "death", "twin", "twins"):
                self.tally[f"seen {event['event']}"] += 1
        shutil.rmtree(out)

    def _one_driver(self, kind: str, out: Path, most: int) -> int:
        """Start one and kill around it until it ends; how many kills the run has left."""
        replicas = self._chance.randint(1, MACHINES + 1)
        seconds = f"{self._chance.uniform(0.02, 0.12):.3f}"
        command = [sys.executable, "-P", "-m", "support.child_ray", str(self._folder / kind), str(out)]
        command += [str(self._cluster.address), str(replicas), seconds, *(["processes"] if kind == "processes" else [])]
        log = self._folder / "driver.log"
        with log.open("w") as said, subprocess.Popen(command, cwd=TESTS, stdout=said, stderr=said) as driver:
            limit = time.monotonic() + PATIENCE
            while driver.poll() is None:
                time.sleep(self._chance.uniform(0.1, 1.5))
                if most and self._kill(kind, out, driver):
                    most, limit = most - 1, time.monotonic() + PATIENCE
                if time.monotonic() > limit:
                    driver.kill()
                    raise StormError(f"{out} hangs\n{log.read_text()}")
        gave_up = driver.returncode == EngineError.exit_code and "replicas were lost in a row" in log.read_text()
        self.tally["gave up"] += gave_up  # so many kills, one after the other, are too many
        if not gave_up and (driver.returncode not in MAY_END or "Traceback" in log.read_text()):
            raise StormError(f"the driver of {out} ended with {driver.returncode}\n{log.read_text()}")
        return most

    def _kill(self, kind: str, out: Path, driver: subprocess.Popen[bytes]) -> bool:
        what = self._chance.choices(["replica", "driver", "stop", "machine", "rank"], [8, 2, 1, 1, 4])[0]
        joined = [event["host"]["pid"] for event in read_events(out) if event["event"] == "join"]
        alive = [pid for pid in joined if Path(f"/proc/{pid}").exists()]
        if not alive and self._chance.random() > 0.02:  # seldom while it starts: that takes long, and shows little
            return False
        victims = {"replica": alive, "rank": [child for pid in alive for child in children(pid) if kind == "processes"]}
        if what in victims:
            if not victims[what]:
                return False
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(victims[what]), signal.SIGKILL)
        elif what == "machine":
            self._cluster.remove_node(self._machines.pop(0), allow_graceful=False)
            self._machines.append(self._machine())
        else:
            driver.send_signal(signal.SIGKILL if what == "driver" else self._chance.choice([2, 15]))
        self.tally[f"killed {what}"] += 1
        print(".", end="", flush=True)
        return True

    def _check(self, out: Path, before: set[int]) -> set[int]:
        """The run is valid, and what was kept once is kept."""
        verdict, there = verify_run(out), read_manifest(out)
        # A driver that is killed right before it names a shard leaves its file, whole; the next one makes it again.
        if set(verdict.counts) - ({"unfinished", "stray"} if there.root is None else set()):
            raise StormError(f"{out}: {verdict.findings}")
        kept = {shard.index for shard in there.shards}
        if before - kept:
            raise StormError(f"{out} has lost the shards {before - kept}")
        return kept


def children(pid: int) -> list[int]:
    """The processes that this one, or a thread of it, has started."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    folder, started = Path(tempfile.mkdtemp(prefix="storm-")), time.monotonic()
    storm = Storm(folder, options.seed)
    try:
        storm.run(options.kills)
    except StormError as error:
        print(f"seed {options.seed}: {error}\n{dict(storm.tally)}", file=sys.stderr)
        return 1
    finally:
        storm.close()
    print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - started), **storm.tally}))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
