"""The commands as a user meets them: what is printed where, and the exit code."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.children import child_of
from support.fake_jobs import make_job, run, write_input
from support.jobs import write_parquet

from batchgen.cli import cli
from batchgen.commands import emit

ROOT = Path(__file__).parents[1]
JOB = """\
version: 1
name: small
model: {{path: {model}}}
numerics: portable/1
inputs: [{{path: in.parquet, columns: {{prompt: prompt}}, passthrough: [label]}}]
row_key: {{column: id}}
sampling: {{n: 2, max_tokens: 6}}
seed: 7
"""

WriteJob = Callable[..., Path]


def batchgen(*args: object) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def write_job(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> WriteJob:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))

    def write(old: str = "", new: str = "", prompts: list[str | None] | None = None) -> Path:
        prompts = ["One.", "Two, three.", "Is it <|im_end|> now?"] if prompts is None else prompts
        ids = [f"row-{index}" for index in range(len(prompts))]
        write_parquet(tmp_path / "in.parquet", id=ids, prompt=prompts, label=["a"] * len(prompts))
        text = JOB.format(model=tiny_llama)
        assert old in text
        (tmp_path / "job.yaml").write_text(text.replace(old, new), encoding="utf-8")
        return tmp_path / "job.yaml"

    return write


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twenty rows by the fake engine, row-1 without a prompt. Read it, never change it."""
    folder = write_input(tmp_path_factory.mktemp("fake"), rows=20, bad=[1])
    run(make_job(folder), folder / "run")
    return folder / "run"


def test_run_makes_every_row_and_prints_the_root_last(write_job: WriteJob, tmp_path: Path) -> None:
    result = batchgen("run", write_job())
    assert result.exit_code == 0
    root = json.loads((tmp_path / "runs/small/manifest.json").read_text(encoding="utf-8"))["root"]
    assert result.stdout.splitlines()[-1] == f"root {root}"
    assert "6: " in result.stdout
    assert result.stderr == ""


