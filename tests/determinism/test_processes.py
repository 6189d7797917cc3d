"""A fresh process with empty caches, another hash seed and other threads makes the same rows.

Guards against state of a process: a public report has four cold starts that gave four answers (syv-ai #75).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.model_cases import assert_same, load_tiny
from support.tiny_jobs import make, write_tiny_jobs

from batchgen.errors import EXIT_ERROR_ROWS
from batchgen.loader import LoadedModel

PROGRAM = """
import json, sys
from pathlib import Path
from support.model_cases import generate, load_tiny, make_engine, requests
model = load_tiny(Path(sys.argv[1]), sys.argv[4])
print(json.dumps(generate(make_engine(model, max_num_seqs=int(sys.argv[2]), threads=int(sys.argv[3])), requests())))
"""


def in_a_process(folder: Path, family: str, max_num_seqs: int, threads: int, hash_seed: str) -> dict[str, str]:
    """With caches of its own, empty: the weights are packed anew."""
    tests = Path(__file__).parents[1]
    caches = {"BATCHGEN_CACHE": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "other caches")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(folder), str(max_num_seqs), str(threads), family],
        env={**os.environ, "PYTHONPATH": str(tests), "PYTHONHASHSEED": hash_seed} | caches,
        capture_output=True,
        check=True,
        text=True,
    )
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(("max_num_seqs", "threads", "hash_seed"), [(64, 2, "1"), (5, 1, "2")])
def test_a_fresh_process(
    alone: dict[str, str], model: LoadedModel, tmp_path: Path, max_num_seqs: int, threads: int, hash_seed: str
) -> None:
    assert not (tmp_path / "cache").exists()
    assert_same(
        in_a_process(tmp_path, model.path.name, max_num_seqs, threads, hash_seed), alone, f"hash seed {hash_seed}"
    )
    assert any((tmp_path / "cache").iterdir()), "the weights were not packed here"


@pytest.mark.parametrize(
    "surroundings", [{"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "3"}, {"LANG": "tr_TR"}]
)
def test_the_command_line_elsewhere(tmp_path: Path, surroundings: dict[str, str]) -> None:
    """`batchgen run` from another folder, with another locale, time zone and empty caches: the root of this process."""
    write_tiny_jobs(tmp_path)
    root = make(tmp_path, tmp_path / "here").root
    job, out = tmp_path / "job.yaml", tmp_path / "there"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "batchgen", "run", str(job), "--out", str(out), "--json", "--max-num-seqs", "3"],
        cwd=tmp_path / "model",
        env={**os.environ, "BATCHGEN_CACHE": str(tmp_path / "cache"), **surroundings},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == EXIT_ERROR_ROWS, done.stderr  # one prompt of the job is null
    assert json.loads(done.stdout)["root"] == root


def test_counter_another_model_is_seen(alone: dict[str, str], tmp_path: Path, model: LoadedModel) -> None:
    """One weight apart: the comparison would notice."""
    from support.model_cases import generate, make_engine, requests

    other = load_tiny(tmp_path, model.path.name, seed=1)
    assert other.config == model.config
    with pytest.raises(AssertionError, match="differs"):
        assert_same(generate(make_engine(other), requests(8)), alone, "other weights")
