"""OpenAI batch files in: lines made with the official client's types, and every line that cannot be asked."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as CompletionParams

from batchgen.errors import InputError, SpecError
from batchgen.pipelines.openai_import import Asked, Imported, import_batch
from batchgen.records import SamplingParams
from batchgen.spec import JobSpec, load_spec

ASKED = Asked("model")


def line(custom_id: str, url: str = "/v1/chat/completions", /, **body: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"model": "m", "max_tokens": 8}
    content = {"prompt": "Hi"} if url == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**defaults, **content, **body}}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines), encoding="utf-8")
    return path


def load(folder: Path, *lines: Any, asked: Asked = ASKED, **how: Any) -> tuple[JobSpec, list[dict[str, Any]]]:
    """The job that is made of lines, and the rows of its input."""
    import_batch(write(folder, *lines), folder / "job.yaml", asked, **how)
    rows: list[dict[str, Any]] = pq.read_table(folder / "job.parquet").to_pylist()
    return load_spec(folder / "job.yaml"), rows


def refused(folder: Path, *lines: Any, **how: Any) -> str:
    with pytest.raises(InputError) as caught:
        import_batch(write(folder, *lines), folder / "job.yaml", ASKED, **how)
    assert not (folder / "job.yaml").exists()
    return str(caught.value)


def test_a_chat_of_the_official_types(tmp_path: Path) -> None:
    body: ChatParams = {
        "model": "gpt-x",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]},
        ],
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "n": 2,
        "stop": "\n\n",
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"70": -100},
        "presence_penalty": 1,
        "frequency_penalty": None,
        "metadata": {"who": "me"},
    }
    request = {"custom_id": "a/é", "method": "POST", "url": "/v1/chat/completions", "body": body}
    spec, rows = load(tmp_path, request)
    assert spec.sampling == SamplingParams(
        n=2,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        stop=("\n\n",),
        logprobs=2,
        logit_bias={70: -100.0},
        presence_penalty=1.0,
    )
    assert spec.seed == 3
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi"}]
    assert rows == [{"custom_id": "a/é", "messages": messages, "openai_model": "gpt-x"}]


def test_a_schema_of_the_answer(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    spec, _ = load(tmp_path, line("a", response_format=asked))
    outputs = spec.sampling.structured_outputs
    assert outputs is not None
    assert json.loads(outputs.json_schema or "") == schema


@pytest.mark.parametrize(
    ("prompt", "column", "value"),
    [("Hi", "prompt", "Hi"), (["Hi"], "prompt", "Hi"), ([5, 6], "prompt_token_ids", [5, 6])],
)
def test_completions(tmp_path: Path, prompt: Any, column: str, value: Any) -> None:
    body: CompletionParams = {"model": "m", "prompt": prompt, "logprobs": 1}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    spec, [row] = load(tmp_path, request)
    assert row[column] == value
    assert (spec.sampling.max_tokens, spec.sampling.logprobs) == (16, 1)  # 16 is what that endpoint does


def test_a_null_content_fails_its_own_row_later(tmp_path: Path) -> None:
    _, rows = load(tmp_path, line("a"), line("b", messages=[{"role": "user", "content": None}]))
    assert rows[1]["messages"] == [{"role": "user", "content": None}]


def test_max_tokens_that_no_line_says(tmp_path: Path) -> None:
    spec, _ = load(tmp_path, line("a", max_tokens=None), asked=Asked("model", max_tokens=33))
    assert spec.sampling.max_tokens == 33


def test_what_rows_can_say_differs_by_line(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": []}}}
    lines = [
        line("a", temperature=0.25, top_p=0.5),
        line("b", max_tokens=9, min_tokens=2, stop="x", top_p=0.5),
        line("c", max_tokens=7, response_format=form, top_p=0.5),
    ]
    spec, rows = load(tmp_path, *lines)
    assert spec.sampling == SamplingParams(top_p=0.5, max_tokens=9), "which none of its rows leaves to it"
    own = ("temperature", "max_tokens", "min_tokens", "stop", "json_schema")
    assert spec.inputs[0].sampling == {name: name for name in own}
    assert [tuple(row[name] for name in own) for row in rows] == [
        (0.25, 8, None, None, None),
        (None, 9, 2, ["x"], None),
        (None, 7, None, None, '{"type": "object", "required": []}'),
    ]


def test_several_settings_are_several_jobs(tmp_path: Path) -> None:
    lines = [line("a"), line("b", n=2), line("c", temperature=0), line("d", "/v1/completions", temperature=0)]
    assert "make 3 jobs: they differ in what a job has once: kind of prompt, n\n" in refused(tmp_path, *lines)
    biased = [line("a", logit_bias={"70": -1, "7": -1.0}), line("b", logit_bias={"7": -1, "70": -1.0}, seed=1)]
    assert "has once: seed\n" in refused(tmp_path, *biased)
    assert "logit_bias that cannot be" in refused(tmp_path, line("a", logit_bias={"70": 10**400}))
    found = import_batch(write(tmp_path, *lines), tmp_path / "job.yaml", ASKED, split=True)
    assert [Path(job).name for job in found.jobs] == ["job-1.yaml", "job-2.yaml", "job-3.yaml"]
    assert [load_spec(Path(job)).sampling.n for job in found.jobs] == [1, 2, 1]
    assert [load_spec(Path(job)).own_sampling for job in found.jobs] == [{"temperature"}, frozenset(), frozenset()]
    keys = [pq.read_table(Path(job).with_suffix(".parquet"))["custom_id"].to_pylist() for job in found.jobs]
    assert keys == [["a", "c"], ["b"], ["d"]]


def test_a_job_with_a_model_somewhere_else(tmp_path: Path) -> None:
    spec, _ = load(tmp_path, line("a"), asked=Asked(str(tmp_path / "models/x.gguf")))
    assert spec.model.path == "models/x.gguf"
    other = tmp_path / "other"
    other.mkdir()
    spec, _ = load(other, line("a"), asked=Asked("pypi:a==1#b", "0" * 64, "native-amx/1"))
    assert (spec.model.path, spec.numerics) == ("pypi:a==1#b", "native-amx/1")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    load(tmp_path, line("a"))
    with pytest.raises(SpecError, match="is there already"):
        load(tmp_path, line("b"))


BAD_LINES = [
    ("{", "line 2: is not JSON"),
    ("[]", "line 2: is not a JSON object"),
    ('{"custom_id": "a", "custom_id": "b"}', "line 2: is not JSON: a key stands twice"),
    ('{"custom_id": NaN}', "NaN is no JSON"),
    ('{"custom_id": "\\ud800"}', "half a surrogate pair"),
    (line("a"), "has the custom_id 'a' of line 1"),
    (line(""), "has no custom_id"),
    (line("b") | {"method": "GET"}, "has the method 'GET'"),
    (line("b") | {"url": "/v1/embeddings"}, "asks '/v1/embeddings'"),
    (line("b") | {"body": "x"}, "has no body"),
    (line("b") | {"bdy": {}}, "unknown key 'bdy' (did you mean 'body'?)"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES)
def test_a_line_that_is_no_request_refuses_the_file(tmp_path: Path, bad: Any, message: str) -> None:
    assert message in refused(tmp_path, line("a"), bad, errors=tmp_path / "errors.jsonl")


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 3000}, "has a temperature that cannot be"),
    ({"temperature": "1"}, "has a temperature that cannot be"),
    ({"n": 0}, "has a n that cannot be"),
    ({"max_tokens": None}, "does not say max_tokens"),
    ({"model": None}, "has no model"),
    ({"stream": True}, "asks for stream"),
    ({"tools": [{}]}, "asks for tools"),
    ({"tempreature": 1}, "unsupported 'tempreature' (did you mean 'temperature'?)"),
    ({"messages": []}, "has no list of messages"),
    ({"messages": [{"content": "x"}]}, "has messages[0] without a role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0] of a type other"),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "has messages[0].tool_calls"),
    ({"seed": -1}, "has the seed -1"),
    ({"logprobs": 2}, "do not go together"),
    ({"top_logprobs": 2}, "do not go together"),
    ({"logit_bias": {"a": 1}}, "has a logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format of type 'json_object'"),
]


@pytest.mark.parametrize(("body", "message"), BAD_REQUESTS)
def test_a_request_that_cannot_be_asked_is_named(tmp_path: Path, body: dict[str, Any], message: str) -> None:
    text = refused(tmp_path, line("a"), line("bad", **body))
    assert "line 2 (bad) " in text
    assert message in text


def test_or_it_becomes_an_error_line(tmp_path: Path) -> None:
    source = write(tmp_path, line("a"), line("bad", stream=True), line("c"))
    found = import_batch(source, tmp_path / "job.yaml", ASKED, errors=tmp_path / "errors.jsonl")
    assert found == Imported((str(tmp_path / "job.yaml"),), 2, 1)
    [error] = [json.loads(text) for text in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert error["custom_id"] == "bad"
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["message"] == "asks for stream, which is not supported"
    assert pq.read_table(tmp_path / "job.parquet")["custom_id"].to_pylist() == ["a", "c"]


def test_a_file_without_requests(tmp_path: Path) -> None:
    assert "holds no request" in refused(tmp_path, "")
