"""openvino-genai: ContinuousBatchingPipeline on a GGUF file; a seed a request."""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.peers.base import TEMPERATURE, TOP_P, ModelFiles


class OpenVino:
    def __init__(self, files: ModelFiles, threads: int, *, precision: str | None = None, kv: str | None = None) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if precision is not None:
            properties["INFERENCE_PRECISION_HINT"] = precision
        if kv is not None:
            properties["KV_CACHE_PRECISION"] = kv
        self.pipe: Any = genai.ContinuousBatchingPipeline(files.gguf("f16"), scheduler, "CPU", properties)
        self.version = genai.__version__
        self.compute = _read_back(properties)

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        configs = []
        for i in range(len(prompts)):
            config = genai.GenerationConfig()
            config.max_new_tokens = max_tokens
            config.ignore_eos = True
            if seeds is not None:
                config.do_sample = True
                config.temperature, config.top_p, config.rng_seed = TEMPERATURE, TOP_P, seeds[i]
            configs.append(config)
        results = self.pipe.generate([ov.Tensor(np.array([p], dtype=np.int64)) for p in prompts], configs)
        return [list(r.m_generation_ids[0]) for r in results]


def _read_back(properties: dict[str, Any]) -> str:
    """The precisions that the CPU plugin says it would use with these properties."""
    core = ov.Core()
    core.set_property("CPU", dict(properties))
    names = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
    return ", ".join(f"{n.split('_')[0].lower()} {core.get_property('CPU', n).get_type_name()}" for n in names)
