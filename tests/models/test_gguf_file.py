import struct
import warnings
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.tiny_gguf import write_tiny_gguf

from batchgen.errors import ModelError
from batchgen.models.gguf_file import GGML_TYPES, GgufFile


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama, "Q8_0")


def test_the_types_are_those_of_the_format() -> None:
    for code, kind in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(code)
        assert (theirs.name, *gguf.GGML_QUANT_SIZES[theirs]) == kind


def test_it_reads_what_the_gguf_package_reads(path: Path) -> None:
    assert_same_as_reference(path)


@pytest.mark.model
@pytest.mark.slow
def test_it_reads_a_real_file_as_the_gguf_package_does(smollm: Path) -> None:
    assert_same_as_reference(smollm)


def assert_same_as_reference(path: Path) -> None:
    ours = GgufFile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        assert ours.tensors[tensor.name].type.name == tensor.tensor_type.name
        assert bytes(ours.data(tensor.name)) == tensor.data.tobytes()


def test_every_kind_of_metadata(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -1)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "žluť 🙂")
    writer.add_array("texts", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = {"u8": 255, "i8": -1, "u64": 2**64 - 1, "i64": -(2**63), "f64": 0.1, "yes": True, "text": "žluť 🙂"}
    expected |= {"texts": ["a", "", "ü"], "numbers": [1, -2, 3], "general.architecture": "llama"}
    assert GgufFile(tmp_path / "m.gguf").metadata == expected


def test_data_is_read_only(path: Path) -> None:
    file = GgufFile(path)
    with pytest.raises(ValueError, match="read-only"):
        file.data("token_embd.weight")[0] = 1


def test_cut_anywhere_it_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    end = max(t.start + t.nbytes for t in GgufFile(path).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 1500, 7), len(whole) // 2, end - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf: cannot be read as GGUF"):
            GgufFile(cut)
    cut.write_bytes(whole[:end])  # the counter-test
    GgufFile(cut)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_headers_never_raise_anything_else(path: Path, tmp_path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for at in random.integers(0, 2500, 3):
        content[at] = random.integers(0, 256)
    (tmp_path / "x.gguf").write_bytes(content)
    with suppress(ModelError):
        GgufFile(tmp_path / "x.gguf")


def header(tensor_type: int = 0, axes: tuple[int, ...] = (32,), magic: bytes = b"GGUF", version: int = 3) -> bytes:
    """A file without metadata and with one tensor "t", whose 256 bytes are zero."""
    name = struct.pack("<Q", 1) + b"t"
    tensor = name + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, tensor_type, 0)
    head = magic + struct.pack("<IQQ", version, 1, 0) + tensor
    return head + bytes(-len(head) % 32) + bytes(256)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(magic=b"PK\3\4"), "starts with b'PK"),
        (header(version=1), "version 1 is not known"),
        (header(version=3 << 24), "big-endian"),
        (header(tensor_type=13, axes=(256,)), "tensor t is stored as Q5_K; known: F32, F16, Q4_0"),
        (header(tensor_type=77), "stored as type 77"),
        (header(tensor_type=8, axes=(48,)), r"shape \[48\] cannot be stored as Q8_0"),
        (header(axes=()), r"shape \[\] cannot"),
        (header(axes=(32, 3)), "ends inside tensor t"),
        (b"", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        GgufFile(tmp_path / "x.gguf")


def test_the_header_of_those_tests_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(header())
    assert GgufFile(tmp_path / "x.gguf").tensors["t"].nbytes == 128
