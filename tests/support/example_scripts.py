"""The scripts in examples/, which are no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module
