"""Reasoning split from the answer: exact at every cut, and seen in nothing else of a row."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.jobs import write_parquet
from support.model_cases import ask, ids, load_tiny, make_engine
from support.tiny_models import CHAT_TEMPLATE, write_tiny

from batchgen.cli import cli
from batchgen.engine.reasoning import split_reasoning
from batchgen.errors import SpecError
from batchgen.records import Request, SamplingParams
from batchgen.rollout import Engine
from batchgen.text.tokenizer import Tokenizer

MARKS = ("<think>", "</think>")
OPENED = "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("prompt", "whole", "reasoning", "text"),
    [
        ("", "<think>\na\n</think>\n\nb", "\na\n", "\n\nb"),
        (OPENED, "a</think>b", "a", "b"),
        (OPENED, "a, and no end", "a, and no end", ""),  # cut by max_tokens
        ("", "<think>cut", "cut", ""),
        ("", "<think></think>", "", ""),
        (OPENED, "</think>b", "", "b"),
        ("", "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
        ("", "<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
        (OPENED, "<think>a</think>b", "<think>a", "b"),  # it was open already
        ("", "b</think>c", None, "b</think>c"),
        ("", " <think>a</think>b", None, " <think>a</think>b"),
        ("", "b", None, "b"),
        ("", "", None, ""),
        ("<think>\n\n</think>\n\n", "b</think>", None, "b</think>"),  # a template that asks for no thought
        ("<think> said the user\n", "b</think>", None, "b</think>"),
    ],
)
def test_cases(prompt: str, whole: str, reasoning: str | None, text: str, tiny_llama: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_llama)
    given = tuple(tokenizer.encode("Hi é" + prompt, add_special_tokens=False, special="allow"))
    request = Request("r", 0, 1, given, SamplingParams(reasoning=MARKS))
    assert split_reasoning(request, whole, tokenizer.decoder(skip_special_tokens=False)) == (reasoning, text)


def test_every_cut_of_a_real_output_joins_again(tmp_path: Path) -> None:
    """The marks are pieces of the text itself; tokens and logprobs have the bits of the request without them."""
    engine = make_engine(load_tiny(tmp_path))
    params = SamplingParams(temperature=0.9, max_tokens=24, ignore_eos=True, logprobs=2)
    asked = [ask(f"r{i}", ids(9 + i, i), params) for i in range(6)]
    before = {done.row_key: done for done in engine.generate(asked)}
    for at, size in ((2, 1), (5, 3), (9, 4)):
        marks = {key: (done.text[:at], done.text[at + 2 : at + 2 + size]) for key, done in before.items()}
        marks = {key: pair for key, pair in marks.items() if all(mark.strip() for mark in pair)}  # no others may be
        assert len(marks) > 3
        keep = [each for each in asked if each.row_key in marks]
        wanted = [replace(each, params=replace(params, reasoning=marks[each.row_key])) for each in keep]
        for done in engine.generate(wanted):
            then, (start, end) = before[done.row_key], marks[done.row_key]
            assert done.reasoning is not None
            assert start + done.reasoning + end + done.text == then.text
            assert end not in done.reasoning
            assert replace(done, text=then.text, reasoning=None) == then


JOB = """\
version: 1
name: thinks
model: {path: model, max_model_len: 96, chat_template: "TEMPLATE"}
numerics: portable/1
inputs: [{path: in.parquet, columns: {messages: messages}}]
row_key: {derive: file_and_row}
sampling: {n: 3, temperature: 0.9, max_tokens: 12, ignore_eos: true, MARKS}
"""


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """The run of a job whose template opens a thought, with this among its sampling."""
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    write_tiny(tmp_path / "model")
    write_parquet(tmp_path / "in.parquet", messages=[[{"role": "user", "content": text}] for text in ("Why?", "é")])
    template = json.dumps(CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n"))[1:-1]

    def run(name: str, marks: str) -> Path:
        job = tmp_path / f"{name}.yaml"
        job.write_text(JOB.replace("TEMPLATE", template).replace("MARKS", marks))
        done = told("run", job, "--out", tmp_path / name, "--threads", 1)
        assert done.exit_code == 0, done.output
        return tmp_path / name

    return run


def test_a_job(make: Callable[[str, str], Path]) -> None:
    plain = pq.read_table(make("plain", "skip_special_tokens: true") / "rows").to_pylist()
    assert "reasoning" not in plain[0], "off by default"
    end = plain[1]["text"][3:5]
    run = make("split", f"reasoning: {json.dumps(['<think>', end])}")
    rows = pq.read_table(run / "rows").to_pylist()
    for before, row in zip(plain, rows, strict=True):
        assert row["token_ids"] == before["token_ids"]
        mark = end if end in before["text"] else ""
        assert row["reasoning"] + mark + row["text"] == before["text"]
    assert len({bool(row["text"]) for row in rows}) == 2, "some have an end, others are cut"
    assert told("verify", run).exit_code == 0
    assert told("replay", run, "--all").exit_code == 0
    shown = told("show", run, "--rows", 6).stdout
    assert "thought" in shown
    found = told("diff", run.parent / "plain", run)
    assert found.exit_code == 8
    assert "sampling.reasoning" in found.stdout


def test_refused(make: Callable[[str, str], Path], tmp_path: Path) -> None:
    make("ok", 'skip_special_tokens: false, reasoning: ["<|im_start|>", "<|im_end|>"]')
    text = (tmp_path / "ok.yaml").read_text()
    for marks, says in [
        ('reasoning: ["<think>", "<|im_end|>"]', "is a special token of the model.*skip_special_tokens: false"),
        ('reasoning: ["<think>"]', "sampling.reasoning"),
        ('reasoning: ["<think>", " "]', "sampling.reasoning.*must be two texts"),
        ("reasoning: split", "sampling.reasoning"),
    ]:
        start = text.index("skip_special_tokens")
        (tmp_path / "bad.yaml").write_text(text[:start] + marks + "}\n")
        said = told("plan", tmp_path / "bad.yaml")
        assert said.exit_code == 4
        assert re.search(says, said.stderr, re.DOTALL), said.stderr
    with Engine.open(tmp_path / "model", threads=1) as inside, pytest.raises(SpecError, match="special token"):
        inside.generate({"a": "b"}, SamplingParams(max_tokens=2, reasoning=("a", "<|im_end|>")))
