"""Samples of an earlier run, taken into a run of a real model, are the bits that it would have made.

Guards against a reuse that a reader could tell: logprobs of another kind or another count, a stop reason that lost its
type, logprobs that were scored and are not those of the draw. Probes make every sample again and compare all of it.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.tiny_runs import FEATURES, make_run, write_jobs

from batchgen.engine.given_rows import StepRows
from batchgen.errors import VerifyError
from batchgen.executor.run_book import JobReport
from batchgen.io.manifest import read_manifest
from batchgen.verify.integrity import verify_run

GRAMMAR = """\
version: 1
name: grammar
model: {path: model, max_model_len: 220}
numerics: portable/1
inputs: [{path: in.parquet, columns: {messages: messages}}]
row_key: {column: id}
sampling: {max_tokens: 9, bad_words: [ba], structured_outputs: {regex: "[a-e]{1,30}"}}
"""
PARTS: dict[str, dict[str, str]] = {  # of a job file -> what stands in their place
    "features": {},
    "none": {"  logprobs: 3\n": ""},
    "0": {"logprobs: 3": "logprobs: 0"},
    "5": {"logprobs: 3": "logprobs: 5"},
    "n": {"  n: 2": "  n: 3"},
    "prompt": {"logprobs: 3": "logprobs: 1\n  prompt_logprobs: 2"},
    "prompt 0": {"logprobs: 3": "prompt_logprobs: 0"},
    "processed": {"seed: ": "logprobs_mode: processed\nseed: "},
    "kept": {"logprobs: 3": "kept_tokens: 200"},
    "kept 3": {"logprobs: 3": "logprobs: 3\n  kept_tokens: 200"},
    "reasoning": {"logprobs: 3": "reasoning: [a, e]"},
    "reasoning 3": {"logprobs: 3": "logprobs: 3\n  reasoning: [a, e]"},
    "grammar": {},
    "grammar 4": {"max_tokens: 9": "max_tokens: 9, logprobs: 4"},
    "grammar processed": {
        "max_tokens: 9": "max_tokens: 9, logprobs: 4",
        "numerics": "logprobs_mode: processed\nnumerics",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs, their input and their model; a run of each under runs/, made when it is asked for."""
    there = write_jobs(tmp_path_factory.mktemp("reuse"))
    for name, parts in PARTS.items():
        text = (GRAMMAR if "grammar" in name else FEATURES).replace("path: in.parquet", "path: in.parquet, limit: 9")
        for old, new in parts.items():
            assert old in text
            text = text.replace(old, new, 1)
        (there / f"{name}.yaml").write_text(text, encoding="utf-8")
    return there


def fresh(folder: Path, name: str) -> Path:
    out = folder / "runs" / name
    if not out.exists():
        make_run(folder, out, name, probe=0)
    return out


def extended(folder: Path, out: Path, old: str, new: str, probe: float = 1) -> JobReport:
    report = make_run(folder, out, new, reuse=(fresh(folder, old),), rows_per_shard=4, probe=probe)
    whole = fresh(folder, new)
    assert verify_run(out).ok
    assert hashes(out) == hashes(whole)
    assert report.root == read_manifest(whole).root
    return report


def hashes(out: Path) -> list[Any]:
    return [row for part in sorted((out / "rows").iterdir()) for row in pq.read_table(part)["row_hash"].to_pylist()]


@pytest.mark.parametrize(
    ("old", "new", "taken", "scored"),
    [
        ("features", "n", 12, 0),
        ("n", "5", 0, 12),
        ("none", "features", 0, 12),
        ("features", "none", 12, 0),
        ("5", "0", 12, 0),
        ("features", "prompt", 0, 12),
        ("prompt", "prompt 0", 12, 0),
        ("features", "processed", 0, 12),
        ("none", "processed", 0, 12),
        ("kept", "kept 3", 0, 12),
        ("reasoning", "reasoning 3", 0, 12),
        ("grammar", "grammar 4", 0, 6),
    ],
)
def test_what_is_taken_is_what_would_be_made(
    folder: Path, tmp_path: Path, old: str, new: str, taken: int, scored: int
) -> None:
    report = extended(folder, tmp_path / "run", old, new)
    assert (report.reused, report.scored, report.sources[0]["samples"]) == (taken, scored, taken + scored)


def test_what_cannot_be_scored_is_made(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a grammar bans is known to the draw alone, and so are processed logprobs under it."""
    assert extended(folder, tmp_path / "run", "grammar 4", "grammar processed").sources == ()
    assert "logprobs of mode processed are asked for now" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("probe", "error", "why"), [(0, AssertionError, "assert "), (1, VerifyError, "was taken from an earlier run")]
)
def test_counter_one_bit_in_what_is_scored_is_caught(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: int, error: type[Exception], why: str
) -> None:
    right = StepRows.scored

    def off(*args: Any, **how: Any) -> Any:
        return [each._replace(logprob=each.logprob * (1 + 2**-20)) for each in right(*args, **how)]

    fresh(folder, "features")
    monkeypatch.setattr(StepRows, "scored", off)
    with pytest.raises(error, match=why):
        extended(folder, tmp_path / "run", "none", "features", probe)
