"""Checkpoint: a model's config and its tensors under their Hugging Face names, one tensor at a time."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig, MoeConfig

EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"

Shape = tuple[int, ...]

ROUTER_BIAS = "gate.e_score_correction_bias"
_EXPERT = re.compile(r"(model\.layers\.\d+)\.mlp\.experts\.(\d+)\.")


@dataclass(frozen=True)
class Checkpoint:
    """An opened model. Nothing is held in memory but the config; `read` fetches a tensor in its stored precision."""

    config: ModelConfig
    where: str
    read: Callable[[str], torch.Tensor]

    def names(self) -> list[str]:
        return list(expected_tensors(self.config))

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name`: bfloat16 on the CPU, contiguous, [out, in] for a linear layer; read it, never write.

        float32 and float16 values are rounded to the nearest bfloat16, ties to even. The bias of a router alone is
        float32, as it stands: rounded, it would choose other experts. Raises ModelError if a value is not finite,
        before or after.
        """
        if name.endswith(ROUTER_BIAS):
            exact = self.read(name).float().contiguous()
            if not exact.isfinite().all():
                raise ModelError(f"tensor {name} holds NaN or infinity", where=self.where)
            return exact
        tensor = self.read(name).to(torch.bfloat16).contiguous()
        # By its bits, because isfinite on bfloat16 takes longer than the dequantising does.
        if (tensor.view(torch.int16) & 0x7FFF).max() >= 0x7F80:
            raise ModelError(f"tensor {name} holds NaN, infinity, or values too large for bfloat16", where=self.where)
        return tensor

    def weights_digest(self) -> str:
        """See `combine_digests`. Reads every tensor."""
        return combine_digests(self.config, {name: tensor_digest(self.tensor(name)) for name in self.names()})


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the model, in the order of its layers."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{layer}self_attn.{name}.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{layer}self_attn.{name}.bias"] = (rows,)
        if config.qk_norm:
            shapes[layer + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[layer + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, q)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        if config.moe is not None and config.is_moe(i):
            shapes |= _expert_tensors(config.moe, hidden, layer + "mlp.")
        else:
            shapes |= _gated(layer + "mlp.", inner, hidden)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    return shapes


def _expert_tensors(moe: MoeConfig, hidden: int, at: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {at + "gate.weight": (moe.num_experts, hidden)}
    if moe.has_bias:
        shapes[at + ROUTER_BIAS] = (moe.num_experts,)
    for j in range(moe.num_experts):
        shapes |= _gated(f"{at}experts.{j}.", moe.inner_size, hidden)
    if moe.shared_size:
        shapes |= _gated(at + "shared_experts.", moe.shared_size, hidden)
    return shapes


def _gated(at: str, inner: int, hidden: int) -> dict[str, Shape]:
    """A gated MLP."""
    rows = {at + f"{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**rows, at + "down_proj.weight": (hidden, inner)}


def without_copies(
    names: Iterable[str], config: ModelConfig, read: Callable[[str], torch.Tensor], where: Callable[[str], str]
) -> list[str]:
    """`names` without those that say nothing new: rotary tables of old checkpoints, a head equal to the tied embedding.

    Raises ModelError for a head that differs from the embedding to which the config ties it.
    """
    kept = [name for name in names if not name.endswith(".rotary_emb.inv_freq")]
    if config.tie_word_embeddings and LM_HEAD in kept and EMBEDDING in kept:
        if not torch.equal(read(LM_HEAD), read(EMBEDDING)):
            message = f"{LM_HEAD} differs from {EMBEDDING}, and the config ties them"
            raise ModelError(message, where=where(LM_HEAD), hint='set "tie_word_embeddings": false in config.json')
        kept.remove(LM_HEAD)
    return kept


def check_inventory(found: Mapping[str, Shape], config: ModelConfig, where: Callable[[str], str]) -> None:
    """Raises ModelError unless `found` holds the tensors of the model, and nothing else.

    `where` gives the place of a tensor, or of one that should be there.
    """
    expected = expected_tensors(config)
    _check_experts(found, config, where)
    if missing := [name for name in expected if name not in found]:
        raise ModelError(f"tensor {_listed(missing)} is missing", where=where(missing[0]))
    if unknown := sorted(found.keys() - expected.keys()):
        hint = f"{config.architecture} has no such tensor, and skipping it may change the answers"
        raise ModelError(f"unknown tensor {_listed(unknown)}", where=where(unknown[0]), hint=hint)
    for name, shape in expected.items():
        if found[name] != shape:
            message = f"tensor {name} has shape {list(found[name])}, and the config says {list(shape)}"
            raise ModelError(message, where=where(name))


def _check_experts(found: Mapping[str, Shape], config: ModelConfig, where: Callable[[str], str]) -> None:
    """Raises ModelError unless every layer with experts has as many as the config says."""
    if config.moe is None:
        return
    counts: dict[str, set[str]] = {}
    for name in found:
        if match := _EXPERT.match(name):
            counts.setdefault(match[1], set()).add(match[2])
    for layer, numbers in sorted(counts.items()):
        if len(numbers) != config.moe.num_experts:
            message = f"{layer} has {len(numbers)} experts, and the config says {config.moe.num_experts}"
            hint = "config.json is not that of these weights, or some of their files are missing"
            raise ModelError(message, where=where(f"{layer}.mlp.experts.0.gate_proj.weight"), hint=hint)


def tensor_digest(tensor: torch.Tensor) -> str:
    """Hex SHA-256 of the bytes of a contiguous CPU tensor of bfloat16 or float32, little endian."""
    return hashlib.sha256(tensor.view(torch.int16).numpy().data).hexdigest()


def combine_digests(config: ModelConfig, digests: Mapping[str, str]) -> str:
    """The weights digest: hex SHA-256 over all that decides the logits of given token ids.

    That is the config's arithmetic and, sorted by Hugging Face name, each tensor's shape and `tensor_digest`. It is of
    the values that are computed with, so one model has one digest in every file format.
    """
    shapes = expected_tensors(config)
    assert digests.keys() == shapes.keys()
    tensors = {name: [list(shapes[name]), digests[name]] for name in shapes}
    content = {"config": config.arithmetic(), "tensors": tensors}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _listed(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} (and {len(rest)} more)" if rest else first
