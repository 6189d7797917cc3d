"""The imports run one way, and each heavy library has one home.

data      errors < records < seeds, places < spec < io < plan
text      errors, records, spec < text < preflight (which reads rows and tokenises them)
compute   errors, records, seeds, routing < kernels < parallel < layers < models < engine
joined    executor < loader < verify.ledger < verify.replay, verify.explain < cli
files     verify.integrity, verify.diff and report stay with the data side
"""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from contracts.source_tree import PACKAGE, imports, modules

BASE = {"errors", "records", "seeds"}
DATA = BASE | {"places", "row_template", "spec", "io", "plan"}
COMPUTE = BASE | {"kernels", "parallel", "layers", "models", "engine"}
JOINED = {"executor", "executor.start", "executor.replica", "loader", "text"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "seeds": {"errors", "records"},
    "places": {"errors"},
    "row_template": {"errors"},
    "spec": {"errors", "records", "places", "row_template"},
    "io": BASE | {"places", "row_template", "spec"},
    "plan": BASE | {"spec", "io"},
    "text": BASE | {"spec"},
    "preflight": DATA | {"text"},
    "status": DATA,
    "routing": set(),
    "kernels": {"errors", "routing"},
    "parallel": {"errors", "kernels"},
    "layers": BASE | {"kernels", "parallel"},
    "models": BASE | {"routing", "kernels", "parallel", "layers"},
    "engine": BASE | {"kernels", "parallel", "layers", "models"},
    "executor": DATA | {"text", "verify.integrity"},
    "verify.integrity": DATA,
    "verify.diff": DATA,
    "generation_config": DATA,
    "loader": DATA | {"text", "models", "executor", "generation_config"},
    "executor.start": DATA | COMPUTE | {"text", "loader", "executor"},
    "executor.rank": DATA | COMPUTE | {"text", "loader", "executor", "executor.start"},
    "executor.replica": DATA | COMPUTE | {"text", "loader", "executor", "executor.rank", "executor.start"},
    "rollout": DATA | COMPUTE | JOINED,
    "evals": DATA | {"verify.integrity"},
    "evals.choice": DATA | {"engine", "evals", "executor", "text"},
    "diff_command": DATA | {"commands", "evals", "options", "terminal", "verify.diff"},
    "eval_command": DATA
    | {"commands", "evals", "evals.choice", "executor", "executor.start", "job", "options", "progress", "terminal"}
    | {"verify.ledger"},
    "integrations": DATA | COMPUTE | JOINED | {"rollout"},
    "job": DATA | JOINED | {"models"},
    "verify.ledger": DATA | JOINED | {"models", "engine", "verify.integrity"},
    "verify.replay": DATA | COMPUTE | JOINED | {"verify.ledger", "verify.integrity"},
    "verify.explain": DATA | COMPUTE | JOINED | {"verify.ledger", "verify.replay", "verify.diff"},
    "report": DATA | {"verify.integrity", "verify.diff"},
    "progress": DATA | {"executor"},
    "terminal": DATA
    | {
        "evals",
        "executor",
        "preflight",
        "progress",
        "status",
        "verify.integrity",
        "verify.diff",
        "verify.replay",
        "verify.explain",
    },
    "pipelines": DATA,
    "data_commands": DATA | {"commands", "loader", "options", "pipelines", "progress", "terminal"},
    "exports": DATA,
    "export_command": {"places", "commands", "exports", "options", "terminal"},
    "options": {"executor", "places"},
    "commands": {"errors", "terminal"},
    "cli": DATA
    | JOINED
    | {
        "commands",
        "data_commands",
        "diff_command",
        "eval_command",
        "export_command",
        "job",
        "options",
        "preflight",
        "progress",
        "report",
        "status",
        "terminal",
    }
    | {"verify.integrity", "verify.diff", "verify.ledger", "verify.replay", "verify.explain"},
    "__main__": {"cli"},
}

