"""What a trainer could not use is refused; failed samples go with their group, never alone; files are whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from contracts.source_tree import ROOT
from support.fake_jobs import make_job, read_rows, run, write_input

from batchgen.cli import cli
from batchgen.errors import BatchgenError
from batchgen.exports.export import export_run
from batchgen.spec import load_spec

GOOD = {"n": 2, "logprobs": 0, "temperature": 1.0}


def make(folder: Path, bad: tuple[int, ...] = (), sampling: dict[str, Any] = GOOD, **sections: Any) -> Path:
    run(make_job(write_input(folder, rows=10, bad=bad), sampling=sampling, **sections), folder / "run")
    return folder / "run"


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(BatchgenError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"n": 2, "temperature": 1.0}, "the run has no logprobs"),
        ({"n": 2, "logprobs": 0, "temperature": 0.8}, "are raw, of temperature 1, and it was drawn at 0.8"),
    ],
)  # fmt: skip
def test_a_run_without_the_logprobs_of_its_policy_is_refused(
    tmp_path: Path, sampling: dict[str, Any], message: str
) -> None:
    made = make(tmp_path, sampling=sampling)
    assert message in refused(lambda: export_run(made, tmp_path / "out", "verl"))
    assert not (tmp_path / "out").exists()


def test_a_trainer_that_reads_texts_is_refused_those_without_their_reasoning(tmp_path: Path) -> None:
    made = make(tmp_path, sampling=GOOD | {"reasoning": ["<think>", "</think>"]})
    assert "slime reads whole texts" in refused(lambda: export_run(made, tmp_path / "out", "slime"))
    assert export_run(made, tmp_path / "out", "verl").rows == 20, "it reads tokens alone"


def test_processed_logprobs_are_of_any_temperature(tmp_path: Path) -> None:
    made = make(tmp_path, sampling={"n": 2, "logprobs": 0, "temperature": 0.5}, logprobs_mode="processed")
    found = export_run(made, tmp_path / "out", "prime-rl")
    assert (found.logprobs_mode, found.temperature) == ("processed", 0.5)
    assert pq.read_table(tmp_path / "out")["temperatures"][0].as_py()[0] == 0.5


def test_a_failed_sample_takes_its_group_with_it(tmp_path: Path) -> None:
    made = make(tmp_path, bad=(3,))
    assert "'row-3', sample 0 failed: prompt_null" in refused(lambda: export_run(made, tmp_path / "out", "verl"))
    found = export_run(made, tmp_path / "out", "slime", skip_errors=True)
    assert (found.rows, found.left_out) == (18, 2)
    assert pq.read_table(tmp_path / "out")["group_index"].to_pylist() == [i for i in range(10) for _ in "ab" if i != 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.slice(1), "has no reward for 'row-0', sample 0"),
        (lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), "has two rewards for 'row-0', sample 0"),
        (lambda rows: rows.drop_columns(["reward"]), "lacks the column reward"),
        (lambda rows: rows.set_column(2, "reward", [[float("nan")] * len(rows)]), "is nan, and no finite number"),
        (lambda rows: rows.set_column(2, "reward", [["1"] * len(rows)]), "the column reward holds string"),
        (lambda rows: rows.set_column(2, "reward", [[True] * len(rows)]), "the column reward holds bool"),
        (lambda rows: rows.set_column(2, "reward", [[None, *[1] * 19]]), "is None, and no finite number"),
    ],
)
def test_rewards_are_one_number_for_each_sample(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    made = make(tmp_path)
    rewards = read_rows(made).select(["row_key", "sample_index"]).append_column("reward", [[0.5] * 20])
    pq.write_table(rewards, tmp_path / "good.parquet")
    export_run(made, tmp_path / "out", "skyrl", tmp_path / "good.parquet")
    assert pq.read_table(tmp_path / "out")["rewards"].to_pylist() == [0.5] * 20
    exact = rewards["reward"].cast(pa.decimal128(2, 1))
    pq.write_table(rewards.set_column(2, "reward", exact), tmp_path / "decimal.parquet")
    export_run(made, tmp_path / "out", "skyrl", tmp_path / "decimal.parquet")
    pq.write_table(change(rewards), tmp_path / "bad.parquet")
    assert message in refused(lambda: export_run(made, tmp_path / "new", "skyrl", tmp_path / "bad.parquet"))


def test_rewards_where_they_belong(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert "skyrl reads a reward" in refused(lambda: export_run(made, tmp_path / "out", "skyrl"))
    assert "no place for rewards" in refused(lambda: export_run(made, tmp_path / "out", "prime-rl", tmp_path / "r"))
    assert "cannot be read" in refused(lambda: export_run(made, tmp_path / "out", "verl", tmp_path / "none"))


def test_a_file_of_ours_alone_is_written_over(tmp_path: Path) -> None:
    made = make(tmp_path)
    (tmp_path / "theirs").write_text("mine")
    assert "is no export" in refused(lambda: export_run(made, tmp_path / "theirs", "verl"))
    assert "lies in a run folder" in refused(lambda: export_run(made, made / "rows" / "x.parquet", "verl"))
    export_run(made, tmp_path / "out", "verl")
    first = (tmp_path / "out").read_bytes()
    export_run(made, tmp_path / "out", "slime")
    assert "rollout_log_probs" in pq.read_schema(tmp_path / "out").names
    export_run(made, tmp_path / "out", "verl")
    assert (tmp_path / "out").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_a_run_that_was_edited_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    part = made / "rows" / "part-00000.parquet"
    rows = pq.read_table(part)
    at = rows.column_names.index("text")
    pq.write_table(rows.set_column(at, rows.schema.field("text"), [["other"] * len(rows)]), part)
    assert "the source run changed" in refused(lambda: export_run(made, tmp_path / "out", "verl"))


def test_the_job_of_rollouts_is_one_for_trainers() -> None:
    spec = load_spec(ROOT / "jobs" / "rl-rollouts.yaml")
    assert (spec.sampling.n, spec.sampling.logprobs, spec.sampling.temperature) == (8, 0, 1.0)
    assert spec.inputs[0].passthrough == ("kind", "answer")


def test_the_command(tmp_path: Path) -> None:
    made = make(tmp_path, bad=(1,))
    arguments = ["export", str(made), str(tmp_path / "out"), "--to", "verl"]
    assert CliRunner().invoke(cli, arguments).exit_code == 7
    done = CliRunner().invoke(cli, [*arguments, "--skip-errors"])
    assert done.exit_code == 0, done.output
    assert "18 samples of 9 prompts, 2 left out" in done.output
    assert CliRunner().invoke(cli, [*arguments[:-1], "trl"]).exit_code == 2
