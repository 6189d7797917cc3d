"""What the contract tests read: the tracked files and the package's source, parsed and never imported."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "batchgen"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    module: str  # what is imported, in full: batchgen.io.schema, numpy.typing
    line: int
    local: bool  # inside a function: not run when the file is imported


def modules(package: Path) -> dict[str, Path]:
    """Dotted name -> file, for every module of the package in that folder."""
    names = {path: path.relative_to(package.parent).with_suffix("") for path in sorted(package.rglob("*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in names.items()}


def imports(path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """The imports of a file. `from a import b` counts as a.b where a is the package or a.b a module, else as a."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    local = {id(inner) for function in functions(tree) for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            full = [f"{source}.{alias.name}" for alias in node.names]
            names = full if source == "batchgen" else [name if name in known else source for name in full]
        else:
            continue
        yield from (Import(name, node.lineno, id(node) in local) for name in dict.fromkeys(names))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def tracked_files() -> list[Path]:
    """Every file that git would commit: tracked, or new and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]
