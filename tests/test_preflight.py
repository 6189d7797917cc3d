"""Preflight: the counts of a job with every kind of prompt, with a real tokenizer and template."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.jobs import job_spec, text_of_bytes, write_parquet
from support.model_cases import load_tiny
from support.tiny_tokenizers import save_chatml

from batchgen.io.inputs import scan_inputs
from batchgen.loader import bytes_of_experts, prompt_builder
from batchgen.preflight import Preflight, RowFault, TokenCounts, preflight
from batchgen.spec import JobSpec
from batchgen.text.prompt import PromptBuilder
from batchgen.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(save_chatml(tmp_path_factory.mktemp("tokenizer")))


def check(base_dir: Path, tokenizer: Tokenizer, spec: JobSpec) -> Preflight:
    builder = PromptBuilder(tokenizer, spec.prompts, max_model_len=64, max_tokens=spec.sampling.max_tokens)
    return preflight(spec, scan_inputs(spec, base_dir), builder)


def test_prompts_of_every_kind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prompts = [b"hello", b"hello", b" ", b"", b"\xff", b"see <|im_end|>", b"long " * 100, b"ok"]
    column = text_of_bytes(prompts)
    write_parquet(
        tmp_path / "in.parquet", id=list(range(9)), prompt=pa.concat_arrays([column, pa.array([None], pa.string())])
    )
    found = check(tmp_path, tokenizer, job_spec(sampling={"n": 2, "max_tokens": 8}))
    assert (found.num_files, found.num_rows, found.num_samples) == (1, 9, 18)
    assert [(fault.code, fault.count, fault.first) for fault in found.faults] == [
        ("prompt_empty", 1, "in.parquet row 3"),
        ("prompt_encoding", 1, "in.parquet row 4"),
        ("prompt_null", 1, "in.parquet row 8"),
        ("prompt_overlong", 1, "in.parquet row 6"),
    ]
    assert found.num_error_rows == 4
    assert found.duplicate_prompts == 1
    assert (found.control_token_rows, found.first_control_token) == (1, "in.parquet row 5: <|im_end|>")
    assert found.max_output_tokens == 5 * 2 * 8
    lengths = sorted(len(tokenizer.encode(prompt.decode())) for prompt in prompts[:3] + prompts[5:6] + prompts[7:])
    assert found.prompt_tokens.total == sum(lengths)
    assert (found.prompt_tokens.minimum, found.prompt_tokens.median) == (lengths[0], lengths[2])
    assert found.prompt_tokens.maximum == lengths[-1]


def test_policies_reach_the_counts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], prompt=["see <|im_end|>", "long " * 100])
    strict = check(tmp_path, tokenizer, job_spec(prompts={"special_tokens_in_content": "error"}))
    assert [fault.code for fault in strict.faults] == ["control_token", "prompt_overlong"]
    assert strict.control_token_rows == 1
    cut = check(tmp_path, tokenizer, job_spec(prompts={"overlong": "truncate_left"}))
    assert cut.faults == ()
    assert cut.prompt_tokens.maximum == 64 - 16


def test_chats(tmp_path: Path, tokenizer: Tokenizer) -> None:
    chats = [[{"role": "user", "content": "hi"}], [], None, [{"role": "user", "content": None}]]
    write_parquet(tmp_path / "in.parquet", id=[1, 2, 3, 4], messages=chats)
    entry = {"path": "in.parquet", "columns": {"messages": "messages"}}
    found = check(tmp_path, tokenizer, job_spec(entry))
    assert [(fault.code, fault.count) for fault in found.faults] == [("prompt_empty", 1), ("prompt_null", 2)]
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert found.prompt_tokens.total == len(tokenizer.encode(rendered, special="allow"))


def test_token_ids(tmp_path: Path, tokenizer: Tokenizer) -> None:
    ids: list[Any] = [[5, 6], [5, 6], [10**6], [], [None], None]
    write_parquet(tmp_path / "in.parquet", id=list(range(6)), ids=ids)
    found = check(tmp_path, tokenizer, job_spec({"path": "in.parquet", "columns": {"prompt_token_ids": "ids"}}))
    assert [(fault.code, fault.count) for fault in found.faults] == [
        ("prompt_empty", 1),
        ("prompt_null", 1),
        ("prompt_type", 2),
    ]
    assert found.duplicate_prompts == 1
    assert found.prompt_tokens == TokenCounts(total=4, minimum=2, median=2, maximum=2, histogram=((2, 2),))


def test_histogram_buckets_are_powers_of_two(tmp_path: Path, tokenizer: Tokenizer) -> None:
    ids = [[7] * length for length in (1, 2, 3, 4, 5, 8, 9, 40)]
    write_parquet(tmp_path / "in.parquet", id=list(range(8)), ids=ids)
    found = check(tmp_path, tokenizer, job_spec({"path": "in.parquet", "columns": {"prompt_token_ids": "ids"}}))
    assert found.prompt_tokens.histogram == ((1, 1), (2, 1), (4, 2), (8, 2), (16, 1), (64, 1))
    assert found.prompt_tokens.median == 4


def test_a_job_of_which_no_row_can_be_answered(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], prompt=["", ""])
    found = check(tmp_path, tokenizer, job_spec())
    assert found.num_error_rows == 2
    assert found.prompt_tokens == TokenCounts(0, 0, 0, 0, ())
    assert (found.max_output_tokens, found.duplicate_prompts) == (0, 0)


def test_logprobs_cost_disk(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=["hello"])
    plain = check(tmp_path, tokenizer, job_spec())
    with_top = check(tmp_path, tokenizer, job_spec(sampling={"logprobs": 5}))
    assert with_top.max_output_bytes - plain.max_output_bytes == 16 * (4 + 5 * 8)
    assert replace(with_top, max_output_bytes=0) == replace(plain, max_output_bytes=0)


def test_experts_cost_disk(tmp_path: Path) -> None:
    """Of every token of prompt and answer, in all layers."""
    write_parquet(tmp_path / "in.parquet", id=[1], prompt=["hello"])
    sizes = []
    for family, wanted in (("dots1", False), ("dots1", True), ("llama", False)):
        model = load_tiny(tmp_path, family)
        sampling = {"max_tokens": 16, "routed_experts": wanted}
        spec = job_spec(sampling=sampling)
        prompts = prompt_builder(spec, model)
        found = preflight(spec, scan_inputs(spec, tmp_path), prompts, bytes_of_experts(model))
        sizes.append(found.max_output_bytes)
    assert sizes[1] - sizes[0] == (found.prompt_tokens.total + 16) * 2 * 4
    assert sizes[2] == sizes[0]


def test_to_dict_is_json(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_parquet(tmp_path / "in.parquet", id=[1, 2], prompt=["hello", None])
    found = check(tmp_path, tokenizer, job_spec())
    document = json.loads(json.dumps(found.to_dict()))
    assert document["num_error_rows"] == 1
    assert RowFault(**document["faults"][0]) == found.faults[0]
    assert document["prompt_tokens"]["histogram"] == [list(bucket) for bucket in found.prompt_tokens.histogram]
