"""Writes the bfloat16 weights of a GGUF file in every format that the peers read, and the prompts as token ids."""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pyarrow.parquet as pq
import torch
import transformers


def hf_folder(source: Path, out: Path) -> None:
    """A Hugging Face folder with bfloat16 safetensors and the tokenizer."""
    read = transformers.AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # a model read from GGUF refuses to be saved, so its tensors move into a plain one
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict({name: value.to(torch.bfloat16) for name, value in read.state_dict().items()})
    plain.save_pretrained(str(out))
    transformers.AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(out))


def gguf_file(source: Path, out: Path, dtype: str) -> None:
    """A copy of a GGUF file with the same metadata, its matrices rounded to bfloat16 and stored as `dtype`."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(out), arch=str(reader.fields["general.architecture"].contents()))
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub = entry.types[1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), entry.types[0], sub_type=sub)
    kind = {"f32": "F32", "f16": "F16", "bf16": "BF16"}[dtype]
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if dtype == "f32" else f"MOSTLY_{kind}"))
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.numpy())
            continue
        rounded = values.to(torch.bfloat16)
        if dtype == "bf16":
            data = rounded.view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, rounded.float().numpy().astype(np.float32 if dtype == "f32" else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prompt_ids(folder: Path, parquet: Path, rows: int) -> list[list[int]]:
    """The first `rows` prompts of a Parquet file with a `messages` column, through the model's chat template."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    messages = pq.read_table(parquet, columns=["messages"]).slice(0, rows)["messages"].to_pylist()
    texts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in messages]
    return [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]


def ctranslate2_folder(folder: Path, out: Path) -> None:
    converters = importlib.import_module("ctranslate2.converters")
    converters.TransformersConverter(str(folder), load_as_float16=False).convert(str(out), quantization="bfloat16")


def main() -> None:
    """Each step is skipped when its result is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "source.txt").write_text(str(args.source.resolve()))
    if not (args.out / "hf").exists():
        hf_folder(args.source, args.out / "hf")
    for dtype in ("f16", "bf16", "f32"):
        if not (args.out / f"model-{dtype}.gguf").exists():
            gguf_file(args.source, args.out / f"model-{dtype}.gguf", dtype)
    if importlib.util.find_spec("ctranslate2") and not (args.out / "ct2").exists():
        ctranslate2_folder(args.out / "hf", args.out / "ct2")
    ids = prompt_ids(args.out / "hf", args.prompts, args.rows)
    (args.out / "prompts.json").write_text(json.dumps(ids))
    print(f"{len(ids)} prompts, {sum(map(len, ids))} tokens, longest {max(map(len, ids))}")


if __name__ == "__main__":
    main()
