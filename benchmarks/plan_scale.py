"""Ten million rows in two thousand files: seconds and peak memory of the one process that plans, goes on and verifies.

    python -m benchmarks.plan_scale --rows 10000000 --files 2000 --out benchmarks/results/NAME.json

Short rows, an engine that computes nothing, the real executor. The run is killed near its end, gone on with, verified.
Every step is a process of its own; `peak MB` is its largest resident set. See README.md.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from batchgen.executor.base import Job, Progress
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.inputs import scan_inputs
from batchgen.io.manifest import read_manifest
from batchgen.io.reader import InputRow, Inputs
from batchgen.preflight import preflight
from batchgen.records import Completion, Request
from batchgen.spec import JobSpec
from batchgen.status import read_status
from batchgen.verify.integrity import verify_run
from benchmarks.peers.machine import describe
from benchmarks.pipeline import InstantEngine, prompt_ids

INPUTS: dict[str, dict[str, Any]] = {  # how rows are named and chosen
    "column": {"row_key": {"column": "id"}},
    "content hash": {"row_key": {"derive": "content_hash"}},
    "file and row": {"row_key": {"derive": "file_and_row"}},
    "where": {"row_key": {"column": "id"}, "where": "label <> 3"},
    "each key twice": {"row_key": {"column": "twice", "on_duplicate": "suffix"}},
}
KILL_AT = 0.98  # of the rows


def write_inputs(folder: Path, rows: int, files: int) -> None:
    bounds = np.linspace(0, rows, files + 1, dtype=np.int64)
    for file in range(files):
        numbers = np.arange(bounds[file], bounds[file + 1])
        text = pa.array(numbers).cast(pa.string())
        columns = {
            "id": pa.compute.binary_join_element_wise("row", text, "-"),
            "prompt": pa.compute.binary_join_element_wise("what is", text, "plus one?", " "),
            "label": pa.array(numbers % 10),
            "twice": pa.array(numbers // 2),
        }
        pq.write_table(pa.table(columns), folder / f"part-{file}.parquet", compression="zstd")


def job_spec(how: str) -> JobSpec:
    sections = dict(INPUTS[how])
    entry = {"path": "part-*.parquet", "columns": {"prompt": "prompt"}}
    if "where" in sections:
        entry["where"] = sections.pop("where")
    head = {"version": 1, "name": "bench", "model": {"path": "model"}, "numerics": "portable/1"}
    return JobSpec.model_validate_json(
        json.dumps({**head, "inputs": [entry], "sampling": {"max_tokens": 10}, **sections})
    )


class DyingEngine(InstantEngine):
    """Ends its process at once, as a kill from outside would, after so many answers."""

    def __init__(self, answers: int) -> None:
        super().__init__(logprobs=False)
        self._left = answers

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        for completion in super().generate(requests):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            yield completion


class Bytes:
    """Prompts of which the tokens are the bytes."""

    def build(self, row: InputRow, max_tokens: int | None = None) -> list[int]:
        return prompt_ids(row)

    def control_tokens(self, row: InputRow) -> list[str]:
        return []


def steps(folder: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, each alone in its process."""
    run = folder / "run"

    def scan(how: str) -> Inputs:
        return scan_inputs(job_spec(how), folder)

    def planned(how: str) -> dict[str, Any]:
        return {"rows": scan(how).num_rows}

    def look() -> dict[str, Any]:
        spec = job_spec("column")
        return {"rows": preflight(spec, scan("column"), Bytes()).num_rows}

    def make(engine: InstantEngine) -> dict[str, Any]:
        spec, first = job_spec("column"), list[float]()
        started = time.perf_counter()
        job = Job(spec, b"", scan("column"), spec.sampling, prompt_ids)

        def note(progress: Progress) -> None:
            if not first:
                first.append(time.perf_counter() - started)

        report = run_local(job, engine, RunConfig(run), note)
        return {"rows": report.counts.rows, "resumed": report.resumed, "ready": first[0]}

    def verified() -> dict[str, Any]:
        verdict = verify_run(run)
        assert verdict.ok, verdict.findings[:3]
        return {"rows": verdict.rows}

    def seen() -> dict[str, Any]:
        return {"rows": read_status(run).done}

    found: dict[str, Callable[[], dict[str, Any]]] = {f"plan, {how}": lambda how=how: planned(how) for how in INPUTS}  # type: ignore[misc]
    return found | {
        "preflight": look,
        "run, killed near its end": lambda: make(DyingEngine(int(KILL_AT * scan("file and row").num_rows))),
        "status": seen,
        "go on": lambda: make(InstantEngine(logprobs=False)),
        "check a finished run": lambda: make(InstantEngine(logprobs=False)),
        "verify": verified,
    }


def measure(what: str, folder: Path) -> dict[str, Any]:
    """In this process."""
    started, started_cpu = time.perf_counter(), time.process_time()
    found = steps(folder)[what]()
    seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    return {**found, "seconds": seconds, "cpu_seconds": cpu}


def apart(what: str, folder: Path) -> dict[str, Any]:
    """`measure` in a process of its own, and the memory that it took, also when it is killed."""
    command = [sys.executable, "-m", "benchmarks.plan_scale", "--measure", what, str(folder)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        answer = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode == -signal.SIGKILL:
        rows = read_manifest(folder / "run").counts.rows
        found = {"rows": rows, "seconds": time.perf_counter() - started, "cpu_seconds": usage.ru_utime + usage.ru_stime}
    else:
        assert child.returncode == 0, what
        found = json.loads(answer)
    return {"step": what, **found, "peak_mb": usage.ru_maxrss / 1024, "load": os.getloadavg()[0]}


def show(results: list[dict[str, Any]]) -> Table:
    out = Table()
    for name in ("step", "rows", "seconds", "CPU seconds", "peak MB"):
        out.add_column(name, justify="left" if name == "step" else "right", no_wrap=True)
    for each in results:
        numbers = f"{each['rows']:,}", f"{each['seconds']:.1f}", f"{each['cpu_seconds']:.1f}", f"{each['peak_mb']:.0f}"
        out.add_row(each["step"], *numbers)
    return out


def measured(rows: int, files: int, only: tuple[str, ...], within: Path | None) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=within) as name:
        folder = Path(name)
        write_inputs(folder, rows, files)
        for what in steps(folder):
            if not only or what in only:
                yield apart(what, folder)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--files", default=200, show_default=True)
@click.option("--only", multiple=True, help="Only this step; may be given repeatedly.")
@click.option("--within", type=click.Path(path_type=Path), help="A folder for the input and the run.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
@click.option("--measure", "what", nargs=2, type=str, help="Measure one step over a FOLDER in this process.")
def main(rows: int, files: int, only: tuple[str, ...], within: Path | None, out: Path | None, what: Any) -> None:
    """Make the input, take the steps, print a table."""
    if what:
        click.echo(json.dumps(measure(what[0], Path(what[1]))))
        return
    results = []
    for found in measured(rows, files, only, within):
        click.echo(json.dumps(found), err=True)
        results.append(found)
    Console().print(show(results))
    if out:
        facts = {"machine": describe(), "rows": rows, "files": files, "results": results}
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
