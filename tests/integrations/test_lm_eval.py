"""The lm-evaluation-harness over a real task: the same digits in every batch, and the values of its own model."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from contracts.source_tree import ROOT
from support.tiny_models import write_tiny

from batchgen.cli import cli

pytestmark = pytest.mark.slow

Found = dict[str, dict[str, Any]]

DATA = ROOT / "examples" / "evals" / "arithmetic.parquet"
CHILD = ROOT / "tests" / "support" / "child_lm_eval.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Runs over one tiny model, in one process: to import the harness takes longer than to run it."""
    root = tmp_path_factory.mktemp("lm_eval")
    folder = str(write_tiny(root / "model"))
    ours = {"model": folder, "threads": 1}
    runs: list[list[Any]] = [
        ["one", "batchgen", {**ours, "max_num_batched_tokens": 16}, 1],
        ["many", "batchgen", {**ours, "prefix_cache": False}, 64],
        ["theirs", "hf", {"pretrained": folder, "dtype": "float32"}, 8],
    ]
    plan = {"data": str(DATA), "limit": 6, "files": str(root), "runs": runs}
    home = {name: str(root / name) for name in ("HF_HOME", "BATCHGEN_CACHE")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(plan)],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, **home, **offline},
    )
    assert not done.returncode, done.stderr[-4000:]
    result: Found = json.loads(done.stdout) | {"files": {name: str(root / name) for name, *_ in runs}}
    return result


def test_to_the_last_digit(found: Found) -> None:
    """Two runs: at batch 1 in small steps, and at batch 64 without a prefix cache."""
    assert found["many"]["answers"] == found["one"]["answers"]
    assert found["many"]["results"] == found["one"]["results"]


def test_diff_reads_the_harness_s_files(found: Found) -> None:
    one, many, theirs = (found["files"][name] for name in ("one", "many", "theirs"))
    same = CliRunner().invoke(cli, ["diff", one, many])
    assert (same.exit_code, same.stdout.count("6 items, every response and score the same")) == (0, 4), same.output
    other = json.loads(CliRunner().invoke(cli, ["diff", one, theirs, "--json"]).stdout)
    tasks = {each["task"]: each for each in other["tasks"]}
    assert tasks["choice"]["responses"] == 6, "theirs has other digits"
    assert tasks["choice"]["flips"].get("acc") is None
    greedy = [
        a != b for a, b in zip(found["one"]["answers"]["greedy"], found["theirs"]["answers"]["greedy"], strict=True)
    ]
    assert tasks["greedy"]["responses"] == sum(greedy)


def test_every_kind_of_request_was_made(found: Found) -> None:
    answers = found["one"]["answers"]
    assert {name: len(samples) for name, samples in answers.items()} == dict.fromkeys(answers, 6)
    assert all(len(each) == 4 for each in answers["choice"])
    assert all(len(texts) == 2 and texts[0] != texts[1] for (texts,) in answers["sampled"])
    assert len({text for (texts,) in answers["sampled"] for text in texts}) == 12


def test_as_the_harness_s_own_model(found: Found) -> None:
    """Theirs rounds nothing to bfloat16, so the digits differ; each log-likelihood is within a hundredth."""
    ours, theirs = found["one"]["answers"], found["theirs"]["answers"]
    for name in ("choice", "rolling"):
        mine = [value for document in ours[name] for value in document]
        other = [value for document in theirs[name] for value in document]
        assert len(mine) == len(other) > 0
        for (a, *_), (b, *_) in zip(mine, other, strict=True):
            assert total(a) == pytest.approx(total(b), rel=1e-2, abs=0.1)
    same = [a == b for a, b in zip(ours["greedy"], theirs["greedy"], strict=True)]
    assert sum(same) >= 3, "of texts of a model whose likeliest tokens are near each other"
    assert found["one"]["results"]["choice"]["acc,none"] == found["theirs"]["results"]["choice"]["acc,none"]


def total(answer: Any) -> float:
    """Of a log-likelihood: [sum, is greedy], or the sum alone."""
    return float(answer[0] if isinstance(answer, list) else answer)


def test_the_record_says_what_the_numbers_hang_on(found: Found) -> None:
    about = found["one"]["about"]
    assert set(about) >= {"batchgen_weights_digest", "batchgen_tokenizer_digest", "batchgen_numerics"}
    assert about == found["many"]["about"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("BatchgenLM()", "name the model, once"),
        ("BatchgenLM('a', pretrained='b')", "name the model, once"),
        ("BatchgenLM('a', overlong='cut')", "'error' or 'truncate_left'"),
        ("BatchgenLM(FOLDER, max_num_seq=3)", "did you mean 'max_num_seqs'"),
        ("sampling_params({'beams': 4})", "generation_kwargs.beams: is no sampling parameter here"),
        ("long.generate_until([of('a b ' * 40, {'max_gen_toks': 8})])", "do not fit in 32"),
        ("long.loglikelihood([of('a b ' * 40, ' c')])", "do not fit in 32"),
        ("long.generate_until([of('', {})])", "request 0: "),
    ],
)
def test_refused(refusals: dict[str, str], arguments: str, says: str) -> None:
    assert says in refusals[arguments], refusals[arguments]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, str]:
    """What each of the wrong calls says, all from one process."""
    root = tmp_path_factory.mktemp("refusals")
    folder = write_tiny(root / "model")
    calls = [arguments for arguments, _ in test_refused.pytestmark[0].args[1]]  # type: ignore[attr-defined]
    script = f"""
import json, sys, warnings
warnings.simplefilter("ignore")
from types import SimpleNamespace
from batchgen.integrations.lm_eval import BatchgenLM, sampling_params
FOLDER = {str(folder)!r}
def of(*args):
    return SimpleNamespace(args=args)
long = BatchgenLM(FOLDER, max_model_len=32, threads=1)
said = {{}}
for call in {calls!r}:
    try:
        said[call] = f"nothing: {{eval(call)}}"
    except Exception as error:
        said[call] = str(error)
cut = BatchgenLM(FOLDER, max_model_len=32, threads=1, overlong="truncate_left", device="cuda:0", batch_size="auto")
assert len(cut.generate_until([of("a b " * 40, {{"max_gen_toks": 8}})])) == cut.truncated == 1
chat = [dict(role="user", content="Hi"), dict(role="assistant", content="Well ")]
assert long.apply_chat_template(chat[:1]).endswith("assistant\\n")
assert long.apply_chat_template(chat, add_generation_prompt=False).endswith("Well")
print(json.dumps(said))
"""
    env = {**os.environ, "BATCHGEN_CACHE": str(root / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, cwd=root, env=env)
    assert not done.returncode, done.stderr[-4000:]
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said
