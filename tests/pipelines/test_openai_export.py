"""Runs as OpenAI's output and error files: each line one of the official client's types, none lost, file to file."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pipelines.test_openai_import import line, write
from support.fake_jobs import make_job, read_rows, run, write_input
from support.tiny_models import write_tiny

from batchgen.data_commands import decoder
from batchgen.errors import ModelError, RunError
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import read_manifest, write_manifest
from batchgen.job import run_job
from batchgen.pipelines.openai_export import Exported, export_batch
from batchgen.pipelines.openai_import import Asked, import_batch
from batchgen.pipelines.openai_lines import chat_line, completion_line


def made(folder: Path, *lines: Any) -> Path:
    """The run of a tiny model of these lines."""
    write_tiny(folder / "model")
    import_batch(write(folder, *lines), folder / "job.yaml", Asked(str(folder / "model")))
    run_job(folder / "job.yaml", RunConfig(folder / "run", threads=1))
    return folder / "run"


def exported(run: Path) -> tuple[Exported, list[dict[str, Any]], list[dict[str, Any]]]:
    out, errors = run.parent / "out.jsonl", run.parent / "errors.jsonl"
    found = export_batch(run, out, errors, decoder(run))
    answers, failures = ([json.loads(text) for text in path.read_text().splitlines()] for path in (out, errors))
    return found, answers, failures


def test_chats_from_file_to_file(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": "gpt-x", "n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    null = [{"role": "user", "content": None}]
    run = made(tmp_path, line("b", **asked), line("a", messages=null, **asked), line("c/é", **asked))
    found, answers, failures = exported(run)
    assert found == Exported(2, 1)
    assert [one["custom_id"] for one in answers] == ["b", "c/é"]
    rows = [row for row in read_rows(run).to_pylist() if row["status"] == "ok"]
    for at, answer in enumerate(answers):
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)
        body = ChatCompletion.model_validate(answer["response"]["body"], strict=True)
        samples = rows[2 * at : 2 * at + 2]
        assert body.model == "gpt-x"
        assert [choice.message.content for choice in body.choices] == [row["text"] for row in samples]
        assert [choice.finish_reason for choice in body.choices] == [row["finish_reason"] for row in samples]
        assert body.usage is not None
        assert body.usage.prompt_tokens == samples[0]["num_prompt_tokens"]
        assert body.usage.completion_tokens == sum(row["num_output_tokens"] for row in samples)
        for choice, row in zip(body.choices, samples, strict=True):
            assert choice.logprobs is not None
            tokens = choice.logprobs.content or []
            assert [token.logprob for token in tokens] == row["logprobs"]
            assert all(len(token.top_logprobs) == 2 for token in tokens)
    [failure] = failures
    assert (failure["custom_id"], failure["response"]["status_code"]) == ("a", 400)
    assert failure["response"]["body"]["error"]["code"] == "prompt_null"


def test_completions_from_file_to_file(tmp_path: Path) -> None:
    run = made(tmp_path, *(line(key, "/v1/completions", prompt=f"Say {key}", logprobs=1) for key in "ab"))
    found, answers, failures = exported(run)
    assert found == Exported(2, 0)
    assert failures == []
    for answer, row in zip(answers, read_rows(run).to_pylist(), strict=True):
        [choice] = Completion.model_validate(answer["response"]["body"], strict=True).choices
        assert choice.text == row["text"]
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == row["logprobs"]
        assert len(choice.logprobs.text_offset or []) == row["num_output_tokens"]


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    """No clock and no name of a place is in them."""
    for name in "xy":
        folder = write_input(tmp_path / name, rows=5)
        run(make_job(folder), folder / "run", rows_per_shard=len(name))
        export_batch(folder / "run", folder / "out.jsonl", folder / "errors.jsonl", None)
    assert (tmp_path / "x/out.jsonl").read_bytes() == (tmp_path / "y/out.jsonl").read_bytes()


def test_a_run_that_is_no_batch_can_be_exported(tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=30, bad=[3])
    run(make_job(folder), folder / "run")
    found, answers, failures = exported(folder / "run")
    assert found == Exported(29, 1)
    assert {one["response"]["body"]["model"] for one in answers} == {"model"}
    assert failures[0]["custom_id"] == "row-3"


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=3)
    run(make_job(folder), folder / "run")
    manifest = read_manifest(folder / "run")
    write_manifest(folder / "run", manifest.with_shards(manifest.shards[:-1]))
    with pytest.raises(RunError, match="is not finished"):
        exported(folder / "run")
    assert not (folder / "out.jsonl").exists()


def test_logprobs_need_the_tokenizer(tmp_path: Path) -> None:
    folder = write_input(tmp_path, rows=3)
    run(make_job(folder, sampling={"logprobs": 1}), folder / "run")
    with pytest.raises(ModelError, match="need the model's tokenizer"):
        export_batch(folder / "run", folder / "out.jsonl", folder / "errors.jsonl", None)


def test_reasoning_is_beside_the_answer() -> None:
    row = {"row_key": "a", "sample_index": 0, "text": "4", "reasoning": "2 and 2", "finish_reason": "stop"}
    row |= {"num_prompt_tokens": 3, "num_output_tokens": 5, "row_hash": "0" * 32}
    for reasoning in ("2 and 2", None):
        body = json.loads(chat_line([row | {"reasoning": reasoning}], "m", "0" * 16, None))["response"]["body"]
        message = ChatCompletion.model_validate(body, strict=True).choices[0].message
        assert message.content == "4"
        assert getattr(message, "reasoning_content", None) == reasoning
        body = json.loads(completion_line([row | {"reasoning": reasoning}], "m", "0" * 16, None))["response"]["body"]
        choice = Completion.model_validate(body, strict=True).choices[0]
        assert (choice.text, getattr(choice, "reasoning_content", None)) == ("4", reasoning)
