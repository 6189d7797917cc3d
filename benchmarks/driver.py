"""How many rows a second one driver hands out to replicas and takes back: what a cluster's one process must do.

    python -m benchmarks.driver --out benchmarks/results/NAME.json

The driver is the real one. Its one replica is a process that answers at once; only the driver's CPU time counts. See
README.md.
"""

import json
import os
import resource
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from batchgen.executor.driver import run_replicas
from batchgen.executor.fleet import Heard
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Made, News, Started, Told, Work
from batchgen.io.manifest import Tally
from batchgen.io.schema import Row, rows_to_table
from batchgen.records import SamplingParams
from batchgen.seeds import sample_seed
from benchmarks.peers.machine import describe
from benchmarks.pipeline import TOKENS, Case, InstantEngine, Sampler, make_job, prompt_ids

NAME = "one"


def answer(driver: Connection, params: SamplingParams, seed: int) -> None:
    """The replica: a table for each shard, until there are no more."""
    engine = InstantEngine(params.logprobs is not None)
    while isinstance(work := driver.recv(), Work):
        rows = []
        for row in work.rows:
            ids = tuple(prompt_ids(row))
            for index in range(params.n):
                completion = engine.completion(row.row_key, index)
                rows.append(Row(sample_seed(seed, row.row_key, index), ids, completion))
        table = rows_to_table(rows, work.passthrough, params, work.schema)
        driver.send(Made(work.shard, table, 0, (), told=Told.of(Tally.of(table))))


class OneProcess:
    """A fleet of one replica."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self._ours, theirs = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=answer, args=(theirs, params, seed), daemon=True)
        self._heard: list[tuple[str, Heard]] = []
        self._told = Told()

    def start(self) -> str:
        self._process.start()
        self._heard.append((NAME, Started(InstantEngine.fingerprint, InstantEngine.about, {})))
        return NAME

    def give(self, name: str, work: Work) -> None:
        self._ours.send(work)

    def hear(self, seconds: float) -> list[tuple[str, Heard]]:
        heard, self._heard = self._heard, []
        if not heard and self._ours.poll(seconds):
            made = self._ours.recv()
            self._told = self._told + made.told
            heard.append((NAME, News(self._told, (made,))))
        return heard

    def end(self, name: str) -> None:
        self._process.terminate()

    def close(self) -> None:
        self._ours.send(None)
        self._process.join()


def measure(case: Case) -> dict[str, Any]:
    """In this process, once."""
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(Path(folder), case)
        config = RunConfig(Path(folder) / "run", rows_per_shard=case.rows_per_shard, replicas=1)
        started, started_cpu = time.perf_counter(), time.process_time()
        with Sampler() as sampler:
            report = run_replicas(job, OneProcess(job.params, job.spec.seed), config)
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    assert report.counts.rows == case.rows * case.n
    return {
        "rate": report.counts.rows / wall,
        "driver_cpu_rate": report.counts.rows / cpu,
        "share": {stage: count / sampler.seen.total() for stage, count in sampler.seen.most_common()},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": os.getloadavg()[0],
    }


@click.command()
@click.option("--rows", default=500_000, show_default=True)
@click.option("--rows-per-shard", default=2_000, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
def main(rows: int, rows_per_shard: int, out: Path | None) -> None:
    """Run a job of short rows on one instant replica."""
    found = measure(Case(rows, rows_per_shard))
    shares = ", ".join(f"{stage} {100 * share:.0f}%" for stage, share in found["share"].items())
    click.echo(f"{rows:,} rows of {TOKENS} tokens in and out, {rows_per_shard:,} a shard")
    click.echo(f"{found['driver_cpu_rate']:,.0f} rows per CPU second of the driver: {shares}")
    click.echo(f"{found['rate']:,.0f} rows/s by wall, peak {found['peak_mb']:.0f} MB")
    if out:
        facts = {"machine": describe(), "rows": rows, "rows_per_shard": rows_per_shard, "found": found}
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
