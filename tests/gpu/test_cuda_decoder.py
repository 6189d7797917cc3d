"""portable/1 on a GPU: a whole decoder generates the tokens, and has the logits, that it has on a CPU."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bitwise import assert_bitwise
from support.on_gpu import GPU
from support.sampling import sample_rows

from batchgen import kernels
from batchgen.layers.step import StepTensors
from batchgen.models.config import ModelConfig
from batchgen.models.decoder import Decoder

pytestmark = GPU
Weights = dict[str, torch.Tensor]

LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=3,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    rope_scaling=None,
    max_position_embeddings=512,
    max_context=512,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    bos_token_id=None,
    eos_token_ids=(),
)
SHAPES = {
    "llama": LLAMA,
    "qwen2": replace(LLAMA, vocab_size=1001, num_heads=14, num_kv_heads=2, qkv_bias=True, tie_word_embeddings=False),
    "qwen3": replace(
        LLAMA, vocab_size=3003, hidden_size=1024, num_heads=16, num_kv_heads=8, head_dim=128, qk_norm=True
    ),
}


def random_weights(config: ModelConfig) -> Weights:
    """Names of models/fused.py, linears packed."""
    random = torch.Generator().manual_seed(1)
    H, D = config.hidden_size, config.head_dim

    def panels(rows: int, columns: int) -> torch.Tensor:
        weight = torch.randn(-(-rows // 32), columns // 2, 32, 2, generator=random) / math.sqrt(columns)
        return weight.to(torch.bfloat16)

    def vector(size: int) -> torch.Tensor:
        return torch.randn(size, generator=random).mul(0.1).add(1)

    weights = {"embed": panels(config.vocab_size, H), "lm_head": panels(config.vocab_size, H), "final_norm": vector(H)}
    for i in range(config.num_layers):
        rows = (config.num_heads + 2 * config.num_kv_heads) * D
        weights |= {
            f"layers.{i}.qkv": panels(rows, H),
            f"layers.{i}.qkv_bias": vector(rows),
            f"layers.{i}.q_norm": vector(D),
            f"layers.{i}.k_norm": vector(D),
            f"layers.{i}.o": panels(H, config.num_heads * D),
            f"layers.{i}.gate_up": panels(2 * config.intermediate_size, H),
            f"layers.{i}.down": panels(H, config.intermediate_size),
            f"layers.{i}.input_norm": vector(H),
            f"layers.{i}.post_norm": vector(H),
        }
    return weights


class Generator:
    """Some sequences on one device: a prefill of all, then a token a step for each."""

    def __init__(self, config: ModelConfig, weights: Weights, device: str, lengths: list[int]) -> None:
        self.decoder = Decoder(config, weights, 512, device=torch.device(device))
        self.device, self.lengths, self.per_sequence = device, list(lengths), 8
        blocks = len(lengths) * self.per_sequence
        self.tables = torch.randperm(blocks, generator=torch.Generator().manual_seed(2)).view(len(lengths), -1)
        self.cache = self.decoder.new_cache(blocks)

    def logits(self, tokens: list[list[int]]) -> torch.Tensor:
        """Of the last token of each sequence, after these further tokens of it."""
        positions = [torch.arange(n - len(new), n) for n, new in zip(self.lengths, tokens, strict=True)]
        slots = [table[at // 32] * 32 + at % 32 for table, at in zip(self.tables, positions, strict=True)]
        start = torch.tensor([0, *np.cumsum([len(new) for new in tokens])], dtype=torch.int32)
        step = StepTensors(
            token_ids=torch.tensor([t for new in tokens for t in new], dtype=torch.int32),
            positions=torch.cat(positions).to(torch.int32),
            slots=torch.cat(slots),
            query_start=start,
            block_tables=self.tables.to(torch.int32),
            sample_rows=start[1:].long() - 1,
        )
        return self.decoder.forward(step.on(torch.device(self.device)), self.cache)

    def generate(self, prompts: list[list[int]], steps: int) -> tuple[list[list[int]], list[torch.Tensor]]:
        """The tokens, and the logits of each step."""
        new, tokens, logits = prompts, [], []
        R = len(prompts)
        for at in range(steps):
            x = self.logits(new)
            logits.append(x.cpu().clone())
            mixed = {"temperature": [0.0, 1.0, 0.7] * (R // 3), "top_p": [1.0, 0.9] * (R // 2)}
            rows = sample_rows(R, seed=np.arange(R), position=np.array(self.lengths) + at, **mixed)
            drawn = kernels.sample(x, rows, processed_logprobs=False).token.tolist()
            tokens.append(drawn)
            new = [[token] for token in drawn]
            self.lengths = [n + 1 for n in self.lengths]
        return tokens, logits


@pytest.mark.parametrize("shape", SHAPES)
def test_generates_what_the_cpu_generates(shape: str) -> None:
    config = SHAPES[shape]
    weights, rng = random_weights(config), np.random.default_rng(5)
    lengths = [1, 31, 32, 33, 70, 128]
    prompts = [rng.integers(0, config.vocab_size, n).tolist() for n in lengths]
    cpu_tokens, cpu_logits = Generator(config, weights, "cpu", lengths).generate(prompts, 40)
    tokens, logits = Generator(config, weights, "cuda", lengths).generate(prompts, 40)
    for at, (ours, theirs) in enumerate(zip(logits, cpu_logits, strict=True)):
        assert_bitwise(ours, theirs, f"logits of step {at}")
    assert tokens == cpu_tokens
    assert len({token for step in tokens for token in step}) > 50, "the tokens must be able to differ"
