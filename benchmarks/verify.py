"""How many rows a second `verify` checks on one core, beside what reading and hashing alone would take, and its memory.

    python -m benchmarks.verify --out benchmarks/results/NAME.json

Each run is made once through the real writer, with rows that no model made; each figure is measured in a process of its
own on one core. See README.md.
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
import xxhash
from rich.console import Console
from rich.table import Table

from batchgen.io.canonical import columns_json, encode_rows, schema_bytes
from batchgen.io.hashing import ROW_HASH, MerkleTree, leaves, params_hash
from batchgen.io.manifest import InputRecord, Manifest, PlanRecord
from batchgen.io.run_folder import RunFolder
from batchgen.io.schema import SCHEMA_VERSION, Row, output_schema, rows_to_table
from batchgen.plan import Plan
from batchgen.records import Completion
from batchgen.seeds import sample_seed
from batchgen.spec import JobSpec
from batchgen.verify.integrity import verify_run
from benchmarks.peers.machine import describe

CASES = [(64, False), (64, True), (200, False), (200, True), (1000, False), (1000, True), (16_384, True)]
MEMORY_ROWS = (100_000, 1_000_000)
TOKENS = 10  # of each prompt and of each answer
REPEATS = 9
LIMITS = ("read", "canonical", "xxh3", "merkle")  # what of it reading or hashing alone would take


def make_run(out: Path, rows: int, per_shard: int, logprobs: bool) -> None:
    """A finished run of one sample a row, `TOKENS` tokens in and out."""
    sampling = {"max_tokens": TOKENS} | ({"logprobs": 0} if logprobs else {})
    spec = JobSpec.model_validate_json(
        json.dumps(
            {
                "version": 1,
                "name": "bench",
                "model": {"path": "model"},
                "numerics": "portable/1",
                "inputs": [{"path": "in.parquet", "columns": {"prompt": "prompt"}}],
                "row_key": {"column": "id"},
                "sampling": sampling,
            }
        )
    )
    plan = Plan(spec.fingerprint(), "0" * 64, rows, 1, per_shard)
    fingerprint = {
        "job_fingerprint": plan.job_fingerprint,
        "inputs_digest": plan.inputs_digest,
        "params_hash": params_hash(spec.sampling),
        **dict.fromkeys(("weights_digest", "tokenizer_digest", "kernel_set"), "0" * 64),
        "numerics": spec.numerics,
    }
    metadata = {f"batchgen.{part}": value for part, value in fingerprint.items()}
    schema = output_schema(pa.schema([]), params=spec.sampling, metadata=metadata)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        batchgen_version="0",
        fingerprint=fingerprint,
        spec=spec.resolved(),
        job_yaml_sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        inputs=(InputRecord("in.parquet", "0" * 64, rows),),
        plan=PlanRecord(rows, 1, per_shard, plan.digest),
        columns=tuple((name, type_) for name, type_ in columns_json(schema)),
        run_config={},
        engine={},
    )
    chance, tree = np.random.default_rng(0), MerkleTree()
    with RunFolder.open(out) as folder:
        folder.start(manifest, b"")
        for shard in plan.shards:
            samples = list(make_rows(range(shard.start, shard.stop), logprobs, chance))
            nothing = pa.table({"none": pa.nulls(len(samples))}).select([])
            table = rows_to_table(samples, nothing, spec.sampling, schema)
            folder.commit(range(shard.start, shard.stop), table)
            tree.add(shard.start, (bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()))
        folder.finish(tree.root(rows))


def make_rows(numbers: range, logprobs: bool, chance: np.random.Generator) -> Iterator[Row]:
    for number in numbers:
        key = f"row-{number}"
        prompt, answer = chance.integers(0, 49_152, (2, TOKENS)).tolist()
        values = tuple(np.log(chance.random(TOKENS, np.float32)).tolist()) if logprobs else None
        text = " ".join(f"w{token}" for token in answer)
        completion = Completion(key, 0, tuple(answer), text, "length", logprobs=values)
        yield Row(sample_seed(0, key, 0), tuple(prompt), completion)


def read_files(run: Path) -> int:
    """Nothing but Parquet -> Arrow."""
    rows = 0
    for path in sorted((run / "rows").iterdir()):
        with pq.ParquetFile(path) as file:
            rows += file.read(use_threads=False).num_rows
    return rows


def measure(what: str, run: Path) -> dict[str, float]:
    """In this process: the best of `REPEATS`, by wall and by CPU time; and the memory that it took."""
    steps: dict[str, Callable[[], int]] = {"verify": lambda: checked(run), "read": lambda: read_files(run)}
    if what not in steps:
        steps |= hashing(run)
    wall, cpu, load = [], [], os.getloadavg()[0]
    for _ in range(REPEATS):
        started, started_cpu = time.perf_counter(), time.process_time()
        rows = steps[what]()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return {
        "rows": rows,
        "rate": rows / min(wall),
        "cpu_rate": rows / min(cpu),
        "load": max(os.getloadavg()[0], load),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def checked(run: Path) -> int:
    verdict = verify_run(run)
    assert verdict.ok, verdict.findings[:3]
    return verdict.rows


def hashing(run: Path) -> dict[str, Callable[[], int]]:
    """What hashing costs once the rows are in memory, as one table."""
    paths = sorted((run / "rows").iterdir())
    table = pa.concat_tables([pq.read_table(path) for path in paths]).drop_columns([ROW_HASH]).combine_chunks()
    tag = xxhash.xxh3_128_digest(schema_bytes(table.schema))
    batches = table.to_batches(4096)
    encoded = [encode_rows(batch, tag) for batch in batches]
    found, rows = leaves(table), int(table.num_rows)

    def canonical() -> int:
        for batch in batches:
            encode_rows(batch, tag)
        return rows

    def xxh3() -> int:
        for encoded_rows in encoded:
            for row in encoded_rows:
                xxhash.xxh3_128_digest(row)
        return rows

    def merkle() -> int:
        MerkleTree().add(0, found)
        return rows

    return {"canonical": canonical, "xxh3": xxh3, "merkle": merkle}


def on_one_core(what: str, run: Path) -> dict[str, float]:
    """`measure` in a fresh process."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.verify", "--measure", what, str(run)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def speed(folder: Path) -> Iterator[dict[str, Any]]:
    for per_shard, logprobs in CASES:
        run = folder / f"{per_shard}-{logprobs}"
        make_run(run, max(50_000, 4 * per_shard), per_shard, logprobs)
        case = {"rows_per_shard": per_shard, "logprobs": logprobs}
        yield case | {what: on_one_core(what, run) for what in ("verify", *LIMITS)}


