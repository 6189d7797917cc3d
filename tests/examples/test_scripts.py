"""The example scripts run, and say what they should."""

from pathlib import Path

import pytest
from support.example_scripts import load
from support.fake_jobs import make_job, run, write_input

JOB = """\
version: 1
name: tiny
model: {{path: {model}}}
numerics: portable/1
inputs: [{{path: none.parquet, columns: {{messages: messages}}}}]
row_key: {{column: id}}
"""


def test_read_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(make_job(write_input(tmp_path, rows=20, bad=[3])), tmp_path / "run")
    load("read_a_run").main(tmp_path / "run")
    shown = capsys.readouterr().out
    assert "│ all      │      38 │" in shown, "error rows are left out"
    assert "│      19 │    19 │" in shown


def test_engine_in_process(
    tmp_path: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "job.yaml").write_text(JOB.format(model=tiny_llama), encoding="utf-8")
    outputs = []
    for _ in range(2):
        load("engine_in_process").main(tmp_path / "job.yaml")
        outputs.append(capsys.readouterr().out)
    assert [line[0] for line in outputs[0].splitlines()] == ["0", "1", "2", "3"]
    assert outputs[0] == outputs[1]