# Files that belong to the unit of another name.
UNIT_OF = {
    "object_path": "places",
    "row_sampling": "spec",
    "schema_text": "spec",
    "spec_evals": "spec",
    "spec_inputs": "spec",
    "spec_section": "spec",
    "strict_yaml": "spec",
    "validation": "spec",
    "_cpu": "kernels",
    "verify.shard_check": "verify.integrity",
} | {f"verify.{part}": "verify.diff" for part in ("alignment", "causes", "diff_file", "row_pairs", "sorting")}
UNIT_OF |= {"executor.messages": "executor.rank", "executor.rank_process": "executor.replica"}
UNIT_OF |= {f"executor.{part}": "executor.replica" for part in ("actor", "needs", "ray")}
UNIT_OF |= {f"verify.{part}": "verify.replay" for part in ("choice", "prompts", "mismatch")}
UNIT_OF |= {f"verify.{part}": "verify.explain" for part in ("elements", "side", "stored_row")}

HOME: dict[str, set[str]] = {
    "click": {"cli", "commands", "data_commands", "diff_command", "eval_command", "export_command", "options"},
    "cuda": {"kernels.cuda"},
    "duckdb": {"io", "verify.diff"},
    "fsspec": {"places"},
    "gguf": {"models", "text"},
    "huggingface_hub": {"models.source"},
    "jinja2": {"row_template", "text", "report"},
    "llguidance": {"text"},
    "lm_eval": {"integrations.lm_eval"},
    "numpy": {
        "io",
        "plan",
        "preflight",
        "verify",
        "exports",
        "text",
        "kernels",
        "parallel",
        "layers",
        "models",
        "engine",
        "executor",
    },
    "pyarrow": {"io", "verify", "evals", "executor", "exports", "pipelines", "report"},
    "pydantic": {"spec", "io"},
    "pydantic_core": {"spec"},
    "ray": {"executor.ray"},
    "rfc8785": {"spec", "io", "plan", "verify"},
    "rich": {"terminal", "progress"},
    "ruamel": {"spec"},
    "safetensors": {"models"},
    "tokenizers": {"text"},
    "torch": {"kernels", "parallel", "layers", "models", "engine"},
    "triton": {"kernels.triton"},
    "xxhash": {"seeds", "io", "pipelines", "models", "preflight", "engine"},
}

# Imports inside functions: an extra that may be missing, or a command that must not pay for torch or must hear Ctrl-C
# from its start.
MAY_BE_LAZY = {"ray", "triton", "cuda", "huggingface_hub", "fsspec", "llguidance"}
LAZY_FILES = {"batchgen.cli", "batchgen.data_commands", "batchgen.diff_command", "batchgen.eval_command"} | {
    "batchgen.__main__"
}


def unit_of(module: str) -> str:
    """batchgen.io.schema -> io; batchgen.verify.diff -> verify.diff, for that has rules of its own."""
    parts = module.split(".")[1:3]
    top, inner = ".".join(parts[:1]), ".".join(parts)
    return inner if inner in MAY_IMPORT else UNIT_OF.get(inner, UNIT_OF.get(top, top))


def lives_in(module: str, homes: set[str]) -> bool:
    local = module.removeprefix("batchgen.")
    return any(f"{place}.".startswith(f"{home}.") for home in homes for place in (local, unit_of(module)))


def violations(package: Path) -> list[str]:
    """One line for every import that the rules above forbid."""
    known = modules(package)
    found = []
    for module, path in known.items():
        for name, line, local in imports(path, known):
            place, top = f"{module}:{line}", name.split(".")[0]
            if name.startswith("."):
                found.append(f"{place} relative import")
            if local and top not in MAY_BE_LAZY and module not in LAZY_FILES:
                found.append(f"{place} imports {name} inside a function")
            if module == "batchgen":
                continue
            if top == "batchgen":
                allowed = MAY_IMPORT.get(unit_of(module))
                if allowed is None:
                    found.append(f"{place} is in no unit of MAY_IMPORT")
                elif unit_of(name) not in allowed | {unit_of(module)}:
                    found.append(f"{place} imports {name}")
            elif top in HOME:
                if not lives_in(module, HOME[top]):
                    found.append(f"{place} imports {name}")
            elif not name.startswith(".") and top not in sys.stdlib_module_names:
                found.append(f"{place} imports {name}, which has no HOME")
    return found


