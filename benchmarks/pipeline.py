"""How many rows a second go through everything but the model on one core, and where the time goes.

    python -m benchmarks.pipeline --out benchmarks/results/NAME.json

Rows are read, scheduled, answered at once by an engine that computes nothing, hashed, written and committed by the real
executor. Each case runs in a process of its own on one core. See README.md.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from batchgen.executor.base import Job
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import InputRow
from batchgen.records import Completion, Request
from batchgen.spec import JobSpec
from benchmarks.peers.machine import describe

TOKENS = 10  # of each prompt and of each answer
REPEATS = 3
SAMPLE_SECONDS = 0.002  # of CPU time between two looks at what the process is doing
PACKAGE = str(Path(__file__).parents[1] / "batchgen") + "/"
STAGES = {  # file or folder of the package -> what it is there for
    "io/reader.py": "read",
    "io/columns.py": "read",
    "io/row_keys.py": "read",
    "io/inputs.py": "read",
    "executor/": "schedule",
    "seeds.py": "schedule",
    "io/schema.py": "table",
    "io/hashing.py": "hash",
    "io/canonical.py": "hash",
    "io/writer.py": "write",
    "io/": "commit",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A job of `rows` short rows."""

    rows: int
    rows_per_shard: int | None = None  # None: as it is chosen for so many rows
    n: int = 1
    logprobs: bool = False


CASES = (
    Case(1_000_000),
    Case(200_000),
    Case(200_000, 16_384),  # as in jobs of sixteen million rows and more
    Case(50_000, 4_096, n=4),
    Case(200_000, 16_384, logprobs=True),
)


class InstantEngine:
    """The same tokens for each request, at once."""

    fingerprint: Mapping[str, str] = dict.fromkeys(("weights_digest", "tokenizer_digest", "kernel_set"), "0" * 64)
    about: Mapping[str, Any] = {}

    def __init__(self, logprobs: bool) -> None:
        self._tokens = tuple(range(TOKENS))
        self._logprobs = (-0.5,) * TOKENS if logprobs else None

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        for request in requests:
            yield self.completion(request.row_key, request.sample_index)

    def completion(self, key: str, index: int) -> Completion:
        return Completion(key, index, self._tokens, "a short answer", "length", logprobs=self._logprobs)


class Sampler:
    """Looks every few milliseconds of CPU time at which stage the process is in."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> "Sampler":
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        while frame and not frame.f_code.co_filename.startswith(PACKAGE):
            if frame.f_code.co_filename == __file__:
                break
            frame = frame.f_back
        file = frame.f_code.co_filename.removeprefix(PACKAGE) if frame else ""
        self.seen[next((stage for part, stage in STAGES.items() if file.startswith(part)), "engine")] += 1


def make_job(folder: Path, case: Case) -> Job:
    numbers = range(case.rows)
    rows = {"id": [f"row-{i}" for i in numbers], "prompt": [f"{i:010}"[-TOKENS:] for i in numbers]}
    pq.write_table(pa.table(rows), folder / "in.parquet")
    text = {
        "version": 1,
        "name": "bench",
        "model": {"path": "model"},
        "numerics": "portable/1",
        "inputs": [{"path": "in.parquet", "columns": {"prompt": "prompt"}}],
        "row_key": {"column": "id"},
        "sampling": {"max_tokens": TOKENS, "n": case.n} | ({"logprobs": 0} if case.logprobs else {}),
    }
    spec = JobSpec.model_validate_json(json.dumps(text))
    return Job(spec, b"", scan_inputs(spec, folder), spec.sampling, prompt_ids)


def prompt_ids(row: InputRow) -> list[int]:
    return list((row.prompt or "").encode())


def measure(case: Case) -> dict[str, Any]:
    """In this process: once."""
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(Path(folder), case)
        config = RunConfig(Path(folder) / "run", rows_per_shard=case.rows_per_shard)
        started, started_cpu = time.perf_counter(), time.process_time()
        with Sampler() as sampler:
            report = run_local(job, InstantEngine(case.logprobs), config)
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        shards = len(list((Path(folder) / "run/rows").iterdir()))
    assert report.counts.rows == case.rows * case.n
    return {
        "shards": shards,
        "rate": report.counts.rows / wall,
        "cpu_rate": report.counts.rows / cpu,
        "share": {stage: count / sampler.seen.total() for stage, count in sampler.seen.most_common()},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": os.getloadavg()[0],
    }


def on_one_core(case: Case) -> dict[str, Any]:
    """The best of several, by CPU time, each in a fresh process."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.pipeline", "--measure", json.dumps(asdict(case))]
    found = [
        json.loads(subprocess.check_output(command, preexec_fn=lambda: os.sched_setaffinity(0, {core})))
        for _ in range(REPEATS)
    ]
    return max(found, key=lambda each: float(each["cpu_rate"]))


def show(results: list[dict[str, Any]]) -> Table:
    stages = ("read", "schedule", "table", "hash", "write", "commit", "engine")
    out = Table(title="samples a second on one core, and the share of CPU time of each stage")
    for name in ("rows", "n", "logprobs", "shards", "by wall", "by CPU", *stages, "peak MB"):
        out.add_column(name, justify="right", no_wrap=True)
    for each in results:
        case, found = each["case"], each["found"]
        facts = (f"{case['rows']:,}", str(case["n"]), "yes" if case["logprobs"] else "no", f"{found['shards']:,}")
        shares = (f"{100 * found['share'].get(stage, 0):.0f}%" for stage in stages)
        out.add_row(*facts, f"{found['rate']:,.0f}", f"{found['cpu_rate']:,.0f}", *shares, f"{found['peak_mb']:.0f}")
    return out


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
@click.option("--measure", "what", help="Measure this case in this process.")
def main(out: Path | None, what: str | None) -> None:
    """Run the cases, print a table."""
    if what:
        click.echo(json.dumps(measure(Case(**json.loads(what)))))
        return
    results = [{"case": asdict(case), "found": on_one_core(case)} for case in CASES]
    Console(width=160).print(show(results))
    if out:
        out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
