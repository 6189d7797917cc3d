"""JobSpec: strict reading, errors that name key and remedy, and a fingerprint that every field moves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from batchgen.errors import SpecError
from batchgen.records import SamplingParams
from batchgen.spec import JobSpec, job_schema, load_spec

ROOT = Path(__file__).parent.parent

MINIMAL = """\
version: 1
name: small
model: {path: model.gguf}
numerics: portable/1
inputs:
  - {path: a.parquet, columns: {prompt: question}}
row_key: {column: id}
"""

Load = Callable[[str], JobSpec]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str) -> JobSpec:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return load_spec(path)

    return load


def refused(load: Load, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(text)
    return str(caught.value)


def test_defaults(load: Load) -> None:
    spec = load(MINIMAL)
    assert spec.sampling == SamplingParams()
    assert spec.seed == 0
    assert spec.row_key.on_duplicate == "error"
    assert spec.prompts.add_special_tokens == "auto"


def test_values_reach_their_fields(load: Load) -> None:
    spec = load(
        MINIMAL
        + "seed: 18446744073709551615\n"
        + "sampling: {n: 3, temperature: 1, stop: [END], logit_bias: {50256: -100}, logprobs: 2}\n"
        + "prompts: {add_special_tokens: false, template_now: '2026-01-01'}\n"
    )
    assert spec.seed == 2**64 - 1
    expected = SamplingParams(n=3, temperature=1.0, stop=("END",), logit_bias={50256: -100.0}, logprobs=2)
    assert spec.sampling == expected
    assert type(spec.sampling) is SamplingParams
    assert spec.prompts.add_special_tokens is False


def test_names_of_folders_are_names(load: Load) -> None:
    assert load(MINIMAL.replace("small", "Reviews 2.1_a-b")).name == "Reviews 2.1_a-b"


def test_the_quickstart_loads() -> None:
    spec = load_spec(ROOT / "jobs" / "quickstart.yaml")
    assert (spec.sampling.n, spec.sampling.max_tokens, spec.seed) == (2, 96, 7)


# --- faults: (what is added to or replaced in MINIMAL, the key that is named, a part of the message) ---

WRONG_VALUES = [
    ("sampling: {n: '4'}", "sampling.n", "must be an integer"),
    ("sampling: {n: true}", "sampling.n", "must be an integer"),
    ("sampling: {n: 4.0}", "sampling.n", "must be an integer"),
    ("sampling: {n: 0}", "sampling.n", "from 1"),
    ("sampling: {temperature: true}", "sampling.temperature", "must be a number"),
    ("sampling: {temperature: no}", "sampling.temperature", "must be a number"),
    ("sampling: {temperature: .nan}", "sampling.temperature", "finite"),
    ("sampling: {top_p: .inf}", "sampling.top_p", "finite"),
    ("sampling: {logit_bias: {5: -.inf}}", "sampling.logit_bias.5", "finite"),
    ("sampling: {temperature: 1e400}", "sampling.temperature", "finite"),
    ("sampling: {temperature: -0.5}", "sampling.temperature", "from 0.0 to 100.0"),
    ("sampling: {top_p: 1.5}", "sampling.top_p", "from 0.0 to 1.0"),
    ("sampling: {min_tokens: 17}", "sampling.min_tokens", "max_tokens"),
    ("sampling: {stop: END}", "sampling.stop", "must be a list"),
    ("sampling: {stop: ['']}", "sampling.stop", "non-empty"),
    ("sampling: {logit_bias: {abc: 1}}", "sampling.logit_bias.abc", "integer"),
    ("sampling: {logprobs: 21}", "sampling.logprobs", "from 0 to 20"),
    ("sampling: [n]", "sampling", "mapping"),
    ("sampling: {prompt_logprobs: 21}", "sampling.prompt_logprobs", "from 0 to 20"),
    ("sampling: {kept_tokens: 0}", "sampling.kept_tokens", "from 1 to 65536"),
    ("sampling: {reasoning: [a]}", "sampling.reasoning[1]", "is required"),
    ("sampling: {reasoning: [a, ' ']}", "sampling.reasoning", "must be two texts"),
    ("sampling: {structured_outputs: {}}", "sampling.structured_outputs", "exactly one of"),
    ("sampling: {structured_outputs: {regex: a, choice: [b]}}", "sampling.structured_outputs", "exactly one of"),
    ("sampling: {structured_outputs: {regx: a}}", "sampling.structured_outputs.regx", "unknown key"),
    ("sampling: {structured_outputs: {regex: ''}}", "sampling.structured_outputs.regex", "non-empty text"),
    ("sampling: {structured_outputs: {choice: []}}", "sampling.structured_outputs.choice", "non-empty texts"),
    ("sampling: {structured_outputs: {choice: [a, a]}}", "sampling.structured_outputs.choice", "twice"),
    ("sampling: {structured_outputs: {json_schema: '{'}}", "sampling.structured_outputs.json_schema", "is no JSON"),
    ("sampling: {structured_outputs: {json_schema: 1}}", "sampling.structured_outputs.json_schema", "string"),
    ("sampling: {structured_outputs: {regex: a}, stop: [b]}", "sampling.stop", "does not go with structured_outputs"),
    ("sampling: {structured_outputs: {regex: a}, ignore_eos: true}", "sampling.ignore_eos", "does not go with"),
    ("sampling: {structured_outputs: {regex: a}, min_tokens: 2}", "sampling.min_tokens", "does not go with"),
    ("sampling: {structured_outputs: {regex: a}, reasoning: [a, b]}", "sampling.reasoning", "does not go with"),
    ("seed: -1", "seed", "greater than or equal to 0"),
    ("seed: 18446744073709551616", "seed", "less than or equal to 18446744073709551615"),
    ("seed: 7.0", "seed", "integer"),
    ("prompts: {template_now: 2026-01-01}", "prompts.template_now", "is read as a date"),
    ("prompts: {template_now: 'May'}", "prompts.template_now", "ISO 8601"),
    ("prompts: {add_special_tokens: 1}", "prompts.add_special_tokens", "'auto', true or false"),
    ("prompts: {add_special_tokens: yes}", "prompts.add_special_tokens", "'auto', true or false, got 'yes'"),
    ("prompts: {template_now: true}", "prompts.template_now", ", got true"),
    ("sampling: {ignore_eos: 1}", "sampling.ignore_eos", "must be true or false"),
    ("prompts: {overlong: skip}", "prompts.overlong", "'error' or 'truncate_left'"),
    ("logprobs_mode: cooked", "logprobs_mode", "'raw' or 'processed'"),
]


@pytest.mark.parametrize(("line", "key", "message"), WRONG_VALUES)
def test_a_wrong_value_is_named(load: Load, line: str, key: str, message: str) -> None:
    text = refused(load, f"{MINIMAL}{line}\n")
    assert f"job.yaml: {key}: " in text
    assert message in text


WRONG_SECTIONS = [
    ("numerics: portable/1", "numerics: fast/2", "numerics", "'portable/1'"),
    ("name: small", "name: 1.10", "name", "write it in quotes"),
    ("name: small", "name: ''", "name", "at least 1 character"),
    ("name: small", "name: a/b", "name", "must match pattern"),
    ("name: small", "name: ..", "name", "must match pattern"),
    ("name: small", "name: .hidden", "name", "must match pattern"),
    ("name: small", 'name: "a\\0b"', "name", "must match pattern"),
    ("name: small", 'name: "a\\n"', "name", "must match pattern"),
    ("name: small", 'name: "\\ud800"', "name", "lone surrogate"),
    ("name: small", "name: !!set {a}", "name", "is read as a set"),
    ("name: small\n", "", "name", "is required"),
    ("version: 1", "version: 2", "version", "must be 1"),
    ("{path: model.gguf}", "model.gguf", "model", "mapping"),
    ("{path: model.gguf}", "{path: 'pypi:a==1#b.gguf'}", "model.sha256", "is required"),
    ("{path: model.gguf}", f"{{path: 'pypi:a', sha256: {'a' * 64}}}", "model.path", "PACKAGE==VERSION#FILE"),
    ("{path: model.gguf}", "{path: 'hf:org/name'}", "model.path", "@REVISION"),
    ("{path: model.gguf}", f"{{path: m, sha256: {'1' * 64}}}", "model.sha256", "write it in quotes"),
    ("{path: model.gguf}", f"{{path: m, sha256: {'Z' * 64}}}", "model.sha256", "pattern"),
    ("{path: model.gguf}", "{path: m, chat_template: no.jinja}", "model.chat_template", "cannot read 'no.jinja'"),
    ("{path: model.gguf}", "{path: m, max_model_len: 0}", "model.max_model_len", "greater than or equal to 1"),
    (
        "{path: model.gguf}",
        "{path: m, chat_template_kwargs: {a: 9007199254740993}}",
        "model.chat_template_kwargs",
        "exact",
    ),
    ("{path: model.gguf}", "{path: m, chat_template_kwargs: {a: .nan}}", "model.chat_template_kwargs.a", "finite"),
    ("{prompt: question}", "{}", "inputs[0].columns", "exactly one"),
    ("{prompt: question}", "{prompt: a, messages: b}", "inputs[0].columns", "exactly one"),
    ("{prompt: question}", "{prompt: a, tools: b}", "inputs[0].columns.tools", "messages only"),
    ("{prompt: question}", "{prompt: a}, passthrough: [b, b]", "inputs[0].passthrough", "twice"),
    ("{prompt: question}", "{prompt: a}, limit: 0", "inputs[0].limit", "greater than or equal to 1"),
    ("\n  - {path: a.parquet, columns: {prompt: question}}", " []", "inputs", "must have at least 1 item, not 0"),
    ("{column: id}", "{column: id, derive: content_hash}", "row_key", "exactly one"),
    ("{column: id}", "{}", "row_key", "exactly one"),
    ("{column: id}", "content_hash", "row_key", "mapping"),
]


@pytest.mark.parametrize(("old", "new", "key", "message"), WRONG_SECTIONS)
def test_a_wrong_section_is_named(load: Load, old: str, new: str, key: str, message: str) -> None:
    assert old in MINIMAL
    text = refused(load, MINIMAL.replace(old, new))
    assert f"job.yaml: {key}: " in text
    assert message in text


UNKNOWN_KEYS = [
    ("sead: 7", "sead", "'seed'"),
    ("sampling: {temprature: 1}", "sampling.temprature", "'temperature'"),
    ("sampling: {max_new_tokens: 1}", "sampling.max_new_tokens", "'max_tokens'"),
    ("prompts: {overlength: error}", "prompts.overlength", "'overlong'"),
    ("prompts: {zzz: error}", "prompts.zzz", "known: add_special_tokens, overlong"),
    ("1: 2", "1", "known: "),
]


@pytest.mark.parametrize(("line", "key", "nearest"), UNKNOWN_KEYS)
def test_an_unknown_key_gets_the_nearest_name(load: Load, line: str, key: str, nearest: str) -> None:
    text = refused(load, f"{MINIMAL}{line}\n")
    assert f"job.yaml: {key}: unknown key" in text
    assert nearest in text


def test_an_unknown_key_inside_a_list(load: Load) -> None:
    text = refused(load, MINIMAL.replace("{prompt: question}", "{promt: question}"))
    assert text.endswith("inputs[0].columns.promt: unknown key\n  did you mean 'prompt'?"), "and nothing else is wrong"


def test_every_fault_is_reported_on_its_own_line(load: Load) -> None:
    text = refused(load, MINIMAL.replace("name: small", "nam: small") + "sampling: {n: 0, top_p: 2}\nseed: '7'\n")
    keys = [line.split(": ")[1] for line in text.splitlines()]
    assert sorted(keys) == ["nam", "name", "sampling.n", "sampling.top_p", "seed"]


# --- the fingerprint ---


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    """Dotted key -> value of everything in a resolved spec that is no mapping of sections."""
    if isinstance(value, dict) and value and key not in ("sampling.logit_bias", "model.chat_template_kwargs"):
        return {k: v for name, child in value.items() for k, v in leaves(child, f"{key}.{name}".lstrip(".")).items()}
    if key == "inputs":
        return leaves(value[0], "inputs.0")
    return {key: value}


FULL: dict[str, Any] = {
    "version": 1,
    "name": "full",
    "model": {"path": "m"},
    "numerics": "portable/1",
    "inputs": [{"path": "a.parquet", "columns": {"messages": "m"}}],
    "row_key": {"column": "id"},
}
CHANGES: dict[str, Any] = {
    "name": "other",
    "model.path": "n",
    "model.sha256": "0" * 64,
    "model.tokenizer": "tok",
    "model.chat_template": "{{ messages }}",
    "model.chat_template_kwargs": {"enable_thinking": False},
    "model.max_model_len": 4096,
    "model.generation_config": "use",
    "model.load_format": "dummy",
    "inputs.0.path": "b.parquet",
    "inputs.0.columns.messages": "chat",
    "inputs.0.columns.tools": "t",
    "inputs.0.columns": {"prompt": "m"},
    "inputs.0.columns.prompt_token_ids": None,  # by way of the line above: only one of three may be set
    "inputs.0.where": "true",
    "inputs.0.limit": 5,
    "inputs.0.passthrough": ["x"],
    "row_key.column": "key",
    "row_key": {"derive": "content_hash"},
    "row_key.on_duplicate": "suffix",
    "seed": 2**64 - 1,
    "prompts.special_tokens_in_content": "allow",
    "prompts.add_special_tokens": True,
    "prompts.overlong": "truncate_left",
    "prompts.template_now": "2026-01-01",
    "logprobs_mode": "processed",
    "sampling.n": 2,
    "sampling.temperature": 0.5,
    "sampling.top_p": 0.5,
    "sampling.top_k": 5,
    "sampling.min_p": 0.5,
    "sampling.presence_penalty": 0.5,
    "sampling.frequency_penalty": 0.5,
    "sampling.repetition_penalty": 0.5,
    "sampling.max_tokens": 17,
    "sampling.min_tokens": 1,
    "sampling.stop": ["x"],
    "sampling.stop_token_ids": [0],
    "sampling.ignore_eos": True,
    "sampling.include_stop_str_in_output": True,
    "sampling.skip_special_tokens": False,
    "sampling.logit_bias": {"1": 0.5},
    "sampling.bad_words": ["x"],
    "sampling.logprobs": 0,
}
ONE_VALUED = {"version", "numerics"}
CHANGED_BY_THE_SECTION = {"inputs.0.columns.prompt", "inputs.0.columns.prompt_token_ids", "row_key.derive"}


def parse(document: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate_json(json.dumps(document))


def changed(key: str, value: Any) -> JobSpec:
    document = json.loads(json.dumps(FULL))
    *parents, last = key.split(".")
    section = document
    for name in parents:
        section = section[int(name)] if name.isdigit() else section.setdefault(name, {})
    section[last] = value
    return parse(document)


def test_every_field_moves_the_fingerprint() -> None:
    changes = {key: value for key, value in CHANGES.items() if value is not None}
    prints = {key: changed(key, value).fingerprint() for key, value in changes.items()}
    assert len({parse(FULL).fingerprint(), *prints.values()}) == len(changes) + 1


def test_the_list_of_changes_misses_no_field() -> None:
    assert set(leaves(parse(FULL).resolved())) <= set(CHANGES) | ONE_VALUED | CHANGED_BY_THE_SECTION


def test_form_does_not_move_the_fingerprint(load: Load) -> None:
    base = load(MINIMAL).fingerprint()
    again = load("""\
