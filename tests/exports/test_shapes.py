"""The shapes that trainers read: each field is there under its name and of its kind, and says what the run says.

The fields are those of verl 0.9.1, skyrl 0.3.0, openrlhf 0.11.2 and, of those that no package index has, of their
sources in autumn 2026.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.exports.export import MARK, export_run
from batchgen.exports.shapes import SHAPES
from batchgen.io.manifest import read_manifest

N = 4
SAMPLING = {"n": N, "logprobs": 2, "max_tokens": 6, "temperature": 1.0}
# Fields of the trainer's type without a default, and others that it may be built with.
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "verl": (
        {"prompt_ids", "response_ids", "response_mask", "metrics"},
        {"response_logprobs", "reward_score", "num_turns", "extra_fields", "routed_experts", "multi_modal_data"},
    ),
    "skyrl": (
        {"prompt_token_ids", "response_ids", "rewards", "loss_masks"},
        {"stop_reasons", "rollout_metrics", "rollout_logprobs", "trajectory_ids"},
    ),
    "slime": (
        {"status"},
        {"group_index", "index", "prompt", "tokens", "response", "response_length", "label", "reward", "loss_mask"}
        | {"weight_versions", "rollout_log_probs", "metadata"},
    ),
    "prime-rl": ({"token_ids", "mask", "logprobs", "temperatures", "env_name"}, {"advantages", "ref_logprobs"}),
    "openrlhf": (
        set(),
        {"sequences", "attention_mask", "action_mask", "rollout_log_probs", "rewards", "response_length", "truncated"}
        | {"total_length", "index", "prompts", "labels"},
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 prompts."""
    folder = tmp_path_factory.mktemp("shapes")
    run(make_job(write_input(folder, rows=12), sampling=SAMPLING), folder / "run")
    rows = read_rows(folder / "run")
    rewards = [index + len(ids) / 8 for index, ids in zip(*columns(rows, "sample_index", "token_ids"), strict=True)]
    pq.write_table(rows.select(["row_key", "sample_index"]).append_column("reward", [rewards]), folder / "rewards")
    return folder


def columns(table: Any, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def exported(folder: Path, to: str, out: Path) -> list[dict[str, Any]]:
    rewards = None if SHAPES[to].rewards == "no" else folder / "rewards"
    found = export_run(folder / "run", out, to, rewards)
    assert (found.rows, found.left_out, found.n) == (12 * N, 0, N)
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


def pairs(folder: Path, to: str, out: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(row of the run, row of the export)"""
    return zip(read_rows(folder / "run").to_pylist(), exported(folder, to, out), strict=True)


@pytest.mark.parametrize("to", list(SHAPES))
def test_the_fields_are_the_trainer_s(made: Path, tmp_path: Path, to: str) -> None:
    needed, known = FIELDS[to]
    names = set(exported(made, to, tmp_path / "out")[0])
    assert needed <= names <= needed | known


@pytest.mark.parametrize("to", list(SHAPES))
def test_the_file_says_what_it_is_of(made: Path, tmp_path: Path, to: str) -> None:
    exported(made, to, tmp_path / "out")
    manifest = read_manifest(made / "run")
    said = json.loads(pq.read_metadata(tmp_path / "out").metadata[MARK.encode()])
    assert (said["to"], said["source_root"], said["n"], said["logprobs_mode"]) == (to, manifest.root, N, "raw")
    assert said["weights_digest"] == manifest.fingerprint["weights_digest"]


def as_float32(values: list[float]) -> list[str]:
    return [np.float32(value).tobytes().hex() for value in values]


def test_verl(made: Path, tmp_path: Path) -> None:
    for row, out in pairs(made, "verl", tmp_path / "out"):
        assert (out["prompt_ids"], out["response_ids"]) == (row["prompt_token_ids"], row["token_ids"])
        assert out["response_mask"] == [1] * len(row["token_ids"])
        assert as_float32(out["response_logprobs"]) == as_float32(row["logprobs"])
        assert out["reward_score"] == row["sample_index"] + len(row["token_ids"]) / 8
        about = out["extra_fields"]
        assert (about["uid"], about["sample_index"]) == (row["row_key"], row["sample_index"])
        assert about["input"] == {"label": row["label"], "meta": row["meta"]}


def test_skyrl(made: Path, tmp_path: Path) -> None:
    for row, out in pairs(made, "skyrl", tmp_path / "out"):
        assert out["trajectory_ids"] == {"instance_id": row["row_key"], "repetition_id": row["sample_index"]}
        assert out["stop_reasons"] == row["finish_reason"]
        assert len(out["loss_masks"]) == len(out["response_ids"]) == len(out["rollout_logprobs"])


def test_slime(made: Path, tmp_path: Path) -> None:
    for at, (row, out) in enumerate(pairs(made, "slime", tmp_path / "out")):
        assert (out["index"], out["group_index"]) == (at, at // N)
        assert out["tokens"] == row["prompt_token_ids"] + row["token_ids"]
        assert out["response_length"] == len(out["loss_mask"]) == len(out["rollout_log_probs"]) == len(row["token_ids"])
        assert out["status"] == {"stop": "completed", "length": "truncated"}[row["finish_reason"]]
        assert out["weight_versions"] == ["w" * 64]


def test_prime(made: Path, tmp_path: Path) -> None:
    for row, out in pairs(made, "prime-rl", tmp_path / "out"):
        before = len(row["prompt_token_ids"])
        assert len(out["token_ids"]) == len(out["mask"]) == len(out["logprobs"]) == len(out["temperatures"])
        assert out["mask"] == [False] * before + [True] * len(row["token_ids"])
        assert as_float32(out["logprobs"][before:]) == as_float32(row["logprobs"])
        assert set(out["temperatures"]) == {1.0}


def test_openrlhf(made: Path, tmp_path: Path) -> None:
    """At each masked place stands the logprob of the token after it."""
    for row, out in pairs(made, "openrlhf", tmp_path / "out"):
        sequence, mask = out["sequences"], out["action_mask"]
        assert len(sequence) == len(out["attention_mask"]) == out["total_length"]
        assert len(mask) == len(out["rollout_log_probs"]) == len(sequence) - 1
        assert [token for token, taken in zip(sequence[1:], mask, strict=True) if taken] == row["token_ids"]
        drawn = [value for value, taken in zip(out["rollout_log_probs"], mask, strict=True) if taken]
        assert as_float32(drawn) == as_float32(row["logprobs"])
        assert (out["response_length"], out["truncated"]) == (len(row["token_ids"]), row["finish_reason"] == "length")


def test_counter_a_mask_of_the_prompt_would_show(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES["openrlhf"]

    def shifted(*given: Any) -> dict[str, Any]:
        row = shape.row(*given)
        return row | {"action_mask": [*row["action_mask"][1:], 1]}

    monkeypatch.setitem(SHAPES, "openrlhf", type(shape)(shape.columns, shifted, shape.rewards))
    with pytest.raises(AssertionError):
        test_openrlhf(made, tmp_path)
