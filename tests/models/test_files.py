import os
from pathlib import Path

import pytest
from support.tiny_gguf import write_tiny_gguf
from support.tiny_models import write_tiny

from batchgen.errors import ModelError
from batchgen.models.config_gguf import config_from_gguf
from batchgen.models.config_json import read_config_json
from batchgen.models.files import source_digest
from batchgen.models.gguf_file import GgufFile


def test_one_config_from_either_format(tmp_path: Path, tiny_llama: Path) -> None:
    header = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", tiny_llama))
    assert read_config_json(tiny_llama / "config.json") == config_from_gguf(header)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_digest_is_of_contents(tmp_path: Path, shards: int) -> None:
    a, b = (write_tiny(tmp_path / name, shards=shards) for name in "ab")
    assert source_digest(a) == source_digest(b)
    for file in [*sorted(b.glob("*.safetensors")), b / "config.json"]:
        whole, time = file.read_bytes(), file.stat().st_mtime_ns
        file.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        os.utime(file, ns=(time, time))
        assert source_digest(a) != source_digest(b), file.name
        file.write_bytes(whole)
    (b / "README.md").write_text("a file that no weight comes from")
    assert source_digest(a) == source_digest(b)


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"1")
    first = source_digest(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"2")
    assert source_digest(tmp_path / "a.gguf") != first
    with pytest.raises(ModelError, match=r"cannot be read: No such file"):
        source_digest(tmp_path / "b.gguf")
