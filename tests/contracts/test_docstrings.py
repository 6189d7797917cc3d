"""Every module, and every public class and function of the package, says what it is.

An op is documented once, in the list of ops (kernels/__init__.py); its versions for a device repeat none of it.
"""

import ast
from pathlib import Path

from contracts.source_tree import PACKAGE, modules


def undocumented(package: Path) -> list[str]:
    """Public names at the top of a module that have no docstring, and modules with code and none."""
    found = []
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in modules(package).items()}
    ops = {node.name for node in public(trees.get("batchgen.kernels"))}
    for module, tree in trees.items():
        if tree.body and not ast.get_docstring(tree):
            found.append(module)
        for node in public(tree):
            is_op = module.startswith("batchgen.kernels.") and node.name in ops
            if not ast.get_docstring(node) and not is_op and not is_bare_error(node):
                found.append(f"{module}.{node.name}")
    return found


def public(tree: ast.Module | None) -> list[ast.FunctionDef | ast.ClassDef]:
    """The public classes and functions at the top of a module."""
    nodes = [node for node in (tree.body if tree else []) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [node for node in nodes if not node.name.startswith("_")]


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
    (package / "kernels/cpu").mkdir(parents=True)
    (package / "kernels/__init__.py").write_text('"""Ops."""\ndef norm():\n    """An op."""\n', encoding="utf-8")
    (package / "kernels/cpu/ops.py").write_text('"""On a CPU."""\ndef norm(): ...\ndef pack(): ...\n', encoding="utf-8")
    assert undocumented(package) == ["batchgen.a.f", "batchgen.b", "batchgen.kernels.cpu.ops.pack"]
