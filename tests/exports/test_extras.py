"""Kept tokens and routed experts of a run, in the fields that trainers have for them; without them, no such fields."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.exports.export import export_run
from batchgen.exports.shapes import SHAPES

ASKED = {"n": 2, "logprobs": 0, "max_tokens": 6, "top_k": 9}
FIELDS = {
    "verl": {"routed_experts"},
    "skyrl": {"rollout_expert_indices"},
    "slime": {"rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"},
    "prime-rl": {"routed_experts"},
    "openrlhf": set[str](),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both, and one with neither, of the same 9 prompts, one of which fails."""
    folder = tmp_path_factory.mktemp("extras")
    inputs = write_input(folder, rows=9, bad=(3,))
    run(make_job(inputs, sampling=ASKED), folder / "plain")
    run(make_job(inputs, sampling=ASKED | {"kept_tokens": 9, "routed_experts": True}), folder / "run")
    rows = read_rows(folder / "run").select(["row_key", "sample_index"])
    pq.write_table(rows.append_column("reward", [[0.5] * len(rows)]), folder / "rewards")
    return folder


def exported(folder: Path, name: str, to: str) -> list[dict[str, Any]]:
    rewards = folder / "rewards" if SHAPES[to].rewards == "must" else None
    export_run(folder / name, folder / "out", to, rewards, skip_errors=True)
    rows: list[dict[str, Any]] = pq.read_table(folder / "out").to_pylist()
    return rows


def pairs(folder: Path, to: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rows = [row for row in read_rows(folder / "run").to_pylist() if row["status"] == "ok"]
    return list(zip(rows, exported(folder, "run", to), strict=True))


def experts(row: dict[str, Any]) -> NDArray[Any]:
    return np.frombuffer(row["routed_experts"], row["routed_experts_dtype"]).reshape(row["routed_experts_shape"])


@pytest.mark.parametrize("to", list(SHAPES))
def test_fields_are_there_where_the_run_has_them(folder: Path, to: str) -> None:
    plain, rich = exported(folder, "plain", to), exported(folder, "run", to)
    assert set(rich[0]) - set(plain[0]) == FIELDS[to]
    assert [{name: row[name] for name in plain[0]} for row in rich] == plain


@pytest.mark.parametrize("to", ["verl", "skyrl", "slime"])
def test_experts_as_lists(folder: Path, to: str) -> None:
    """Of every token but the last."""
    [name] = [name for name in FIELDS[to] if "expert" in name]
    for row, out in pairs(folder, to):
        assert out[name] == experts(row).tolist()
        assert len(out[name]) == len(row["prompt_token_ids"]) + len(row["token_ids"]) - 1


def test_experts_as_bytes(folder: Path) -> None:
    """Of every token: prime-rl asserts that; the last one's are zeros."""
    for row, out in pairs(folder, "prime-rl"):
        packed = out["routed_experts"]
        found = np.frombuffer(packed["data"], packed["dtype"]).reshape(packed["shape"])
        assert len(found) == len(out["token_ids"])
        assert (found[:-1] == experts(row)).all()
        assert not found[-1].any()


def test_kept_tokens_as_offsets(folder: Path) -> None:
    for row, out in pairs(folder, "slime"):
        ids, offsets = out["rollout_top_p_token_ids"], out["rollout_top_p_token_offsets"]
        assert len(offsets) == out["response_length"] + 1
        assert [ids[a:b] for a, b in pairwise(offsets)] == row["kept_tokens"]


def test_counter_experts_of_a_neighbour_would_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES["verl"]
    [extra] = shape.extras
    shifted = extra._replace(of=lambda samples: extra.of([*samples[1:], samples[0]]))
    monkeypatch.setitem(SHAPES, "verl", type(shape)(shape.columns, shape.row, shape.rewards, (shifted,)))
    with pytest.raises(AssertionError):
        test_experts_as_lists(folder, "verl")
