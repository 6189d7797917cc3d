"""Every module, and every public class and function of the package, says what it is."""

import ast
from pathlib import Path

from contracts.source_tree import PACKAGE, modules


def undocumented(package: Path) -> list[str]:
    """Public names at the top of a module that have no docstring, and modules with code and none."""
    found = []
    for module, path in modules(package).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and not ast.get_docstring(tree):
            found.append(module)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and not is_bare_error(node):
                found.append(f"{module}.{node.name}")
    return found


def is_bare_error(node: ast.AST) -> bool:
    """class SpecError(BatchgenError): exit_code = 4 -- the tree in the module's docstring speaks for it."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(isinstance(base, ast.Name) and base.id == "BatchgenError" for base in bases)


def test_public_names_have_docstrings() -> None:
    assert undocumented(PACKAGE) == []


def test_a_missing_docstring_is_caught(tmp_path: Path) -> None:
    package = tmp_path / "batchgen"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "a.py").write_text('"""A."""\ndef f(): ...\ndef _g(): ...\nclass C:\n    """C."""\n', encoding="utf-8")
    (package / "b.py").write_text("X = 1\n", encoding="utf-8")
    assert undocumented(package) == ["batchgen.a.f", "batchgen.b"]
