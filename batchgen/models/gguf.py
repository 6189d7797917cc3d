"""A GGUF file as a Checkpoint: tensors under their Hugging Face names, dequantised one at a time."""

from pathlib import Path

import torch

from batchgen.models.config_gguf import ROPE_FACTORS, config_from_gguf
from batchgen.models.dequant import dequantize
from batchgen.models.gguf_file import GgufFile
from batchgen.models.weights import EMBEDDING, LM_HEAD, Checkpoint, check_inventory

_OUTSIDE = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": LM_HEAD}
_IN_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: Path) -> Checkpoint:
    """Opens the GGUF file at `path`. Raises ModelError if it is torn or is not a whole model that is supported."""
    file = GgufFile(path)
    config = config_from_gguf(file)
    stored = {_hf_name(name): name for name in file.tensors if name != ROPE_FACTORS}
    shapes = {hf: file.tensors[name].shape for hf, name in stored.items()}
    check_inventory(shapes, config, lambda _: str(path))
    heads = {}
    if config.architecture == "LlamaForCausalLM":  # there, the rotary halves of a head lie interleaved
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}

    def read(name: str) -> torch.Tensor:
        kind = file.tensors[stored[name]].type
        blocks = file.data(stored[name]).reshape(-1, kind.size)
        tensor = torch.from_numpy(dequantize(blocks, kind.name)).view(shapes[name]).to(torch.bfloat16)
        n = heads.get(name.split(".")[-2])
        return tensor if n is None else tensor.view(n, -1, 2, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)

    return Checkpoint(config, str(path), read)


def _hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor, or `name` itself if there is none."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match name.split("."):
        case ["blk", layer, module, "weight" | "bias" as leaf] if module in _IN_A_LAYER:
            return f"model.layers.{layer}.{_IN_A_LAYER[module]}.{leaf}"
    return name
