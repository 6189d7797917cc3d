"""What a measured engine looks like, and the setups it is measured in. Imports the standard library alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

TEMPERATURE, TOP_P, GLOBAL_SEED = 0.8, 0.95, 7


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The same bfloat16 weights in every peer's file format, as `peers.export` lays them out in one folder."""

    root: str

    @property
    def folder(self) -> str:
        """A Hugging Face folder: config.json, bfloat16 safetensors, tokenizer.json."""
        return str(Path(self.root) / "hf")

    def gguf(self, dtype: str) -> str:
        """A GGUF file whose matrices are stored as `dtype`: f32, f16 or bf16."""
        return str(Path(self.root) / f"model-{dtype}.gguf")

    def ctranslate2(self) -> str:
        return str(Path(self.root) / "ct2")

    @property
    def source(self) -> str:
        """The GGUF file that all of them were made from."""
        return (Path(self.root) / "source.txt").read_text().strip()


class Peer(Protocol):
    """An engine that has loaded its weights."""

    version: str
    compute: str  # what it computes in, read back from it where that is possible

    def generate(self, prompts: list[list[int]], max_tokens: int, seeds: list[int] | None) -> list[list[int]]:
        """Exactly `max_tokens` token ids for each prompt, all prompts in flight together; greedy if `seeds` is None.

        Sampled otherwise, with TEMPERATURE and TOP_P; an engine with a single seed takes GLOBAL_SEED.
        """
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """One line of the table: an engine, its options and its environment."""

    name: str
    engine: str
    weights: str
    compute: str
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}

SETUPS: tuple[Setup, ...] = (
    Setup("batchgen portable", "batchgen", "bf16", "float32, portable/1"),
    Setup("batchgen native", "batchgen", "bf16", "bfloat16 tiles, native-amx/1", {"numerics": "native-amx/1"}),
    Setup("batchgen avx2", "batchgen", "bf16", "float32, portable/1, AVX2", {"isa": "avx2"}),
    Setup("openvino default", "openvino", "f16", "engine's choice"),
    Setup("openvino f32", "openvino", "f16", "float32", {"precision": "f32"}),
    Setup("openvino f32 kv32", "openvino", "f16", "float32", {"precision": "f32", "kv": "f32"}),
    Setup("openvino f32 avx2", "openvino", "f16", "float32, AVX2", {"precision": "f32"}, AVX2),
    Setup("llama.cpp f16", "llamacpp", "f16", "native", {"dtype": "f16"}),
    Setup("llama.cpp bf16", "llamacpp", "bf16", "native", {"dtype": "bf16"}),
    Setup("llama.cpp f32", "llamacpp", "f32", "native", {"dtype": "f32"}),
    Setup("vllm bf16", "vllm", "bf16", "bfloat16", {"dtype": "bfloat16"}),
    Setup("vllm f32", "vllm", "f32", "float32", {"dtype": "float32"}),
    Setup("vllm f32 avx2", "vllm", "f32", "float32, AVX2", {"dtype": "float32"}, AVX2),
    Setup("ctranslate2 f32", "ctranslate2", "f32", "float32", {"dtype": "float32"}),
    Setup("ctranslate2 bf16", "ctranslate2", "bf16", "bfloat16", {"dtype": "bfloat16"}),
    Setup("ctranslate2 f32 avx2", "ctranslate2", "f32", "float32, AVX2", {"dtype": "float32"}, AVX2),
    Setup("transformers f32", "transformers", "f32", "float32", {"dtype": "float32"}),
    Setup("transformers f32 b32", "transformers", "f32", "float32", {"dtype": "float32", "batch": 32}),
    Setup("transformers bf16", "transformers", "bf16", "bfloat16", {"dtype": "bfloat16"}),
    Setup("transformers bf16 avx512", "transformers", "bf16", "bfloat16, no AMX", {"dtype": "bfloat16"}, AVX512),
    Setup("transformers f32 avx2", "transformers", "f32", "float32, AVX2", {"dtype": "float32"}, AVX2),
)
