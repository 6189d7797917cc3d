"""What samples of one prompt cost with the prefix cache and without it.

    python -m benchmarks.prefix_cache MODEL.gguf

Each case asks a fresh cache for all samples at once. The tokens are exact; the seconds are those of the machine.
"""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from batchgen.engine.engine import Engine
from batchgen.engine.generation import EngineStats
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import start_engine
from batchgen.loader import load_model
from batchgen.records import Request, SamplingParams
from batchgen.spec import JobSpec

MAX_TOKENS = 16


def samples(n: int, prompt_tokens: int, prompts: int) -> list[Request]:
    """`n` samples of each of so many prompts that agree in no block, as a job would order them."""
    params = SamplingParams(temperature=0.8, max_tokens=MAX_TOKENS, ignore_eos=True)
    return [
        Request(
            f"{i}-{sample}",
            sample,
            i * n + sample,
            tuple(100 + (17 * i + p) % 900 for p in range(prompt_tokens)),
            params,
        )
        for i in range(prompts)
        for sample in range(n)
    ]


def measure(model: str, numerics: str, requests: list[Request], *, cache: bool, threads: int) -> EngineStats:
    """One generation on an engine of its own."""
    document = {
        "version": 1,
        "name": "benchmark",
        "model": {"path": model, "max_model_len": 1024},
        "numerics": numerics,
        "inputs": [{"path": "none", "columns": {"prompt": "none"}}],
        "row_key": {"column": "none"},
    }
    spec = JobSpec.model_validate_json(json.dumps(document))
    loaded = load_model(spec, Path(), lambda done, total: None)
    engine: Engine = start_engine(spec, loaded, RunConfig(Path("unused"), threads=threads, prefix_cache=cache))
    for completion in engine.generate(requests):
        assert completion.error_code is None, completion.error_message
    return engine.stats


@click.command()
@click.argument("model")
@click.option("--numerics", default="portable/1")
@click.option("--prompt-tokens", default=150)
@click.option("--prompts", default=4)
@click.option("--threads", default=2)
def main(model: str, numerics: str, prompt_tokens: int, prompts: int, threads: int) -> None:
    """Print prefill tokens and seconds with the cache and without it, for 1, 2 and 8 samples of each prompt."""
    table = Table(title=f"{prompts} prompts of {prompt_tokens} tokens, {MAX_TOKENS} new tokens a sample, {numerics}")
    for name in ("samples", "prefill tokens off", "on", "ratio", "prefill s off", "on", "ratio"):
        table.add_column(name, justify="right")
    for n in (1, 2, 8):
        requests = samples(n, prompt_tokens, prompts)
        off, on = (measure(model, numerics, requests, cache=cache, threads=threads) for cache in (False, True))
        tokens, seconds = off.prefill_tokens / on.prefill_tokens, off.prefill_seconds / on.prefill_seconds
        table.add_row(
            str(n),
            f"{off.prefill_tokens:,}",
            f"{on.prefill_tokens:,}",
            f"{tokens:.2f}",
            f"{off.prefill_seconds:.2f}",
            f"{on.prefill_seconds:.2f}",
            f"{seconds:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
