"""What a model path holds: a Hugging Face folder or a GGUF file."""

from pathlib import Path

from batchgen.errors import ModelError
from batchgen.models.folder import open_folder
from batchgen.models.gguf import open_gguf
from batchgen.models.weights import Checkpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a model folder or a .gguf file. Raises ModelError for anything else, or anything wrong with it."""
    if path.is_dir():
        return open_folder(path)
    if path.suffix == ".gguf":
        return open_gguf(path)
    hint = "a model is a folder with config.json and safetensors, or a .gguf file; pickles are not read"
    raise ModelError("is not a model" if path.exists() else "does not exist", where=str(path), hint=hint)
