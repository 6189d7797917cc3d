"""llama-cpp-python: 64 parallel sequences through the batch API, llama.cpp's own samplers; a seed a sequence."""

import ctypes
from typing import Any

import llama_cpp as ll

from benchmarks.peers.base import TEMPERATURE, TOP_P, ModelFiles

BATCH = 2048


class LlamaCpp:
    def __init__(self, files: ModelFiles, threads: int, *, dtype: str, kv: str = "f16", context: int = 640) -> None:
        ll.llama_backend_init()
        self._quiet = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(self._quiet, ctypes.c_void_p(0))
        path = files.gguf(dtype) if dtype in ("f32", "f16", "bf16") else files.source
        self.model: Any = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
        params = ll.llama_context_default_params()
        params.n_ctx = context * 64
        params.n_seq_max = 64
        params.n_batch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = {"f16": ll.GGML_TYPE_F16, "f32": ll.GGML_TYPE_F32}[kv]
        params.kv_unified = False
        self.ctx: Any = ll.llama_init_from_model(self.model, params)
        if not self.model or not self.ctx:
            raise RuntimeError(f"llama.cpp could not load {path}")
        self.batch = ll.llama_batch_init(BATCH, 0, 1)
        self.version = ll.__version__
        info = ll.llama_print_system_info().decode()
        flags = [p.strip().split(" = ")[0] for p in info.replace("CPU :", "").split("|") if p.strip().endswith("= 1")]
        self.compute = f"{dtype}, kv {kv}, " + " ".join(flags)

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        ll.llama_memory_clear(ll.llama_get_memory(self.ctx), True)
        samplers = [_sampler(None if seeds is None else seeds[i]) for i in range(len(prompts))]
        answers: list[list[int]] = [[] for _ in prompts]
        entries = [(seq, pos, tok, pos == len(p) - 1) for seq, p in enumerate(prompts) for pos, tok in enumerate(p)]
        while entries:
            for start in range(0, len(entries), BATCH):
                self._decode(entries[start : start + BATCH], samplers, answers)
            entries = [
                (seq, len(prompts[seq]) + len(a) - 1, a[-1], True)
                for seq, a in enumerate(answers)
                if len(a) < max_tokens
            ]
        for sampler in samplers:
            ll.llama_sampler_free(sampler)
        return answers

    def _decode(self, entries: list[tuple[int, int, int, bool]], samplers: list[Any], answers: list[list[int]]) -> None:
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (seq, pos, token, last) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, pos, 1, seq
            batch.logits[i] = last
        if ll.llama_decode(self.ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")
        for i, (seq, _, _, last) in enumerate(entries):
            if last:
                answers[seq].append(ll.llama_sampler_sample(samplers[seq], self.ctx, i))


def _sampler(seed: int | None) -> Any:
    chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    if seed is None:
        ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_greedy())
        return chain
    # temperature before top-p, as every other engine in the table does it
    ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_temp(TEMPERATURE))
    ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_top_p(TOP_P, 1))
    ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_dist(seed))
    return chain