def test_a_finished_run_is_left_alone(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job()
    first = batchgen("run", job)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs/small/rows").iterdir()}
    again = batchgen("run", job, "--threads", 1, "--max-num-seqs", 1)
    assert again.exit_code == 0
    assert "was finished already; every hash holds" in again.stdout
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_options_change_no_bit(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job()
    plain = json.loads(batchgen("run", job, "--out", "a", "--json").stdout)
    options = ("--threads", 1, "--max-num-seqs", 1, "--max-num-batched-tokens", 3, "--probe", "100%")
    other = json.loads(batchgen("run", job, "--out", "b", "--json", "--rows-per-shard", 1, *options).stdout)
    assert (plain["out"], other["out"]) == ("a", "b")
    assert plain["root"] == other["root"]
    assert plain["counts"] == other["counts"]
    assert (plain["probes"], other["probes"], plain["failed_probes"]) == (2, 6, 0)
    assert len(list((tmp_path / "b/rows").iterdir())) > len(list((tmp_path / "a/rows").iterdir())) == 1


@pytest.mark.parametrize(
    ("share", "recorded", "line"), [("0", 0, "none"), ("50%", 0.5, "bit-exact"), ("1e-3", 0.001, "2 of 2")]
)
def test_the_share_of_probes(write_job: WriteJob, tmp_path: Path, share: str, recorded: float, line: str) -> None:
    result = batchgen("run", write_job(), "--out", "run", "--probe", share)
    [probes] = [text for text in result.stdout.splitlines() if text.startswith("probes")]
    assert line in probes
    assert json.loads((tmp_path / "run/manifest.json").read_text(encoding="utf-8"))["run_config"]["probe"] == recorded


@pytest.mark.parametrize("share", ["1.01", "-1%", "half", "1/0", "nan", "%", ""])
def test_a_share_that_is_none_is_wrong_usage(write_job: WriteJob, tmp_path: Path, share: str) -> None:
    result = batchgen("run", write_job(), "--probe", share)
    assert result.exit_code == 2
    assert "Invalid value for '--probe'" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_error_rows_have_an_exit_code_of_their_own(write_job: WriteJob) -> None:
    job = write_job(prompts=["One.", None])
    planned, made = batchgen("plan", job), batchgen("run", job)
    assert (planned.exit_code, made.exit_code) == (3, 3)
    assert "1 prompt_null; the first is in.parquet row 1: " in planned.stdout
    assert "2 error" in made.stdout
    assert made.stdout.splitlines()[-1].startswith("root ")


def test_plan_counts_and_leaves_nothing_behind(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job()
    result = batchgen("plan", job)
    assert result.exit_code == 0
    assert "3 in 1 file; with n = 2, 6 samples" in result.stdout
    assert "1 row, read as text; the first is in.parquet row 2: <|im_end|>" in result.stdout
    assert json.loads(batchgen("plan", job, "--json").stdout)["control_token_rows"] == 1
    assert not (tmp_path / "runs").exists()


FAULTS = [
    ("seed: 7", "sead: 7", 4, "job.yaml: sead: unknown key", "did you mean 'seed'?"),
    ("in.parquet", "out.parquet", 5, "out.parquet", ""),
    ("label", "lable", 5, "lable", "label"),
    ("portable/1", "portable/9", 4, "job.yaml: numerics: ", ""),
]


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(("old", "new", "exit_code", "message", "hint"), FAULTS)
def test_a_fault_is_an_error_line_and_an_exit_code(
    write_job: WriteJob, command: str, old: str, new: str, exit_code: int, message: str, hint: str
) -> None:
    result = batchgen(command, write_job(old, new))
    assert result.exit_code == exit_code
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert hint in result.stderr
    assert result.stdout == ""


def test_a_missing_model_is_named(write_job: WriteJob, tiny_llama: Path) -> None:
    result = batchgen("run", write_job(str(tiny_llama), "no/such/model"))
    assert result.exit_code == 6
    assert "no/such/model: does not exist" in result.stderr


def test_a_folder_of_something_else_is_refused(write_job: WriteJob, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    result = batchgen("run", write_job(), "--out", "photos")
    assert result.exit_code == 7
    assert "cat.jpg" in result.stderr


def test_an_error_is_json_too(write_job: WriteJob) -> None:
    result = batchgen("run", write_job("seed: 7", "sead: 7"), "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["exit_code"], error["message"]) == ("SpecError", 4, "unknown key")
    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "args", [["run"], ["run", "a.yaml", "--threads", "0"], ["show", "x", "--rows", "0"], ["dance"]]
)
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    assert batchgen(*args).exit_code == 2


def test_verify_says_ok_and_the_root(finished: Path) -> None:
    result = batchgen("verify", finished)
    manifest = json.loads((finished / "manifest.json").read_text(encoding="utf-8"))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"root {manifest['root']}"
    verdict = json.loads(batchgen("verify", finished, "--json").stdout)
    assert (verdict["ok"], verdict["root"], verdict["rows"]) == (True, manifest["root"], 40)


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=20)
    run(make_job(folder), folder / "run")
    (folder / "run/rows/part-00001.parquet").unlink()
    result = batchgen("verify", folder / "run")
    assert result.exit_code == 8
    assert "torn: rows/part-00001.parquet: there is no such file" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("not ok: ")
    assert json.loads(batchgen("verify", folder / "run", "--json").stdout)["ok"] is False


def test_verify_against_a_root_that_was_noted(finished: Path) -> None:
    root = json.loads((finished / "manifest.json").read_text(encoding="utf-8"))["root"]
    assert batchgen("verify", finished, "--root", root.upper()).exit_code == 0
    result = batchgen("verify", finished, "--root", "0" * 64)
    assert result.exit_code == 8
    assert f"manifest: manifest.json: its root is {root}, and should be {'0' * 64}" in result.stdout


@pytest.mark.parametrize("root", ["00ff", "", "g" * 64, "0" * 65])
def test_verify_refuses_what_is_no_root(finished: Path, root: str) -> None:
    result = batchgen("verify", finished, "--root", root)
    assert result.exit_code == 2
    assert "64 hex digits" in result.stderr


def test_reuse_is_said_before_and_counted_after(write_job: WriteJob) -> None:
    job = write_job()
    batchgen("run", job, "--out", "a")
    job.write_text(job.read_text().replace("n: 2", "n: 3"))
    refused = batchgen("run", job, "--out", "a")
    assert refused.exit_code == 7
    assert "is a run of another job: sampling.n is 2, not 3" in refused.stderr
    assert "--reuse" in refused.stderr
    result = batchgen("run", job, "--out", "b", "--reuse", "a", "--json")
    assert "a: up to 6 of 9 samples are reused" in result.stderr
    report = json.loads(result.stdout)
    assert (report["reused"], report["sources"][0]["path"], report["sources"][0]["samples"]) == (6, "../a", 6)
    assert report["root"] == json.loads(batchgen("run", job, "--out", "c", "--json").stdout)["root"]


def test_verify_wants_a_run(tmp_path: Path) -> None:
    result = batchgen("verify", tmp_path)
    assert result.exit_code == 7
    assert "is not a run folder" in result.stderr


def test_show_sets_rows_for_reading(write_job: WriteJob) -> None:
    batchgen("run", write_job(), "--out", "run")
    result = batchgen("show", "run", "--rows", 5)
    assert result.exit_code == 0
    for text in ("row-0 · sample 0", "row-2 · sample 0", "One.", "tokens out", "hash"):
        assert text in result.stdout
    assert "row-2 · sample 1" not in result.stdout
    row = json.loads(batchgen("show", "run", "--rows", 1, "--json").stdout)["rows"][0]
    assert (row["row_key"], row["label"]) == ("row-0", "a")
    assert row["row_hash"] in result.stdout


def test_show_finds_a_model_beside_the_job(
    write_job: WriteJob, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").symlink_to(tiny_llama.parent)
    job = write_job(str(tiny_llama), f"models/{tiny_llama.name}", prompts=["One."])
    batchgen("run", job, "--out", "runs/a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "prompt  One." in batchgen("show", "../runs/a").stdout


def test_show_does_without_the_model(finished: Path) -> None:
    result = batchgen("show", finished)
    assert result.exit_code == 0
    assert "row-1 · sample 0" in result.stdout
    assert "prompt_null: the prompt is null" in result.stdout
    assert "prompts are not shown" in result.stderr


def test_show_says_that_a_run_is_unfinished(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    manifest = json.loads((finished / "manifest.json").read_text(encoding="utf-8"))
    tally = manifest["shards"][0]["tally"]
    (tmp_path / "run/manifest.json").write_text(
        json.dumps(manifest | {"root": None, "counts": tally, "shards": manifest["shards"][:1]})
    )
    assert "unfinished: 16 of 40 samples are there" in batchgen("show", tmp_path / "run").stderr
    result = batchgen("show", tmp_path / "run", "--json")
    assert json.loads(result.stdout)["rows"]
    assert "unfinished" in result.stderr
    assert "unfinished" not in batchgen("show", finished).stderr


def test_json_has_no_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"a": [1.5, float("nan"), (float("inf"), {"b": -float("inf")})], "c": b"\x00\xff", "d": date(2026, 1, 2)}
    emit(row)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [1.5, "NaN", ["Infinity", {"b": "-Infinity"}]],
        "c": "00ff",
        "d": "2026-01-02",
    }


def test_show_of_a_torn_file_points_to_verify(tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=20)
    run(make_job(folder), folder / "run")
    (folder / "run/rows/part-00000.parquet").write_bytes(b"PAR1")
    result = batchgen("show", folder / "run")
    assert result.exit_code == 7
    assert "batchgen verify" in result.stderr


@pytest.mark.parametrize("name", ["job", "rows", "manifest"])
def test_schema_prints_the_published_one(name: str) -> None:
    printed = json.loads(batchgen("schema", name).stdout)
    assert printed == json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))


def test_help_is_good_without_a_command() -> None:
    shown = batchgen("--help").stdout
    assert "batchgen run jobs/quickstart.yaml" in shown
    assert "Exit codes:" in shown


def test_data_commands_never_load_torch(write_job: WriteJob, finished: Path) -> None:
    program = """
import sys
from batchgen.cli import cli
for args in (["plan", sys.argv[1]], ["verify", sys.argv[2]], ["show", sys.argv[2]], ["schema"]):
    cli(args, standalone_mode=False)
print("torch" in sys.modules)
"""
    command = [sys.executable, "-P", "-c", program, str(write_job()), str(finished)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "False"


def test_verify_loads_no_more_than_it_needs(finished: Path) -> None:
    """Half a second to start, and not two."""
    program = """
import sys
from batchgen.cli import cli
cli(["verify", sys.argv[1]], standalone_mode=False)
print(sorted({"torch", "duckdb", "tokenizers", "safetensors"} & set(sys.modules)))
"""
    command = [sys.executable, "-P", "-c", program, str(finished)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "[]"


def test_ctrl_c_says_how_to_go_on(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job("max_tokens: 6", "max_tokens: 400, ignore_eos: true", prompts=["Again."] * 600)
    command = [str(Path(sys.executable).parent / "batchgen"), "run", str(job), "--out", str(tmp_path / "run")]
    with child_of(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(tmp_path / "run/manifest.json", process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    assert " of 1200 samples are kept" in stderr
    assert "the same command goes on from here" in stderr


def test_ctrl_c_during_the_imports_is_quiet() -> None:
    program = """
import sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "batchgen.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from batchgen.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def wait_for(path: Path, process: "subprocess.Popen[Any]") -> None:
    for _ in range(600):
        if path.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert path.exists()