def import_cycle(package: Path) -> list[str]:
    """The modules of one cycle of imports, or nothing."""
    known = modules(package)
    graph = {
        module: {found.module for found in imports(path, known) if found.module in known and not found.local} - {module}
        for module, path in known.items()
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_the_package_keeps_the_rules() -> None:
    assert violations(PACKAGE) == []


def test_the_package_has_no_cycle() -> None:
    assert import_cycle(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        ("spec.py", "import torch", "batchgen.spec:1 imports torch"),
        ("io/reader.py", "from torch import nn", "batchgen.io.reader:1 imports torch"),
        ("io/reader.py", "import click", "batchgen.io.reader:1 imports click"),
        ("engine/engine.py", "import pyarrow.parquet as pq", "batchgen.engine.engine:1 imports pyarrow.parquet"),
        ("text/template.py", "import pyarrow", "batchgen.text.template:1 imports pyarrow"),
        ("executor/local.py", "import ray", "batchgen.executor.local:1 imports ray"),
        ("kernels/cpu/ops.py", "from cuda.core import Device", "batchgen.kernels.cpu.ops:1 imports cuda.core"),
        ("kernels/reference/norm.py", "import triton", "batchgen.kernels.reference.norm:1 imports triton"),
        ("records.py", "from batchgen import io", "batchgen.records:1 imports batchgen.io"),
        ("records.py", "import batchgen", "batchgen.records:1 imports batchgen"),
        ("verify/diff.py", "from batchgen import loader", "batchgen.verify.diff:1 imports batchgen.loader"),
        ("io/reader.py", "from .schema import x", "batchgen.io.reader:1 relative import"),
        ("io/reader.py", "import requests", "batchgen.io.reader:1 imports requests, which has no HOME"),
        ("io/reader.py", "def f():\n    import pyarrow", "batchgen.io.reader:2 imports pyarrow inside a function"),
        ("misc.py", "import batchgen.io", "batchgen.misc:1 is in no unit of MAY_IMPORT"),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_caught(tmp_path: Path, file: str, line: str, fault: str) -> None:
    package = plant(tmp_path, {"io/__init__.py": "", "io/schema.py": "", "executor/local.py": "", file: line})
    assert violations(package) == [fault]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    package = plant(
        tmp_path,
        {
            "executor/ray.py": "def start():\n    import ray",
            "kernels/triton/linear.py": "import triton.language as tl",
            "kernels/cpu/linear.py": "from batchgen import _cpu",
            "io/schema.py": "import pyarrow as pa\nimport json\nfrom batchgen.spec import JobSpec",
            "cli.py": "import click\ndef run():\n    from batchgen.loader import load_engine",
        },
    )
    assert violations(package) == []


def test_a_cycle_is_caught(tmp_path: Path) -> None:
    package = plant(tmp_path, {"io/a.py": "import batchgen.io.b", "io/b.py": "from batchgen.io import a"})
    assert set(import_cycle(package)) == {"batchgen.io.a", "batchgen.io.b"}


def plant(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "batchgen"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


LIGHT = [
    f"batchgen.{name}" for name in ("cli", "executor.local", "loader", "preflight", "text.prompt", "verify.integrity")
]


@pytest.mark.parametrize("module", LIGHT)
def test_torch_is_not_loaded_by(module: str) -> None:
    assert heavy_after(f"import {module}") == "[]"


def test_torch_would_be_noticed() -> None:
    assert heavy_after("import sys; sys.modules['torch'] = sys") == "['torch']"


def heavy_after(code: str) -> str:
    program = f"{code}\nimport sys\nprint(sorted({{'torch', 'transformers', 'ray'}} & set(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
