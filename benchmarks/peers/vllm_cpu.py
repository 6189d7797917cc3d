"""vLLM on a CPU: continuous batching in this process; a seed a request."""

from typing import Any

import vllm

from benchmarks.peers.base import TEMPERATURE, TOP_P, ModelFiles


class Vllm:
    def __init__(self, files: ModelFiles, threads: int, *, dtype: str, eager: bool = False) -> None:
        self.llm: Any = vllm.LLM(
            files.folder,
            dtype=dtype,
            max_num_seqs=64,
            max_model_len=1024,
            enable_prefix_caching=False,
            enforce_eager=eager,
            disable_log_stats=True,
        )
        self.version = vllm.__version__
        self.compute = dtype

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        common: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True, "detokenize": False}
        if seeds is None:
            params = [vllm.SamplingParams(temperature=0, **common) for _ in prompts]
        else:
            params = [vllm.SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, seed=s, **common) for s in seeds]
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]