# a comment, other quotes, another order, defaults written out
row_key:
    on_duplicate: error
    "column": 'id'
seed: 0x0
sampling: {temperature: 1, max_tokens: 16, stop: []}
inputs: [{columns: {prompt: question}, path: "a.parquet", where: ~}]
numerics: "portable/1"
model:
  path: model.gguf   # here
name: small
version: 1
""")
    assert again.fingerprint() == base


SCHEMAS = {
    "mapping": "json_schema: {type: object, properties: {b: {type: string}, a: {}}}",
    "text": """json_schema: '{"type": "object",  "properties": {"b": {"type": "string"}, "a": {}}}'""",
    "other order": "json_schema: {type: object, properties: {a: {}, b: {type: string}}}",
}


def test_a_schema_is_the_same_as_a_mapping_and_as_text(load: Load) -> None:
    """And another one in another order: that is the order of the answers."""
    specs = {name: load(MINIMAL + f"sampling: {{structured_outputs: {{{line}}}}}\n") for name, line in SCHEMAS.items()}
    prints = {name: spec.fingerprint() for name, spec in specs.items()}
    assert prints["mapping"] == prints["text"] != prints["other order"]
    for spec in specs.values():
        assert JobSpec.from_resolved(json.loads(json.dumps(spec.resolved()))).sampling == spec.sampling
    assert list(specs["text"].resolved()["sampling"]["structured_outputs"]) == ["json_schema"]


def test_neighbouring_seeds_above_2_53_have_their_own_fingerprints() -> None:
    assert changed("seed", 2**63).fingerprint() != changed("seed", 2**63 + 1).fingerprint()


def test_a_resolved_spec_reads_back() -> None:
    for spec in (parse(FULL), changed("seed", 2**64 - 1)):
        again = JobSpec.from_resolved(json.loads(json.dumps(spec.resolved())))
        assert again == spec
        assert again.fingerprint() == spec.fingerprint()


def test_the_fingerprint_is_pinned() -> None:
    assert parse(FULL).fingerprint() == "afa20d70af7e96f2dac76634d4ae2e89b5e3c18dffa471f317e1aefa65cf2517"


def test_a_template_file_counts_by_its_text(load: Load, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    from_file = load(MINIMAL.replace("model.gguf", "model.gguf, chat_template: chat.jinja"))
    inline = load(MINIMAL.replace("model.gguf", "model.gguf, chat_template: '{{ messages[0].content }}'"))
    assert from_file == inline
    assert from_file.fingerprint() == inline.fingerprint()


# --- the schema ---


def test_the_published_schema_is_the_code() -> None:
    published = json.loads((ROOT / "schemas" / "job.schema.json").read_text(encoding="utf-8"))
    assert published == job_schema()


def test_the_schema_takes_a_job_and_refuses_a_wrong_one() -> None:
    validator = jsonschema.Draft202012Validator(job_schema())
    assert validator.is_valid(FULL)
    assert not validator.is_valid(FULL | {"sead": 1})
    assert not validator.is_valid(FULL | {"sampling": {"temprature": 1}})
    assert not validator.is_valid(FULL | {"seed": 2**64})
