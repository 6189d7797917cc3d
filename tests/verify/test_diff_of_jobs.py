"""Real runs of a tiny model, one field of the job apart: diff names the field, whatever it is."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import tiny_config, tiny_weights, write_weights
from support.tiny_runs import FEATURES, ROWS, make_run, write_input, write_jobs

from batchgen.errors import EngineError
from batchgen.kernels.golden import check_profile
from batchgen.verify.diff import Diff, diff_runs

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
WHOLE = 2 * ROWS
FAILED = 7  # three rows, and one sample that says by itself what the model answers with NaN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs of tiny_runs, and the run `a` of one of them. Read it, never change it."""
    folder = write_jobs(tmp_path_factory.mktemp("diff"))
    make_run(folder, folder / "a")
    return folder


def causes(diff: Diff) -> dict[str, tuple[int, str, list[str]]]:
    """Kind -> rows, verdict, keys."""
    return {
        found.kind: (found.rows, found.cause.verdict, [difference.key for difference in found.cause.differences])
        for found in diff.categories
    }


def run_changed(folder: Path, out: Path, old: str, new: str) -> Path:
    """The job with `old` replaced, run in `out`."""
    assert FEATURES.count(old) == 1, old
    job = folder / f"{out.parent.name}.yaml"
    job.write_text(FEATURES.replace(old, new), encoding="utf-8")
    make_run(folder, out, job.stem)
    return out


CHANGES: dict[str, tuple[str, str, dict[str, tuple[int, str, list[str]]]]] = {
    "seed": ("18446744073709551615", "9223372036854775809", {"parameters": (WHOLE, "cause", ["seed"])}),
    "temperature": ("0.9\n", "0.8\n", {"parameters": (WHOLE, "cause", ["sampling.temperature"])}),
    "max_tokens": ("max_tokens: 14", "max_tokens: 13", {"parameters": (WHOLE, "cause", ["sampling.max_tokens"])}),
    "two of them": (
        "top_k: 120\n  min_p: 0.001",
        "top_k: 121\n  min_p: 0.002",
        {"parameters": (WHOLE, "all_of", ["sampling.min_p", "sampling.top_k"])},
    ),
    "n": ("\n  n: 2", "\n  n: 3", {"identical": (WHOLE, "same", []), "only_in_b": (ROWS, "cause", ["sampling.n"])}),
    "where": (
        "passthrough: [label, meta]",
        "passthrough: [label, meta], where: id <> 'k4'",
        {"identical": (WHOLE - 2, "same", []), "only_in_a": (2, "cause", ["inputs[0].where"])},
    ),
    "limit": (
        "passthrough: [label, meta]",
        "passthrough: [label, meta], limit: 11",
        {"identical": (22, "same", []), "only_in_a": (WHOLE - 22, "cause", ["inputs[0].limit"])},
    ),
    "passthrough": (
        "[label, meta]",
        "[meta]",
        {"columns": (WHOLE, "cause", ["inputs[0].passthrough"])},
    ),
    "chat template": (
        "model: {path: model, ",
        f'model: {{path: model, chat_template: "{TEMPLATE}", ',
        {
            "identical": (2, "same", []),  # the null prompt
            "prompt": (2 * (ROWS - 2), "cause", ["model.chat_template"]),
            "other_error": (2, "cause", ["model.chat_template"]),  # too long by another number of tokens
        },
    ),
    "overlong": (
        "seed: 1",
        "prompts: {overlong: truncate_left}\nseed: 1",
        {"identical": (WHOLE - 2, "same", []), "error": (2, "cause", ["prompts.overlong"])},
    ),
    "max_model_len": (
        "max_model_len: 220",
        "max_model_len: 230",
        {"identical": (WHOLE - 2, "same", []), "other_error": (2, "cause", ["model.max_model_len"])},
    ),
    "logprobs_mode": (
        "seed: 1",
        "logprobs_mode: processed\nseed: 1",
        {"identical": (FAILED, "same", []), "logprobs": (WHOLE - FAILED, "cause", ["logprobs_mode"])},
    ),
    "name": ("name: features", "name: other", {"identical": (WHOLE, "same", [])}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_field(folder: Path, tmp_path: Path, change: str) -> None:
    old, new, expected = CHANGES[change]
    diff = diff_runs(folder / "a", run_changed(folder, tmp_path / "b", old, new))
    assert causes(diff) == expected
    assert diff.identical == (list(expected) == ["identical"])


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("a", "test_*")))


def test_one_prompt_of_the_input(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    write_input(other, k9="Something else.")
    make_run(other, tmp_path / "b")
    diff = diff_runs(folder / "a", tmp_path / "b")
    assert causes(diff) == {
        "identical": (WHOLE - 2, "same", []),
        "prompt": (2, "cause", ["file in.parquet"]),
    }
    [example, _] = diff.examples
    assert (example["row_key"], example["around"]["of"]) == ("k9", "prompt_token_ids")
    assert example["around"]["a"] != example["around"]["b"]


def test_one_byte_of_the_weights(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    weights = tiny_weights(tiny_config("llama"))
    bits = weights["model.layers.1.mlp.down_proj.weight"].view(torch.int16)
    bits[3, 5] ^= 0x40
    write_weights(other / "model", weights)
    make_run(other, tmp_path / "b")
    write_weights(other / "model", tiny_weights(tiny_config("llama")))
    make_run(other, tmp_path / "c")
    diff = diff_runs(tmp_path / "c", tmp_path / "b")
    found = causes(diff)
    assert found.keys() <= {"identical", "logprobs", "diverged"}
    assert {tuple(found[kind][1:][1]) for kind in found if kind != "identical"} == {("weights_digest",)}
    assert sum(rows for rows, *_ in found.values()) == WHOLE


def test_another_profile(folder: Path, tmp_path: Path) -> None:
    try:
        check_profile("native-amx/1")
    except EngineError:
        pytest.skip("this processor has no AMX")
    run_changed(folder, tmp_path / "b", "portable/1", "native-amx/1")
    found: dict[str, Any] = causes(diff_runs(folder / "a", tmp_path / "b"))
    assert found.keys() <= {"identical", "logprobs", "diverged"}
    assert found["logprobs"][1:] == ("cause", ["numerics"])


def test_nothing_but_how_it_was_run(folder: Path, tmp_path: Path) -> None:
    make_run(folder, tmp_path / "b", rows_per_shard=7, max_num_seqs=3)
    diff = diff_runs(folder / "a", tmp_path / "b")
    assert (diff.identical, diff.by_roots) == (True, True)
    assert [found.key for found in diff.circumstances] == ["run_config.max_num_seqs", "run_config.rows_per_shard"]
