"""The CUDA sources where there is no GPU: complete, and the arithmetic is that of csrc/."""

import sys
from pathlib import Path

import pytest
import torch

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels.cuda import compiled
from batchgen.kernels.cuda.compiled import cache_folder, source
from batchgen.kernels.cuda.sampler import _PARAMS
from batchgen.models.source import cache_root

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in Path(compiled.__file__).parent.glob("*.cu"))


def test_each_file_stands_alone() -> None:
    assert len(FILES) == 8
    for name in FILES:
        text = source(name)
        assert "#include" not in text
        assert "#pragma once" not in text
        assert text.count("namespace batchgen::ISA {") == text.count("}  // namespace batchgen::ISA")


def test_the_arithmetic_is_the_cpus_own_text() -> None:
    for name in ("elementary.h", "noise.h"):
        shared = (ROOT / "csrc" / name).read_text(encoding="utf-8")
        assert shared[shared.index("namespace batchgen::ISA {") :].strip() in source("sampler.cu")


def test_the_layout_of_the_parameters_has_no_surprise() -> None:
    assert _PARAMS.itemsize == 88
    places = _PARAMS.fields
    assert places is not None
    names = ("top_p", "temperature", "top_logprobs", "bias_at", "banned_count")
    assert [places[name][1] for name in names] == [16, 24, 48, 52, 80]


def test_results_lie_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("BATCHGEN_CACHE", str(tmp_path)), ("BATCHGEN_CACHE", ""), ("XDG_CACHE_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
        assert cache_folder() == cache_root() / "cuda"


def test_a_damaged_result_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.cubin"
    assert compiled._stored(path) is None
    compiled._store(path, b"machine code")
    assert compiled._stored(path) == b"machine code"
    assert [found.name for found in path.parent.iterdir()] == ["x.cubin"]
    data = bytearray(path.read_bytes())
    for broken in (data[:-1], data[:20], b"", data[:40] + b"?" + data[41:]):
        path.write_bytes(broken)
        assert compiled._stored(path) is None


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    compiled._store(tmp_path / "file" / "x.cubin", b"machine code")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(EngineError, match="cuda-core"):
        compiled._library("linear.cu", (9, 0), (("TM", 1),))
    with pytest.raises(EngineError, match=r"compute capability 7\.5"):
        compiled._library("linear.cu", (7, 5), (("TM", 1),))
    with pytest.raises(EngineError, match="no kernels for meta"):
        kernels.embedding(torch.zeros(1, dtype=torch.int32, device="meta"), kernels.PackedWeight(torch.zeros(1), 1))