def memory(folder: Path) -> Iterator[dict[str, Any]]:
    for rows in MEMORY_ROWS:
        run = folder / f"m{rows}"
        make_run(run, rows, 1000, True)
        yield {"rows_per_shard": 1000, "logprobs": True, "verify": on_one_core("verify", run)}


def show(results: list[dict[str, Any]]) -> Table:
    out = Table(title="thousand rows a second on one core")
    for name in ("rows", "a shard", "logprobs", "verify", "by CPU", "read", "encode", "xxh3", "Merkle", "peak MB"):
        out.add_column(name, justify="right", no_wrap=True)
    for case in results:
        verify = case["verify"]
        facts = [f"{verify['rows']:,.0f}", f"{case['rows_per_shard']:,}", "yes" if case["logprobs"] else "no"]
        rates = [f"{verify[rate] / 1e3:,.0f}" for rate in ("rate", "cpu_rate")]
        rates += [f"{case[what]['rate'] / 1e3:,.0f}" if what in case else "" for what in LIMITS]
        out.add_row(*facts, *rates, f"{verify['peak_mb']:.0f}")
    return out


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
@click.option("--measure", "what", help="Measure one thing of RUN in this process.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
def main(out: Path | None, what: str | None, run: Path | None) -> None:
    """Make the runs, measure, print a table."""
    if what and run:
        click.echo(json.dumps(measure(what, run)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = [*speed(Path(folder)), *memory(Path(folder))]
    Console().print(show(results))
    if out:
        out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
