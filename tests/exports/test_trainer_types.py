"""The exports against the trainers' own types, where their packages or sources lie on the path; none is imported whole.

What is taken of each is the text of the class, so nothing that it needs beside must be installed. Elsewhere the lists
in test_shapes.py and test_extras.py stand for it: verl 0.9.1, skyrl 0.3.0, openrlhf 0.11.2, and of slime and prime-rl,
which no package index has, their sources of August 2026.
"""

import ast
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Optional

import pyarrow.parquet as pq
import pydantic
import pytest
import torch
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.exports.export import export_run
from batchgen.exports.shapes import SHAPES

TYPES = {
    "verl": ("verl/experimental/agent_loop/agent_loop.py", "AgentLoopMetrics", "AgentLoopOutput"),
    "skyrl": ("skyrl/train/generators/base.py", "GeneratorOutput"),
    "slime": ("slime/utils/types.py", "Sample"),
    "prime-rl": ("prime_rl/transports/rollouts/types.py", "TrainingSample"),
    "openrlhf": ("openrlhf/trainer/ppo_utils/experience.py", "Experience"),
}
SAMPLING = {"n": 2, "logprobs": 0, "max_tokens": 6, "top_k": 9, "kept_tokens": 9, "routed_experts": True}


def classes(to: str) -> list[ast.ClassDef]:
    """The last is the trainer's type. Skips where the source is not there."""
    file, *names = TYPES[to]
    found = next((Path(place) / file for place in sys.path if (Path(place) / file).is_file()), None)
    if found is None:
        pytest.skip(f"{to} is not installed")
    nodes = {node.name: node for node in ast.parse(found.read_text()).body if isinstance(node, ast.ClassDef)}
    return [nodes[name] for name in names]


def rows_of(folder: Path, to: str) -> list[dict[str, Any]]:
    run(make_job(write_input(folder, rows=5), sampling=SAMPLING), folder / "run")
    keys = read_rows(folder / "run").select(["row_key", "sample_index"])
    pq.write_table(keys.append_column("reward", [[1.0] * len(keys)]), folder / "rewards")
    export_run(folder / "run", folder / "out", to, None if SHAPES[to].rewards == "no" else folder / "rewards")
    rows: list[dict[str, Any]] = pq.read_table(folder / "out").to_pylist()
    return rows


@pytest.mark.parametrize("to", list(SHAPES))
def test_every_column_is_a_field(to: str, tmp_path: Path) -> None:
    fields = [node for node in classes(to)[-1].body if isinstance(node, ast.AnnAssign)]
    names = {node.target.id for node in fields if isinstance(node.target, ast.Name)}
    assert set(rows_of(tmp_path, to)[0]) <= names


def built(to: str, names: dict[str, Any]) -> dict[str, Any]:
    """The classes, made of their text."""
    code = ast.Module([*classes(to)], type_ignores=[])
    exec(compile(code, to, "exec"), names)
    return names


def test_verl_takes_each_row(tmp_path: Path) -> None:
    names = {"BaseModel": pydantic.BaseModel, "Optional": Optional, "Any": Any, "torch": torch}
    type_ = built("verl", names)["AgentLoopOutput"]
    for row in rows_of(tmp_path, "verl"):
        found = type_(**row).as_dict()
        size = len(row["prompt_ids"]) + len(row["response_ids"])
        assert found["routed_experts"].shape == (size, 2, 3)
        assert found["routed_experts"][:-1].tolist() == row["routed_experts"]


def test_slime_takes_each_row(tmp_path: Path) -> None:
    names = {"dataclass": dataclass, "field": field, "Enum": Enum, "Any": Any, "torch": torch}
    type_ = built("slime", names)["Sample"]
    for row in rows_of(tmp_path, "slime"):
        sample = type_.from_dict(row)
        assert torch.as_tensor(sample.rollout_routed_experts).shape == (len(sample.tokens) - 1, 2, 3)
        assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
