"""Against an outside reference: transformers in float32 on the same weights.

batchgen rounds what enters a matrix product to bfloat16, and transformers in float32 does not, so logits agree only
within a tolerance: 0.15 of a logit's standard deviation at most and 0.02 on average (transformers' own bfloat16 stands
three to five times further from its float32 than batchgen does). A wrong rotation, norm, bias or mask moves them by
whole deviations: the counter-tests show it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_models import write_tiny, write_weights
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from batchgen.layers.step import StepTensors
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, llama3 scaling": ("llama", {"rope_scaling": LLAMA3_SCALING}),
    "llama, linear scaling": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 64}),
}
MOE_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, plain weights": ("qwen3_moe", {"norm_topk_prob": False}),
    "qwen3_moe, a dense layer": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "dots1": ("dots1", {}),
    "dots1, plain weights": ("dots1", {"norm_topk_prob": False, "first_k_dense_replace": 0}),
}
IDS = [(i * 53) % 280 + 3 for i in range(150)]


def our_logits(path: Path, cache_dir: Path, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), V], in one prefill."""
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(path), cache_dir, "model")
    decoder = Decoder(weights.config, weights.tensors, len(ids))
    blocks = -(-len(ids) // 32)
    positions = torch.arange(len(ids), dtype=torch.int32)
    step = StepTensors(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        positions=positions,
        slots=positions.long(),
        query_start=torch.tensor([0, len(ids)], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        sample_rows=positions.long(),
    )
    return decoder.forward(step, decoder.new_cache(blocks))


def their_logits(path: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, config=AutoConfig.from_pretrained(path))
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(torch.tensor([ids])).logits[0]
    return logits


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float]:
    """Largest and mean difference in standard deviations of a logit."""
    difference = (ours - theirs).abs() / theirs.std()
    return float(difference.max()), float(difference.mean())


@pytest.mark.parametrize("case", CASES)
def test_prefill_logits(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    path = write_tiny(tmp_path / "model", family, **changes)
    ours, theirs = our_logits(path, tmp_path, IDS), their_logits(path, IDS)
    largest, mean = distance(ours, theirs)
    assert largest < 0.15, (largest, mean)
    assert mean < 0.02, (largest, mean)
    agree = float((ours.argmax(-1) == theirs.argmax(-1)).float().mean())
    assert agree > 0.95, f"greedy agreement {agree:.3f}"


def near(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Which positions have all their logits within 0.15 standard deviations."""
    return ((ours - theirs).abs() / theirs.std()).amax(dim=-1) < 0.15


@pytest.mark.parametrize("case", MOE_CASES)
def test_prefill_logits_with_experts(case: str, tmp_path: Path) -> None:
    """Of nearly equal scores the rounding of x may choose another expert: at a few positions, and then all is other."""
    family, changes = MOE_CASES[case]
    path = write_tiny(tmp_path / "model", family, **changes)
    ours, theirs = our_logits(path, tmp_path, IDS), their_logits(path, IDS)
    same = near(ours, theirs)
    assert same.float().mean() > 0.9
    assert distance(ours[same], theirs[same])[1] < 0.02
    assert float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()) > 0.93


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"num_experts_per_tok": 3}),
        ("dots1", {"routed_scaling_factor": 1.2}),
        ("dots1", {"norm_topk_prob": False}),
    ],
)
def test_counter_wrong_experts_are_caught(family: str, change: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model", family)
    theirs = their_logits(path, IDS)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    assert near(our_logits(path, tmp_path, IDS), theirs).float().mean() < 0.5


def test_counter_a_bias_that_is_forgotten_is_caught(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model", "dots1")
    theirs = their_logits(path, IDS)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.1.mlp.gate.e_score_correction_bias"].zero_()
    write_weights(path, weights)
    assert near(our_logits(path, tmp_path, IDS), theirs).float().mean() < 0.8


@pytest.mark.parametrize("change", [{"rope_theta": 20000.0}, {"rms_norm_eps": 0.5}])
def test_counter_a_wrong_config_is_caught(change: dict[str, Any], tmp_path: Path) -> None:
    """The tolerance has power: the same weights read with another theta or eps are far outside it."""
    path = write_tiny(tmp_path / "model", "qwen3")
    theirs = their_logits(path, IDS)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    assert distance(our_logits(path, tmp_path, IDS), theirs)[1] > 0.04


@pytest.mark.model
def test_the_quickstart_model(smollm: Path, tmp_path: Path) -> None:
    """SmolLM2-135M-Instruct from its GGUF: prefill logits, and greedy agreement position by position."""
    checkpoint = open_checkpoint(smollm)
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
        )
    )
    weights = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    left_out = model.load_state_dict(weights, strict=False)
    assert not left_out.unexpected_keys
    assert set(left_out.missing_keys) <= {"lm_head.weight"}
    ids = [(i * 7919) % 49000 + 17 for i in range(120)]
    with torch.inference_mode():
        theirs = model.eval()(torch.tensor([ids])).logits[0]
    ours = our_logits(smollm, tmp_path, ids)
    largest, mean = distance(ours, theirs)
    assert largest < 0.15, (largest, mean)
    assert mean < 0.02, (largest, mean)
    assert float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()) >= 0.93
