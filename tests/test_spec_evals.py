"""Evals in a job file: which keys go together, and that no fingerprint hears of them."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import SpecError
from batchgen.io.hashing import params_hash
from batchgen.spec import JobSpec, load_spec

JOB = """\
version: 1
name: job
model: {path: model}
numerics: portable/1
inputs: [{path: in.parquet, columns: {prompt: prompt}, passthrough: [answer, options]}]
row_key: {column: id}
sampling: {n: 4}
"""


def spec_with(folder: Path, *evals: str) -> JobSpec:
    lines = "".join(f"  - {{{each}}}\n" for each in evals)
    path = folder / "job.yaml"
    path.write_text(JOB + (f"evals:\n{lines}" if evals else ""))
    return load_spec(path)


def test_no_fingerprint_hears_of_them(tmp_path: Path) -> None:
    plain = spec_with(tmp_path)
    scored = spec_with(tmp_path, "name: a, scorer: exact, answer: answer", "name: b, scorer: regex, pattern: x")
    assert [each.name for each in scored.evals] == ["a", "b"]
    assert scored.fingerprint() == plain.fingerprint()
    assert scored.resolved() == plain.resolved()
    assert params_hash(scored.sampling) == params_hash(plain.sampling)
    assert not JobSpec.from_resolved(scored.resolved()).evals


@pytest.mark.parametrize(
    ("evals", "says"),
    [
        (["name: a, scorer: exact"], r"evals\[0\].answer: is required for scorer exact"),
        (["name: a, scorer: exact, answer: wrong"], r"evals\[0\].answer: 'wrong' is not in the passthrough"),
        (["name: a, scorer: exact, answer: answer, pattern: x"], "pattern: means nothing to scorer exact"),
        (["name: a, scorer: regex, pattern: '('"], "pattern: is no regular expression"),
        (["name: a, scorer: regex, pattern: x, pass_at: [5]"], "5 is more than sampling.n, which is 4"),
        (["name: a, scorer: choice, answer: answer"], "choices: is required for scorer choice"),
        (["name: a, scorer: choice, answer: answer, choices: gone"], "'gone' is not in the passthrough"),
        (["name: a, scorer: python, function: f"], "must be FILE.py:FUNCTION or package.module:FUNCTION"),
        (["name: a, scorer: python, function: 'a.py:1f'"], "must be FILE.py:FUNCTION"),
        (["name: a, scorer: exakt, answer: answer"], "scorer"),
        (["name: a/b, scorer: regex, pattern: x"], "name"),
        (["name: a, scorer: regex, pattern: x"] * 2, r"evals\[1\].name: 'a' is the name of an earlier one"),
        (["name: a, scorer: exact, anser: answer"], "anser"),
    ],
)
def test_refused(tmp_path: Path, evals: list[str], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        spec_with(tmp_path, *evals)


@pytest.mark.parametrize("keys", [{"per": "byte"}, {"per": "token"}, {}])
def test_taken(tmp_path: Path, keys: dict[str, Any]) -> None:
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    [found] = spec_with(tmp_path, f"name: a, scorer: choice, answer: answer, choices: options{more}").evals
    assert found.columns == {"answer": "answer", "choices": "options"}
    assert found.per == keys.get("per", "text")
