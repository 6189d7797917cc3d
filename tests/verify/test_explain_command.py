"""explain as a user meets it: what is printed, and the exit code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.deep_jobs import LAYER, TARGET, make, write_deep
from support.kernel_faults import plant

from batchgen.cli import cli
from batchgen.executor.start import open_weights
from batchgen.terminal.explain import elements_view, place
from batchgen.verify.elements import Elements
from batchgen.verify.mismatch import Mismatch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_deep(tmp_path_factory.mktemp("explained"))
    make(folder, "a")
    weight = open_weights(folder / "model")[f"layers.{LAYER}.gate_up"]
    with pytest.MonkeyPatch.context() as faulty:
        plant(faulty, "linear_silu_mul", weight)
        make(folder, "b")
    return folder


def explain(folder: Path, *args: str) -> Result:
    result = CliRunner().invoke(cli, ["explain", str(folder / "runs/a"), *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def as_json(folder: Path, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(explain(folder, *args, "--json").stdout)
    return found


def test_all_is_well(folder: Path) -> None:
    result = explain(folder, TARGET)
    assert result.exit_code == 0
    assert f"{TARGET} · sample 0" in result.stdout
    assert result.stdout.count("gives the stored row, bit for bit") == 3
    assert result.stdout.endswith("same: this machine gives the stored row, bit for bit, in company and alone\n")
    found = as_json(folder, TARGET)
    assert (found["differs"], found["culprit"], len(found["sides"])) == (False, None, 2)
    assert found["machine"].keys() == {"canary", "kernel_set"}


def test_another_run_is_at_fault(folder: Path) -> None:
    result = explain(folder, "k7", "--against", str(folder / "runs/b"))
    assert result.exit_code == 8
    for text in ("run A", "run B", "logprobs[1]: A has ", "does not give the stored row: logprobs[1]: it has "):
        assert text in result.stdout
    assert result.stdout.endswith(
        "differs: this machine gives A's row on both sides: B was made by another build or a faulty machine\n"
    )


def test_this_machine_is_at_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "linear_silu_mul", open_weights(folder / "model")[f"layers.{LAYER}.gate_up"])
    result = explain(folder, "k7")
    assert result.exit_code == 8
    shown = " ".join(result.stdout.split())
    for text in (
        "parts in layer 7, gate and up linear",
        "output token 0, ",
        "inputs equal, bit for bit",
        "outputs 1 of 320 elements differs, first [319]: ",
        " on recorded, ",
        " on alone differs: the computations part in layer 7, gate and up linear, at position ",
    ):
        assert text in shown
    [elements] = as_json(folder, "k7")["culprit"]["elements"]
    assert (elements["output"], elements["index"]) == ("out", [319])


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["k99"], 5, "there is no row 'k99'"),
        (["k1", "--sample", "1"], 5, "there is no sample 1"),
        (["k1", "--against", "nowhere"], 7, "is not a run folder"),
        (["k1", "--sample", "-1"], 2, "-1 is not in the range"),
        ([], 2, "Missing argument 'ROW_KEY'"),
    ],
)
def test_mistakes(folder: Path, args: list[str], exit_code: int, message: str) -> None:
    result = explain(folder, *args)
    assert (result.exit_code, message in result.stderr) == (exit_code, True), result.stderr


def test_a_run_that_was_moved(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "runs/a", tmp_path / "moved")
    gone = CliRunner().invoke(cli, ["explain", str(run), TARGET])
    assert (gone.exit_code, "--job-dir says from which folder" in gone.stderr) == (6, True)
    found = CliRunner().invoke(cli, ["explain", str(run), TARGET, "--job-dir", str(folder)])
    assert found.exit_code == 0, found.stderr


def test_no_prompt(folder: Path) -> None:
    result = explain(folder, "none")
    assert result.exit_code == 0
    assert result.stdout.endswith("same: the row has no prompt: nothing of it was computed\n")


def test_views() -> None:
    found = Elements("k", 3, 64, (1, 2), 0.5, -0.0, "0x3f00", "0x8000")
    assert elements_view(found, ("A", "B")) == (
        "3 of 64 elements of k differ, first [1, 2]: 0.5 (0x3f00) on A, -0 (0x8000) on B"
    )
    assert elements_view(found, ("A", "A")).endswith("on A, -0 (0x8000) on the same side, another time")
    ended = Mismatch("k", 0, "token_ids", ("token_ids", "text"), 4, 7, None)
    assert place(ended, "A", "B") == "token_ids[4]: A has 7, B has nothing; and text differ"
