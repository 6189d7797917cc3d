from pathlib import Path

import pytest
import torch
from support.tiny_gguf import write_tiny_gguf

from batchgen.errors import ModelError
from batchgen.models.checkpoint import open_checkpoint


def test_a_folder_and_a_gguf_file_of_one_model_have_one_digest(tmp_path: Path, tiny_llama: Path) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", tiny_llama)
    assert open_checkpoint(tiny_llama).weights_digest() == open_checkpoint(file).weights_digest()


def test_a_pickle_is_not_a_model(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"model\.pt: is not a model\n.*pickles are not read"):
        open_checkpoint(tmp_path / "model.pt")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing: does not exist"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        open_checkpoint(tmp_path / "nothing.gguf")
