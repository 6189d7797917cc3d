"""batchgen replay as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.bent_engine import next_float
from support.tiny_runs import edit_fingerprint, edit_manifest, forge, write_input

from batchgen.cli import cli
from batchgen.io.manifest import part_name, read_manifest


def batchgen(*args: object) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_all_is_well(made: Path) -> None:
    run = made / "runs/features"
    result = batchgen("replay", run, "--all")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[-2:] == ["ok: 32 of 32 bit-exact", f"root {read_manifest(run).root}"]
    assert "samples at once  8             6" in result.stdout
    assert "prefix cache     on            off" in result.stdout
    assert "order            of the input  shuffled" in result.stdout
    assert "all 36; 4 hold prompt errors, which --from-input makes again too" in result.stdout
    for value in read_manifest(run).fingerprint.values():
        assert (value in result.stdout) == (value in _shown(run))
    assert result.stderr == ""


def _shown(run: Path) -> list[str]:
    parts = ("weights_digest", "tokenizer_digest", "numerics", "kernel_set", "canary")
    return [read_manifest(run).fingerprint[part] for part in parts]


def test_a_draw_is_the_default(made: Path) -> None:
    result = batchgen("replay", made / "runs/features")
    assert result.exit_code == 0
    assert "rows       16 of 36" in result.stdout


def test_the_options_are_taken(made: Path) -> None:
    options = ("--max-num-seqs", 5, "--max-num-batched-tokens", 77, "--threads", 3, "--prefix-cache")
    result = batchgen("replay", made / "runs/greedy", "--json", "--sample", 4, "--seed", 3, "--from-input", *options)
    found = json.loads(result.stdout)
    config = {"max_num_seqs": 5, "max_num_batched_tokens": 77, "threads": 3, "prefix_cache": True, "probe": 0.0}
    assert config.items() <= found["config"].items()
    assert found["engine"]["threads"] == 3
    assert (found["ok"], found["chosen"], found["exact"], found["prompt_errors"]) == (True, 4, 4, 0)
    assert (found["root"], found["exit_code"]) == (read_manifest(made / "runs/greedy").root, 0)
    assert found["recorded"]["max_num_seqs"] == 8


def test_named_rows(made: Path) -> None:
    run = made / "runs/features"
    both = json.loads(batchgen("replay", run, "--rows", "k1", "--rows", "k12", "--json").stdout)
    one = json.loads(batchgen("replay", run, "--rows", "k1", "--sample-index", 1, "--json").stdout)
    assert (both["chosen"], one["chosen"]) == (4, 1)
    missing = batchgen("replay", run, "--rows", "k99")
    assert missing.exit_code == 5
    assert "there is no row 'k99'" in missing.stderr
    assert "did you mean 'k9'?" in missing.stderr


WRONG: list[list[Any]] = [
    ["--sample", "0"],
    ["--sample", "1.5"],
    ["--sample", "200%"],
    ["--all", "--sample", "3"],
    ["--rows", "k1", "--all"],
    ["--sample-index", "0"],
    ["--max-num-seqs", "0"],
]


@pytest.mark.parametrize("args", WRONG)
def test_wrong_usage(made: Path, args: list[Any]) -> None:
    assert batchgen("replay", made / "runs/greedy", *args).exit_code == 2


def test_a_forged_token_is_shown_with_its_margin(folder: Path) -> None:
    run = folder / "runs/features"
    forge(run, "k6", lambda row: {"token_ids": [*row["token_ids"][:5], 77, *row["token_ids"][6:]]})
    result = batchgen("replay", run, "--all")
    assert result.exit_code == 8
    assert "k6 · sample 0 ─" in result.stdout
    assert "differs  token_ids[5]" in result.stdout
    words = [line.split() for line in result.stdout.splitlines()]
    [stored] = [line for line in words if line[:1] == ["stored"]]
    assert (stored[1:3], stored[-2:]) == (["77", "'k'"], ["filtered", "out"])
    [margin] = [line for line in words if line[:1] == ["margin"]]
    assert float(margin[1]) > 0
    assert "not ok: 31 of 32 bit-exact" in result.stdout
    assert "row 'k6' sample 0 is not bit-exact" in result.stderr
    found = json.loads(batchgen("replay", run, "--all", "--json").stdout)
    [mismatch] = found["mismatches"]
    assert (found["ok"], found["exit_code"], mismatch["row_key"], mismatch["position"]) == (False, 8, "k6", 5)
    assert mismatch["draw"]["margin"] == pytest.approx(float(margin[1]))


def test_a_forged_logprob_is_shown_in_both_versions(folder: Path) -> None:
    run = folder / "runs/features"
    forge(run, "k6", lambda row: {"logprobs": [next_float(row["logprobs"][0]), *row["logprobs"][1:]], "text": "x"})
    shown = batchgen("replay", run, "--rows", "k6").stdout
    assert "differs     logprobs[0]" in shown
    assert "and so do   text" in shown
    assert shown.count(" (0x") == 2


def test_rows_that_are_not_explained_are_counted(folder: Path) -> None:
    run = folder / "runs/greedy"
    for key in ("k0", "k1", "k2"):
        forge(run, key, lambda row: {"text": "forged"})
    assert "and 2 rows more; --limit shows them" in batchgen("replay", run, "--all", "--limit", 1).stdout
    assert "more" not in batchgen("replay", run, "--all").stdout


FAULTS: list[tuple[str, int, str]] = [
    ("row", 8, "rows/part-00000.parquet"),
    ("job", 8, "job.yaml: was edited"),
    ("model", 6, "the model is gone"),
    ("canary", 9, "the answer to the canary prompt has the digest"),
    ("input", 5, "has changed since the run"),
    ("version", 7, "has schema version 99"),
]


@pytest.mark.parametrize(("fault", "exit_code", "message"), FAULTS)
def test_each_fault_has_its_error(folder: Path, fault: str, exit_code: int, message: str) -> None:
    run = folder / "runs/features"
    match fault:
        case "row":
            (run / part_name(0)).write_bytes(b"PAR1")
        case "job":
            (run / "job.yaml").write_text("# another\n")
        case "model":
            (folder / "model").rename(folder / "moved")
        case "canary":
            edit_fingerprint(run, canary="0" * 64)
        case "input":
            write_input(folder, k1="Another.")
        case "version":
            edit_manifest(run, schema_version=99)
    result = batchgen("replay", run, "--from-input")
    assert result.exit_code == exit_code, result.stderr
    assert message in result.stderr
    assert result.stdout == ""


PROGRAM = """
import os, signal, sys
from batchgen import progress
from batchgen.cli import cli
def made(self, state):
    if state.done >= 8:
        os.kill(os.getpid(), signal.SIGINT)
progress.LineDisplay.made = made
cli(["replay", *sys.argv[1:]])
"""


def test_ctrl_c_says_what_was_compared(made: Path) -> None:
    run = made / "runs/greedy"
    command = [sys.executable, "-P", "-c", PROGRAM, str(run), "--all", "--max-num-seqs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    last = [line for line in done.stdout.splitlines() if line.startswith("stopped: ")]
    assert last
    assert last[0].endswith("bit-exact, 10 left out")
    assert "Traceback" not in done.stderr
