"""What the manifests of two runs can prove, and what they cannot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from support.fake_jobs import make_job, run, write_input

from batchgen.io.manifest import InputRecord, Manifest, read_manifest
from batchgen.spec import JobSpec
from batchgen.verify.causes import Cause, Difference, Effect, suspects

LIMITS = '{"max_model_len": 100, "eos_token_ids": [2, 7]}'


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("causes")
    run(make_job(write_input(folder, rows=3)), folder / "run")
    manifest = read_manifest(folder / "run")
    return replace(manifest, fingerprint={**manifest.fingerprint, "limits": LIMITS, "canary": "c"})


def changed(manifest: Manifest, spec: Mapping[str, Any] | None = None, **fingerprint: str) -> Manifest:
    """With dotted keys of its spec and parts of its fingerprint changed."""
    values = JobSpec.from_resolved(manifest.spec).resolved()
    for key, value in (spec or {}).items():
        section: Any = values
        *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
        for part in path:
            section = section[part]
        section[last] = value
    return replace(manifest, spec=values, fingerprint={**manifest.fingerprint, **fingerprint})


def explain(a: Manifest, b: Manifest, *effects: Effect) -> tuple[str, list[str]]:
    found: Cause = suspects(a, b).explain(frozenset(effects))
    return found.verdict, [difference.key for difference in found.differences]


NOTHING: tuple[str, list[str]] = ("unexplained", [])
ALL: tuple[Effect, ...] = get_args(Effect)


@pytest.mark.parametrize(
    ("key", "value", "acts"),
    [
        ("inputs.0.where", "id > 3", {"rows"}),
        ("inputs.0.limit", 3, {"rows"}),
        ("inputs.0.columns.prompt", "question", {"prompt", "prompt_error"}),
        ("inputs.0.passthrough", ["meta"], {"columns"}),
        ("row_key.on_duplicate", "suffix", {"rows", "prompt", "prompt_error", "carried"}),
        ("sampling.n", 7, {"rows"}),
        ("sampling.temperature", 0.1, {"params"}),
        ("sampling.stop", ["x"], {"params"}),
        ("sampling.logit_bias", {"3": 1.5}, {"params"}),
        ("seed", str(2**64 - 1), {"seed"}),
        ("prompts.special_tokens_in_content", "allow", {"prompt", "prompt_error"}),
        ("prompts.add_special_tokens", True, {"prompt", "prompt_error"}),
        ("prompts.template_now", "2026-01-01", {"prompt", "prompt_error"}),
        ("model.chat_template", "{{ messages }}", {"prompt", "prompt_error"}),
        ("model.chat_template_kwargs", {"think": True}, {"prompt", "prompt_error"}),
        ("model.max_model_len", 55, {"prompt_error"}),
        ("model.generation_config", "use", {"params"}),
        ("logprobs_mode", "processed", {"logprobs"}),
        ("numerics", "native-amx/1", {"tokens", "logprobs", "engine_error"}),
        ("model.path", "elsewhere", set()),
        ("model.sha256", "0" * 64, set()),
        ("model.load_format", "dummy", set()),
        ("name", "other", set()),
    ],
)
def test_each_field_acts_on_what_it_can(base: Manifest, key: str, value: Any, acts: set[Effect]) -> None:
    other = changed(base, {key: value})
    found = {effect for effect in ALL if explain(base, other, effect)[0] == "cause"}
    assert found == acts
    named = key.replace(".0", "[0]", 1)
    assert all(explain(base, other, effect)[1][0].startswith(named) for effect in acts)
    assert any(found.key.startswith(named) for found in suspects(base, other).circumstances) == (not acts)


@pytest.mark.parametrize(
    ("part", "acts"),
    [
        ("weights_digest", {"tokens", "logprobs", "engine_error"}),
        ("kernel_set", {"tokens", "logprobs", "engine_error"}),
        ("canary", {"tokens", "logprobs", "engine_error"}),
        ("tokenizer_digest", {"prompt", "prompt_error", "tokens", "answer"}),
        ("a_part_of_later", set(ALL)),
    ],
)
def test_each_part_of_the_fingerprint(base: Manifest, part: str, acts: set[Effect]) -> None:
    other = changed(base, None, **{part: "x"})
    assert {effect for effect in ALL if explain(base, other, effect) == ("cause", [part])} == acts


def test_an_unknown_key_can_do_anything(base: Manifest) -> None:
    other = replace(base, spec={**base.spec, "later": 1})
    assert all(explain(base, other, effect) == ("cause", ["later"]) for effect in ALL)


def test_what_follows_from_another_difference_is_not_named_beside_it(base: Manifest) -> None:
    other = changed(base, {"numerics": "native-amx/1"}, numerics="native-amx/1", kernel_set="x", canary="y")
    assert explain(base, other, "tokens") == ("cause", ["numerics"])
    other = changed(base, weights_digest="x", canary="y")
    assert explain(base, other, "tokens") == ("cause", ["weights_digest"])


def test_limits(base: Manifest) -> None:
    other = changed(base, limits=LIMITS.replace("7]", "8]"))
    assert explain(base, other, "tokens") == ("cause", ["limits.eos_token_ids"])
    assert explain(base, other, "logprobs") == NOTHING
    shorter = LIMITS.replace("100", "90")
    assert explain(base, changed(base, limits=shorter), "prompt_error") == ("cause", ["limits.max_model_len"])
    told = changed(base, {"model.max_model_len": 90}, limits=shorter)
    assert explain(base, told, "prompt_error") == ("cause", ["model.max_model_len"])
    with_tokenizer = changed(base, limits=LIMITS.replace("7]", "8]"), tokenizer_digest="x")
    assert explain(base, with_tokenizer, "tokens") == ("cause", ["tokenizer_digest"])


def test_a_length_that_cuts_prompts(base: Manifest) -> None:
    cutting = changed(base, {"prompts.overlong": "truncate_left"})
    for key in ("sampling.max_tokens", "model.max_model_len"):
        assert explain(base, changed(base, {key: 9}), "prompt") == NOTHING
        assert explain(cutting, changed(cutting, {key: 9}), "prompt") == ("cause", [key])


def test_keys_made_of_content_or_counted(base: Manifest) -> None:
    hashed = changed(base, {"row_key.column": None, "row_key.derive": "content_hash"})
    other = changed(hashed, {"inputs.0.columns.prompt": "question"})
    assert explain(hashed, other, "rows") == ("cause", ["inputs[0].columns.prompt"])
    counted = changed(base, {"row_key.on_duplicate": "suffix"})
    other = changed(counted, {"inputs.0.where": "id > 3"})
    assert explain(counted, other, "prompt") == ("cause", ["inputs[0].where"])


def files(manifest: Manifest, *named: tuple[str, str]) -> Manifest:
    records = tuple(InputRecord(path, sha256, 1) for path, sha256 in named)
    return replace(manifest, inputs=records, fingerprint={**manifest.fingerprint, "inputs_digest": repr(named)})


def test_input_files(base: Manifest) -> None:
    a = files(base, ("x", "1"), ("y", "2"), ("y", "3"))
    b = files(base, ("x", "1"), ("y", "2"), ("y", "4"), ("z", "5"))
    found = suspects(a, b).explain(frozenset({"rows"}))
    assert found.differences == (
        Difference("file y#2", "SHA-256 3", "SHA-256 4"),
        Difference("file z", None, "SHA-256 5"),
    )
    assert (found.verdict, explain(a, b, "tokens")) == ("one_of", NOTHING)


def test_a_renamed_file(base: Manifest) -> None:
    a, b = files(base, ("x", "1")), files(base, ("y", "1"))
    assert explain(a, b, "rows") == NOTHING
    a, b = (replace(m, spec={**m.spec, "row_key": {"derive": "file_and_row"}}) for m in (a, b))
    assert explain(a, b, "rows") == ("one_of", ["file x", "file y"])


def test_a_condition_that_selects_other_rows_than_before(base: Manifest) -> None:
    other = changed(base, inputs_digest="x")
    assert explain(base, other, "rows") == ("cause", ["inputs_digest"])
    told = changed(base, {"inputs.0.where": "id > 3"}, inputs_digest="x")
    assert explain(base, told, "rows") == ("cause", ["inputs[0].where"])


def test_the_version_is_suspected_of_what_is_computed(base: Manifest) -> None:
    other = replace(changed(base, {"sampling.temperature": 0.3}, weights_digest="x"), batchgen_version="0.0.1")
    assert explain(base, other, "tokens") == ("one_of", ["weights_digest", "batchgen_version"])
    assert explain(base, other, "params") == ("cause", ["sampling.temperature"])
    assert explain(base, other, "rows") == ("cause", ["batchgen_version"])


def test_parameters_differ_by_all_of_theirs(base: Manifest) -> None:
    other = changed(base, {"sampling.temperature": 0.3, "sampling.top_p": 0.5, "seed": "4"})
    assert explain(base, other, "params") == ("all_of", ["sampling.temperature", "sampling.top_p"])
    assert explain(base, other, "seed") == ("cause", ["seed"])


def test_circumstances_are_no_causes(base: Manifest) -> None:
    config = {**base.run_config, "max_num_seqs": 1, "job_dir": "elsewhere"}
    other = replace(base, run_config=config, engine={"threads": 3, "self_test": {"seconds": 2}})
    found = suspects(base, other)
    assert found.acting == ()
    assert {difference.key for difference in found.circumstances} >= {"run_config.max_num_seqs", "engine.threads"}
    assert not any("job_dir" in d.key or "self_test" in d.key for d in found.circumstances)
    assert all(explain(base, other, effect) == NOTHING for effect in ALL)


def test_equal_manifests(base: Manifest) -> None:
    found = suspects(base, base)
    assert (found.acting, found.circumstances, found.version) == ((), (), None)
