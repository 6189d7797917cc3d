"""Reinforcement learning with exact rollouts: a tiny model learns to sort letters, by GRPO, on a CPU.

    python examples/grpo.py [FOLDER] [STEPS]

The task is verified by a program: "cab=" is to be answered "abc" and no more. Each step asks for eight answers to each
of some prompts, gives each of them an advantage over its group, takes one step of the optimizer, and hands the new
weights to the engine. Two runs print the same rewards and the same digest of the last weights: the rollouts are the
engine's, whose bits depend on weights and seeds alone, and the training is single-threaded torch.

Rollout and training disagree on logprobs in most stacks, because two programs compute them. Here the ratio of the
policies is taken between two numbers of one engine: it is exactly 1 on policy, which each step asserts. The gradient
comes from the model below.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from batchgen import Engine, SamplingParams
from batchgen.rollout import Rollout

END, LETTERS = "<|end|>", "abcdef"
VOCABULARY = [END, *LETTERS, "="]
WIDTH, HEADS, HEAD, INNER, LAYERS = 64, 2, 32, 128, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}

PARAMS = SamplingParams(n=8, temperature=1.0, max_tokens=4, logprobs=0)
PROMPTS_PER_STEP, LEARNING_RATE, CLIP = 48, 3e-3, 0.2


class Attention(nn.Module):
    """Causal, with rotary positions; names and numbers are those of Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, HEADS * HEAD, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """float32 [B, T, WIDTH] -> the same."""
        q, k, v = (
            project(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(rotated(q, rotary), rotated(k, rotary), v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [B, T, WIDTH] -> the same."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One block."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, h: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """float32 [B, T, WIDTH] -> the same."""
        h = h + self.self_attn(self.input_layernorm(h), rotary)
        out: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return out


class Body(nn.Module):
    """All but the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(len(VOCABULARY), WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [B, T] -> float32 [B, T, WIDTH]."""
        angles = torch.arange(ids.shape[1])[:, None] * CONFIG["rope_theta"] ** (-torch.arange(0, HEAD, 2) / HEAD)
        rotary = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        h = self.embed_tokens(ids)
        for layer in self.layers:
            h = layer(h, rotary)
        out: Tensor = self.norm(h)
        return out


class TinyLlama(nn.Module):
    """The model that is trained. Its parameters have the names that a checkpoint of Llama has."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Body(), nn.Linear(WIDTH, len(VOCABULARY), bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The logprobs of the token after each: int64 [B, T] -> float32 [B, T, V]."""
        return F.log_softmax(self.lm_head(self.model(ids)), -1)


def rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """x float32 [B, H, T, HEAD]: its halves turned against each other."""
    first, second = x.chunk(2, -1)
    return x * rotary[0] + torch.cat([-second, first], -1) * rotary[1]


def reward(problem: str, rollout: Rollout) -> float:
    """A quarter for each letter in its place, and one for an end after the last: 1 for the answer and no more."""
    text, right = rollout.completion.text, sorted(problem)
    ends = rollout.completion.finish_reason == "stop" and len(text) == len(right)
    return 0.25 * (ends + sum(a == b for a, b in zip(text, right, strict=False)))


def advantages(rewards: Tensor) -> Tensor:
    """Of each answer over its group.  [groups, n] -> [groups, n]"""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)


def loss_of(model: TinyLlama, rollouts: list[Rollout], scored: list[Rollout], advantage: Tensor) -> Tensor:
    """The clipped objective of GRPO over the tokens that were drawn. `advantage` float32 [rollouts]."""
    prompts = torch.tensor([rollout.request.prompt_token_ids for rollout in rollouts])
    answers = padded([rollout.completion.token_ids for rollout in rollouts])
    mask = padded([[1.0] * len(rollout.completion.token_ids) for rollout in rollouts])
    then = padded([rollout.completion.logprobs or () for rollout in rollouts])
    now = padded([rollout.completion.logprobs or () for rollout in scored])
    ids = torch.cat([prompts, answers.long()], 1)
    own = model(ids[:, :-1]).gather(-1, ids[:, 1:, None])[:, prompts.shape[1] - 1 :, 0]
    # The engine's number, with the gradient of the model's: own - own is +0.
    logprobs = now + (own - own.detach())
    ratio = (logprobs - then).exp()
    assert bool((ratio == 1).all()), "rollout and training are of two policies"
    gain = torch.minimum(ratio * advantage[:, None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[:, None])
    return -(gain * mask).sum() / mask.sum()


def padded(rows: list[Any]) -> Tensor:
    """float32 [rows, longest], zeros behind the shorter ones."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


def write_model(folder: Path, model: TinyLlama) -> None:
    """What the engine starts from: config, weights, and a tokenizer of one token a letter."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(VOCABULARY)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def train(folder: Path, steps: int, **limits: Any) -> Iterator[tuple[float, str]]:
    """The mean reward of each step, and the digest of the weights after it. No limit of the engine changes either."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = TinyLlama()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    write_model(folder, model)
    problems = ["".join(letters) for letters in product(LETTERS, repeat=3)]
    chosen = torch.Generator().manual_seed(7)
    with Engine.open(folder, **{"max_num_seqs": 512, "max_num_batched_tokens": 1024, **limits}) as engine:
        for step in range(steps):
            some = [problems[i] for i in torch.randperm(len(problems), generator=chosen)[:PROMPTS_PER_STEP]]
            rollouts = engine.generate({problem: f"{problem}=" for problem in some}, PARAMS, seed=step)
            rewards = torch.tensor([reward(rollout.request.row_key, rollout) for rollout in rollouts])
            loss = loss_of(model, rollouts, engine.score(rollouts), advantages(rewards.view(-1, PARAMS.n)).flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield float(rewards.mean()), engine.update_weights(model.state_dict(), version=f"step-{step}")


def main(folder: Path, steps: int) -> None:
    recent: list[float] = []
    for step, (mean, digest) in enumerate(train(folder, steps), 1):
        recent.append(mean)
        if step % 10 == 0:
            print(f"step {step:4}  reward {sum(recent) / len(recent):.4f}", flush=True)
            recent.clear()
        if step == steps:
            print(f"weights {digest}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        given = sys.argv[1:]
        main(Path(given[0]) if given else Path(scratch), int(given[1]) if len(given) > 1 else 150)
