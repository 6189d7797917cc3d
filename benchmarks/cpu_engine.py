"""batchgen and the peers that are installed, side by side on one CPU: rates, start-up, memory, and what changes.

Each setup of `peers/base.py` runs in a process of its own, on the same weights, prompts and threads. See README.md.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.peers.base import SETUPS, Setup
from benchmarks.peers.machine import describe

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"llamacpp": "llama_cpp", "openvino": "openvino_genai"}
# -P and append: an installed batchgen is found before the source tree, which may lack the compiled module
BOOT = "import sys; sys.path.append({root!r}); from benchmarks.peers.worker import main; main(sys.argv[1:])"


def interpreter_with(engine: str, pythons: tuple[str, ...]) -> str | None:
    """The first interpreter that can import the engine's module, without importing it."""
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({MODULES.get(engine, engine)!r}) is None)"
    for python in pythons:
        if subprocess.run([python, "-P", "-c", probe], check=False, capture_output=True).returncode == 0:
            return python
    return None


def environment(setup: Setup, threads: int) -> dict[str, str]:
    """The child's environment: the thread count for every runtime that reads one, and the setup's own variables."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    fixed = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**os.environ, **fixed, **setup.env}


def run_setup(setup: Setup, python: str, task: dict[str, Any], timeout: float) -> dict[str, Any]:
    """What the worker measured, or {"error": the end of what it printed}."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "task.json", Path(folder) / "result.json"
        given.write_text(json.dumps(task | {"setup": setup.as_dict(), "spawned": time.time()}))
        command = [python, "-P", "-c", BOOT.format(root=str(ROOT)), str(given), str(answer)]
        try:
            done = subprocess.run(
                command,
                env=environment(setup, task["threads"]),
                timeout=timeout,
                check=False,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {timeout:.0f} s"}
        if done.returncode != 0 or not answer.exists():
            return {"error": (done.stdout or "").strip()[-2000:] or f"exit code {done.returncode}"}
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


def share(pair: list[int] | None) -> str:
    return f"{pair[0]} of {pair[1]}" if pair else "-"


def summary(r: dict[str, Any]) -> str:
    pace = "  ".join(f"{k} {r[k]['best']:.1f} (by CPU time {r[k]['cpu_best']:.1f})" for k in ("greedy", "sampled"))
    pace += f"  prefill {r['prefill_s']['best']:.1f} s (by CPU time {r['prefill_s']['cpu_best']:.1f})"
    return f"  {pace}  peak {r['peak_mb']:.0f} MB  load {max(r['load']):.1f}  {r['compute']}"


def table(results: list[dict[str, Any]]) -> Table:
    """One line a setup, fastest greedy rate first."""
    out = Table(title="output tokens/s: best of the runs, (median)")
    for name in ("setup", "version", "weights", "computes in"):
        out.add_column(name, overflow="fold")
    for name in ("greedy", "sampled", "first token s", "peak MB", "greedy changed alone", "seeded changed by order"):
        out.add_column(name, justify="right")
    for r in sorted(results, key=lambda r: -r.get("greedy", {}).get("best", 0)):
        if "error" in r:
            out.add_row(r["name"], "", r["weights"], "[red]" + r["error"].splitlines()[-1][:80])
            continue
        rates = [f"{r[k]['best']:.1f} ({r[k]['median']:.1f})" for k in ("greedy", "sampled")]
        changes = [share(r.get("greedy_changed_alone")), share(r.get("seeded_changed_order"))]
        sizes = [f"{r['first_token_s']:.1f}", f"{r['peak_mb']:.0f}"]
        out.add_row(r["name"], r["version"].split("-")[0], r["weights"], r["compute"][:60], *rates, *sizes, *changes)
    return out


@click.command()
@click.argument("files", type=click.Path(exists=True, file_okay=False))
@click.option("--python", "pythons", multiple=True, help="Interpreters in which to look for peers, in this order.")
@click.option("--only", multiple=True, help="Setups whose name contains this; all when left out.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rows", default=64, show_default=True, help="How many of the exported prompts.")
@click.option("--max-tokens", default=128, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--alone", default=12, show_default=True, help="Prompts that also run alone; 0 skips the checks.")
@click.option("--timeout", default=1800.0, show_default=True, help="Seconds a setup may take.")
@click.option("--out", type=click.Path(dir_okay=False), help="JSON file for the results, written after each setup.")
def main(
    files: str, pythons: tuple[str, ...], only: tuple[str, ...], out: str | None, timeout: float, **load: int
) -> None:
    """Measure every setup whose engine is found. FILES is the folder that `benchmarks.peers.export` wrote."""
    console = Console()
    console.width = max(console.width, 160)
    prompts = json.loads((Path(files) / "prompts.json").read_text())[: load["rows"]]
    task = load | {"prompts": prompts, "files": str(Path(files).resolve())}
    report: dict[str, Any] = {"machine": describe(), "workload": load | {"prompt_tokens": sum(map(len, prompts))}}
    results: list[dict[str, Any]] = []
    for setup in SETUPS:
        if only and not any(part in setup.name for part in only):
            continue
        python = interpreter_with(setup.engine, pythons or ("python3",))
        if python is None:
            console.print(f"{setup.name}: not installed")
            continue
        console.print(f"{setup.name} …")
        results.append(setup.as_dict() | run_setup(setup, python, task, timeout))
        last = results[-1]
        console.print(last.get("error") or summary(last))
        if out:
            Path(out).write_text(json.dumps(report | {"results": results}, indent=1) + "\n")
    console.print(table(results))


if __name__ == "__main__":
    main()
