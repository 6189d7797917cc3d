"""transformers: static batches, left padded, sdpa attention; one global seed."""

from typing import Any

import torch
import transformers

from benchmarks.peers.base import GLOBAL_SEED, TEMPERATURE, TOP_P, ModelFiles


class Transformers:
    def __init__(self, files: ModelFiles, threads: int, *, dtype: str, batch: int = 64) -> None:
        torch.set_num_threads(threads)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            files.folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self.batch = batch
        self.version = transformers.__version__
        self.compute = f"{dtype}, {torch.backends.cpu.get_cpu_capability()}"

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        transformers.set_seed(GLOBAL_SEED)
        sampling: dict[str, Any] = {"do_sample": False}
        if seeds is not None:
            sampling = {"do_sample": True, "temperature": TEMPERATURE, "top_p": TOP_P, "top_k": 0}
        answers = []
        for start in range(0, len(prompts), self.batch):
            part = prompts[start : start + self.batch]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.inference_mode():
                out = self.model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=max_tokens,
                    min_new_tokens=max_tokens,
                    pad_token_id=0,
                    eos_token_id=None,
                    **sampling,
                )
            answers += out[:, width:].tolist()
        return answers
