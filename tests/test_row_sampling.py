"""What rows may say of their sampling: one text for one meaning, and no meaning for any other text."""

import json
from dataclasses import fields
from typing import Any

import pytest
from support.jobs import job_spec
from support.own_jobs import KINDS

from batchgen.errors import RowError, SpecError
from batchgen.io.hashing import params_hash
from batchgen.records import SamplingParams, StructuredOutputs
from batchgen.row_sampling import FORMS, OWN, said_by, sampling_text, why_not, with_own
from batchgen.spec import JobSpec, job_schema

JOB = SamplingParams(n=3, top_k=5)


def text_of(**values: Any) -> str:
    text = sampling_text(values)
    assert text is not None
    return text


def test_one_text_whatever_the_order_and_the_type() -> None:
    assert text_of(top_k=7, temperature=0.1) == text_of(temperature=0.1, top_k=7) == '{"temperature":0.1,"top_k":7}'
    assert text_of(temperature=1) == text_of(temperature=1.0, top_p=None) == '{"temperature":1}'
    assert sampling_text({"temperature": None}) is sampling_text({}) is None
    assert text_of(json_schema='{ "b": 1,\n"a": 2}') == '{"json_schema":"{\\"b\\":1,\\"a\\":2}"}', "its own order stays"


@pytest.mark.parametrize("kind", KINDS[1:])
def test_it_is_laid_over_the_job(kind: dict[str, Any]) -> None:
    text = text_of(**kind)
    params = with_own(JOB, text)
    assert said_by(text).keys() == kind.keys()
    for name, value in kind.items():
        found = getattr(params.structured_outputs if name in FORMS else params, name)
        if name == "json_schema":
            assert json.loads(found) == json.loads(value)
        elif isinstance(value, list):
            assert found == tuple(value)
        else:
            assert found == value
            assert name in FORMS or type(found) is type(getattr(JOB, name))
    assert (params.n, params.top_k) == (3, kind.get("top_k", 5))


def test_the_hash_is_that_of_a_job_that_says_it() -> None:
    assert params_hash(with_own(JOB, '{"temperature":1}')) == params_hash(JOB)
    assert params_hash(with_own(JOB, '{"stop":["a"]}')) == params_hash(SamplingParams(top_k=5, stop=("a",)))
    assert params_hash(with_own(JOB, '{"stop":[]}')) == params_hash(JOB) != params_hash(with_own(JOB, '{"top_k":6}'))
    ours = SamplingParams(top_k=5, structured_outputs=StructuredOutputs(regex="a"))
    assert params_hash(with_own(ours, '{"choice":["b"]}')) != params_hash(ours), "a row's form replaces the job's"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"temperature": float("nan")}, "temperature: nan has no exact JSON form"),
        ({"top_k": 2**60}, "top_k: 1152921504606846976 has no exact JSON form"),
        ({"json_schema": '{"a'}, "json_schema: is no JSON"),
        ({"json_schema": "[]"}, "json_schema: must be a JSON object"),
        ({"json_schema": '{"a":"\\ud800"}'}, 'json_schema: \'{"a":"\\ud800"}\' has no exact JSON form'),
        ({"regex": "\ud800" + 99 * "a"}, "regex: '\\ud800" + 73 * "a" + " has no exact JSON form"),
    ],
)
def test_what_has_no_text(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(RowError) as caught:
        sampling_text(values)
    assert (caught.value.code, str(caught.value)) == ("sampling", fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"temperature":-1}', "temperature: must be a number from 0.0 to 100.0, got -1.0"),
        ('{"temperature":"hot"}', "temperature: must be a number"),
        ('{"max_tokens":true}', "max_tokens: must be an integer"),
        ('{"min_tokens":17}', "min_tokens: must not exceed max_tokens 16"),
        ('{"choice":[]}', "choice: must be a tuple"),
        ('{"choice":["a"],"stop":["b"]}', "stop: does not go with structured_outputs"),
        ('{"choice":["a"],"regex":"b"}', "regex and choice are given"),
        *((text, "is not written as batchgen writes it") for text in ("", "{", "[]", "{}", "null", '{"n":2}')),
        *(
            (text, "is not written as")
            for text in ('{"top_k":7.0}', '{"top_k": 7}', '{"top_p":1,"top_k":7}', '{"a":1}')
        ),
    ],
)
def test_what_no_row_can_ask(text: str, fault: str) -> None:
    with pytest.raises(RowError, match=fault):
        with_own(JOB, text)


def test_each_parameter_is_one_that_rows_may_say_or_is_refused_with_why() -> None:
    known = {field.name for field in fields(SamplingParams)} | {"json_schema", "regex", "grammar", "choice", "seed"}
    refused = {name: why for name in known if (why := why_not(name))}
    assert refused.keys() == known - set(OWN)
    assert refused["n"].startswith("decides how many rows")
    assert refused["logprobs"] == refused["kept_tokens"] == "decides which columns there are, which is the job's to say"
    assert job_schema()["$defs"]["InputSpec"]["properties"]["sampling"]["anyOf"][0]["propertyNames"]["enum"] == [*OWN]


def test_a_job_names_them_and_others_keep_their_fingerprint() -> None:
    entry = {"path": "in.parquet", "columns": {"prompt": "prompt"}}
    plain, own = job_spec(entry), job_spec(entry | {"sampling": {"temperature": "t", "json_schema": "s"}})
    assert "sampling" not in plain.resolved()["inputs"][0]
    assert not plain.own_sampling
    assert own.own_sampling == frozenset({"temperature", "json_schema"})
    assert JobSpec.from_resolved(own.resolved()) == own
    assert own.fingerprint() != plain.fingerprint()
    with pytest.raises(SpecError, match="temprature: is no sampling parameter"):
        JobSpec.from_resolved(plain.resolved() | {"inputs": [entry | {"sampling": {"temprature": "t"}}]})
