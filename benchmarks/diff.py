"""How long `diff` takes over two runs: equal roots, one row in a hundred differs, every row differs. See README.md.

    python -m benchmarks.diff --out benchmarks/results/NAME.json

The runs are made once through the real writer, with rows that no model made; each figure is the best of a few, measured
in a process of its own, and stands beside the time that reading the files of both runs takes.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from batchgen.io.canonical import columns_json
from batchgen.io.hashing import ROW_HASH, MerkleTree, params_hash
from batchgen.io.manifest import InputRecord, Manifest, PlanRecord
from batchgen.io.run_folder import RunFolder
from batchgen.io.schema import SCHEMA_VERSION, Row, output_schema, rows_to_table
from batchgen.plan import Plan, fitting_rows_per_shard
from batchgen.records import Completion, SamplingParams
from batchgen.seeds import sample_seed
from batchgen.spec import JobSpec
from batchgen.verify.diff import diff_runs
from benchmarks.peers.machine import describe

TOKENS = 50  # of each prompt and of each answer
REPEATS = 3
CASES = {"equal roots": 0.0, "1% differ": 0.01, "all differ": 1.0}
JOB = {
    "version": 1,
    "name": "bench",
    "model": {"path": "model"},
    "numerics": "portable/1",
    "inputs": [{"path": "in.parquet", "columns": {"prompt": "prompt"}}],
    "row_key": {"column": "id"},
    "sampling": {"max_tokens": TOKENS, "logprobs": 0},
}


def make_run(out: Path, rows: int, bent: float, weights: str) -> None:
    """A finished run of one sample a row; in the share `bent` of its rows, tokens from a random place on are others."""
    spec = JobSpec.model_validate_json(json.dumps(JOB))
    plan = Plan(spec.fingerprint(), "0" * 64, rows, 1, fitting_rows_per_shard(rows))
    fingerprint = {
        "job_fingerprint": plan.job_fingerprint,
        "inputs_digest": plan.inputs_digest,
        "params_hash": params_hash(spec.sampling),
        "weights_digest": weights * 64,
    }
    schema = output_schema(pa.schema([]), params=SamplingParams(logprobs=0), metadata={})
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        batchgen_version="0",
        fingerprint=fingerprint,
        spec=spec.resolved(),
        job_yaml_sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        inputs=(InputRecord("in.parquet", "0" * 64, rows),),
        plan=PlanRecord(rows, 1, plan.rows_per_shard, plan.digest),
        columns=tuple((name, type_) for name, type_ in columns_json(schema)),
        run_config={},
        engine={},
    )
    tree = MerkleTree()
    with RunFolder.open(out) as folder:
        folder.start(manifest, b"")
        for shard in plan.shards:
            samples = list(make_rows(range(shard.start, shard.stop), bent))
            nothing = pa.table({"none": pa.nulls(len(samples))}).select([])
            table = rows_to_table(samples, nothing, spec.sampling, schema)
            folder.commit(range(shard.start, shard.stop), table)
            tree.add(shard.start, [bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()])
        folder.finish(tree.root(rows))


def make_rows(numbers: range, bent: float) -> Iterator[Row]:
    chance = np.random.default_rng(numbers.start)
    for number in numbers:
        prompt, answer, other = chance.integers(0, 49_152, (3, TOKENS))
        values = np.log(chance.random(TOKENS, np.float32)).tolist()
        parted = int(chance.integers(0, TOKENS))
        if chance.random() < bent:
            answer[parted:] = other[parted:]
        text = " ".join(f"w{token}" for token in answer.tolist())
        key = f"row-{number}"
        done = Completion(key, 0, tuple(answer.tolist()), text, "length", logprobs=tuple(values))
        yield Row(sample_seed(0, key, 0), tuple(prompt.tolist()), done)


def read_files(run: Path) -> int:
    """Nothing but Parquet -> Arrow."""
    rows = 0
    for path in sorted((run / "rows").iterdir()):
        with pq.ParquetFile(path) as file:
            rows += file.read().num_rows
    return rows


def measure(what: str, a: Path, b: Path) -> dict[str, float]:
    """In this process: the best of `REPEATS`, and the memory that it took."""
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: read_files(a) + read_files(b),
        "diff": lambda: diff_runs(a, b),
        "diff --out": lambda: diff_runs(a, b, out=a.parent / "diff.parquet"),
    }
    seconds, cpu = [], []
    for _ in range(REPEATS):
        started, started_cpu = time.perf_counter(), time.process_time()
        steps[what]()
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return {
        "seconds": min(seconds),
        "cpu_seconds": min(cpu),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def apart(what: str, a: Path, b: Path) -> dict[str, float]:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.diff", "--measure", what, str(a), str(b)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(folder: Path, rows: int) -> Iterator[dict[str, Any]]:
    """One result for each case."""
    make_run(folder / "a", rows, 0, "a")
    for case, bent in CASES.items():
        b = folder / case.replace(" ", "-")
        make_run(b, rows, bent, "b")
        steps = ("diff",) if not bent else ("diff", "diff --out", "read")
        yield {"case": case, "rows": rows, **{step: apart(step, folder / "a", b) for step in steps}}


def show(results: list[dict[str, Any]]) -> Table:
    """Rows a second are those of each run; the time of reading both stands beside."""
    table = Table("rows", "case", "diff s", "cpu s", "rows/s", "--out s", "read s", "peak MB")
    for result in results:
        seconds = result["diff"]["seconds"]
        others = [f"{result[step]['seconds']:.2f}" if step in result else "" for step in ("diff --out", "read")]
        peak = max(found["peak_mb"] for found in result.values() if isinstance(found, dict))
        rate = f"{result['rows'] / seconds:,.0f}"
        times = f"{seconds:.3f}", f"{result['diff']['cpu_seconds']:.3f}"
        table.add_row(f"{result['rows']:,}", result["case"], *times, rate, *others, f"{peak:.0f}")
    return table


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Results as JSON.")
@click.option("--rows", default=[100_000], multiple=True, show_default=True, help="Of each run; may be repeated.")
@click.option("--measure", "what", hidden=True)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
def main(out: Path | None, rows: tuple[int, ...], what: str | None, runs: tuple[Path, ...]) -> None:
    """Time diff."""
    if what:
        click.echo(json.dumps(measure(what, *runs)))
        return
    results = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            results += list(compare(Path(folder), count))
    Console().print(show(results))
    if out:
        document = {"machine": describe(), "load_average": os.getloadavg(), "tokens": TOKENS, "results": results}
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
