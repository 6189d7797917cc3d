"""CTranslate2: one static batch of 64; one global seed."""

from pathlib import Path
from typing import Any

import ctranslate2
from tokenizers import Tokenizer

from benchmarks.peers.base import GLOBAL_SEED, TEMPERATURE, TOP_P, ModelFiles


class CTranslate2:
    def __init__(self, files: ModelFiles, threads: int, *, dtype: str) -> None:
        self.generator: Any = ctranslate2.Generator(
            files.ctranslate2(), device="cpu", compute_type=dtype, intra_threads=threads, inter_threads=1
        )
        self.tokenizer = Tokenizer.from_file(str(Path(files.folder) / "tokenizer.json"))
        self.version = ctranslate2.__version__
        self.compute = self.generator.compute_type

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        ctranslate2.set_random_seed(GLOBAL_SEED)
        sampling: dict[str, Any] = {"sampling_topk": 1}
        if seeds is not None:
            sampling = {"sampling_topk": 0, "sampling_topp": TOP_P, "sampling_temperature": TEMPERATURE}
        results = self.generator.generate_batch(
            [[self.tokenizer.id_to_token(t) for t in p] for p in prompts],
            max_length=max_tokens,
            min_length=max_tokens,
            include_prompt_in_result=False,
            max_batch_size=64,
            **sampling,
        )
        return [list(r.sequences_ids[0]) for r in results]
