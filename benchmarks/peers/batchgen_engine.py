"""batchgen: the engine in process, all prompts in flight."""

import json
from dataclasses import replace
from pathlib import Path

from batchgen import __version__
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import start_engine
from batchgen.kernels.cpu.native import library
from batchgen.loader import load_model
from batchgen.records import Request, SamplingParams
from batchgen.spec import JobSpec
from benchmarks.peers.base import TEMPERATURE, TOP_P, ModelFiles


class BatchGen:
    def __init__(
        self, files: ModelFiles, threads: int, *, isa: str | None = None, numerics: str = "portable/1"
    ) -> None:
        document = {
            "version": 1,
            "name": "benchmark",
            "model": {"path": files.source, "max_model_len": 2048},
            "numerics": numerics,
            "inputs": [{"path": "none", "columns": {"prompt": "none"}}],
            "row_key": {"column": "none"},
        }
        spec = JobSpec.model_validate_json(json.dumps(document))
        model = load_model(spec, Path(), lambda done, total: None)
        if isa:
            library().use(isa)
        self.engine = start_engine(spec, model, RunConfig(Path("unused"), threads=threads, prefix_cache=False))
        self.version = __version__
        self.compute = f"{numerics} ({library().in_use()})"

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        if seeds is not None:
            params = replace(params, temperature=TEMPERATURE, top_p=TOP_P)
        requests = [
            Request(str(i), 0, seeds[i] if seeds else 0, tuple(prompt), params) for i, prompt in enumerate(prompts)
        ]
        answers = {completion.row_key: list(completion.token_ids) for completion in self.engine.generate(requests)}
        return [answers[str(i)] for i in range(len(prompts))]
