"""Sizes that keep the code readable: no file over 400 lines, short functions with few parameters, shallow folders."""

import ast
from pathlib import Path

import pytest
from contracts.source_tree import PACKAGE, ROOT, functions

FILE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 6


def long_files(folder: Path) -> list[str]:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(folder.rglob("*.py"))}
    return [f"{path.relative_to(folder)}: {count} lines" for path, count in lengths.items() if count > FILE_LINES]


def large_functions(folder: Path) -> list[str]:
    """Functions over the limits, outside kernels/."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        if "kernels" in path.parts:
            continue
        for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            args = function.args
            names = [
                arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.arg not in ("self", "cls")
            ]
            place = f"{path.relative_to(folder)}:{function.lineno} {function.name}"
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(f"{place}: {lines} lines")
            if len(names) > PARAMETERS and not function.decorator_list:  # a command's options are its parameters
                found.append(f"{place}: {len(names)} parameters")
    return found


def deep_folders(package: Path) -> list[str]:
    folders = {path.parent.relative_to(package) for path in package.rglob("*.py")}
    return sorted(str(folder) for folder in folders if len(folder.parts) > 2)


@pytest.mark.parametrize("folder", ["batchgen", "tests", "examples", "benchmarks"])
def test_no_file_is_long(folder: str) -> None:
    assert long_files(ROOT / folder) == []


def test_no_function_is_large() -> None:
    assert large_functions(PACKAGE) == []


def test_no_folder_is_deep() -> None:
    assert deep_folders(PACKAGE) == []


def test_planted_sizes_are_caught(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c/long.py").write_text("x = 1\n" * 401, encoding="utf-8")
    body = "    pass\n" * 60
    (tmp_path / "large.py").write_text(f"def f(a, b, c, d, e, f, *, g):\n{body}", encoding="utf-8")
    assert long_files(tmp_path) == ["a/b/c/long.py: 401 lines"]
    assert large_functions(tmp_path) == ["large.py:1 f: 61 lines", "large.py:1 f: 7 parameters"]
    assert deep_folders(tmp_path) == ["a/b/c"]
