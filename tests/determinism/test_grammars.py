"""Rows with a grammar, alone and among others: their bits are their own, and every text is one of the grammar.

Guards against a mask that lands on a neighbour's row, matchers that a batch shares or that preemption winds back, and
ends that a grammar does not have (SGLang #18142, vLLM #17248: crashes and stray masks under load).
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from support.model_cases import ask, assert_same, generate, ids, with_limits

from batchgen.engine.engine import Engine
from batchgen.errors import EngineError
from batchgen.records import Completion, Request, SamplingParams, StructuredOutputs
from batchgen.text.grammar import Matcher
from batchgen.text.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog", None]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 30}, "maxItems": 2},
    },
    "required": ["name", "kind", "ages"],
    "additionalProperties": False,
}
BASE = SamplingParams(max_tokens=70, logprobs=2)
FORMS = (
    StructuredOutputs(json_schema=json.dumps(SCHEMA)),
    StructuredOutputs(regex="[A-Z][a-z]{2,5}( [0-9]{2}){0,2}!"),
    StructuredOutputs(grammar='start: sum\nsum: NUMBER (" + " NUMBER){1,3}\nNUMBER: /[1-9][0-9]?/'),
    StructuredOutputs(choice=("yes", "no", "yes, but not now")),
)
KINDS = (
    replace(BASE, temperature=0.0),
    BASE,
    replace(BASE, top_p=0.8, top_k=40, repetition_penalty=1.2),
    replace(BASE, min_p=0.05, presence_penalty=0.5, logit_bias={9: 3.0}, logprobs=None),
)


def is_one(outputs: StructuredOutputs, text: str) -> bool:
    """By other means than those that made it."""
    if outputs.choice is not None:
        return text in outputs.choice
    if outputs.regex is not None:
        return re.fullmatch(outputs.regex, text) is not None
    if outputs.grammar is not None:
        return re.fullmatch(r"[1-9][0-9]?( \+ [1-9][0-9]?){1,3}", text) is not None
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def wanted() -> list[Request]:
    """Each form with each kind of sampling, and as many rows without a form between them."""
    made = []
    for at, form in enumerate(FORMS):
        for kind, params in enumerate(KINDS):
            prompt = ids(3 + 9 * kind + at, kind)
            made.append(ask(f"formed-{at}-{kind}", prompt, replace(params, structured_outputs=form)))
            made.append(ask(f"free-{at}-{kind}", ids(2 + 11 * kind + at, at), replace(params, max_tokens=20)))
    return made


@pytest.fixture(scope="module")
def single(engine: Engine) -> dict[str, str]:
    return generate(with_limits(engine, max_num_seqs=1, prefix_cache_blocks=0), wanted())


def completions(engine: Engine, requests: list[Request]) -> dict[str, Completion]:
    engine.blocks.forget()
    return {completion.row_key: completion for completion in engine.generate(requests)}


def test_every_text_is_one_of_its_grammar(engine: Engine) -> None:
    answers = completions(with_limits(engine), wanted())
    for request in wanted():
        answer, form = answers[request.row_key], request.params.structured_outputs
        if form is not None:
            assert answer.finish_reason == "stop", answer
            assert is_one(form, answer.text), answer.text
            assert answer.token_ids[-1] in engine.model.eos_token_ids


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_seqs": 32},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 8, "max_num_batched_tokens": 48, "num_blocks": 7, "prefix_cache_blocks": 0},
    ],
    ids=str,
)
def test_company_cannot_be_seen(engine: Engine, single: dict[str, str], limits: dict[str, int]) -> None:
    other = with_limits(engine, **limits)
    assert_same(generate(other, wanted()), single, str(limits))
    assert_same(generate(other, wanted()[::-1]), single, f"{limits}, in other order, with a cache that is full")
    if "num_blocks" in limits:
        assert other.stats.preemptions > 0, "a pool that preempts nobody shows nothing"


def test_a_row_without_a_grammar_is_what_it_was(engine: Engine, single: dict[str, str]) -> None:
    free = [request for request in wanted() if request.params.structured_outputs is None]
    assert_same(generate(with_limits(engine), free), single, "free rows among themselves")


def test_processed_logprobs_are_those_of_what_the_grammar_allows(engine: Engine) -> None:
    """Of a choice of two first tokens the probabilities add up to one."""
    form = StructuredOutputs(choice=("a", "b"))
    tokenizer = engine._detokenizer
    assert isinstance(tokenizer, Tokenizer)
    runner: Any = engine.runner
    runner._processed_logprobs, before = True, runner._processed_logprobs
    try:
        request = ask("ab", ids(5), replace(BASE, structured_outputs=form))
        answer = completions(with_limits(engine), [request])["ab"]
    finally:
        runner._processed_logprobs = before
    assert answer.top_logprobs_ids is not None
    assert answer.top_logprobs_values is not None
    assert {tokenizer.decode([i]) for i in answer.top_logprobs_ids[0]} == {"a", "b"}
    assert answer.top_logprobs_values[1][0] == 0.0, "only the end is left"


def test_a_text_that_max_tokens_cut_says_so(engine: Engine) -> None:
    request = ask("cut", ids(4), replace(BASE, max_tokens=3, structured_outputs=FORMS[0]))
    assert completions(with_limits(engine), [request])["cut"].finish_reason == "length"


def test_bad_words_that_leave_nothing_are_an_error_of_that_row(engine: Engine, single: dict[str, str]) -> None:
    tokenizer = engine._detokenizer
    assert isinstance(tokenizer, Tokenizer)
    words = tuple((i,) for i, token in enumerate(tokenizer.vocabulary.tokens) if token.startswith(b"y"))
    params = replace(BASE, structured_outputs=StructuredOutputs(choice=("yes",)))
    answers = generate(with_limits(engine), [ask("barren", ids(4), params, bad_words=words), *wanted()])
    assert '"grammar"' in answers.pop("barren")
    assert_same(answers, single, "beside a row with nothing to draw")


def test_a_request_that_cannot_be_compiled_is_the_callers_mistake(engine: Engine) -> None:
    request = ask("bad", ids(4), replace(BASE, structured_outputs=StructuredOutputs(regex="(a")))
    with pytest.raises(EngineError, match=r"'bad', sample 0: structured_outputs.regex: .*unclosed group"):
        list(with_limits(engine).generate([request]))


def test_a_given_continuation_has_no_grammar(engine: Engine) -> None:
    request = replace(ask("given", ids(4), replace(BASE, structured_outputs=FORMS[0])), continuation=(5, 6))
    with pytest.raises(EngineError, match="continuation: does not go with structured_outputs"):
        list(with_limits(engine).generate([request]))


def shared(right: Callable[..., Matcher]) -> Callable[..., Matcher]:
    """One matcher for all rows of a grammar, as a cache by its text might give it."""
    made: dict[StructuredOutputs, Matcher] = {}

    def matcher(tokenizer: Tokenizer, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        if outputs not in made:
            made[outputs] = right(tokenizer, outputs, vocab_size)
        return made[outputs]

    return matcher


def test_counter_a_matcher_that_rows_share_is_caught(
    engine: Engine, single: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "matcher", shared(Tokenizer.matcher))
    with pytest.raises(AssertionError, match=r"formed-.* differs"):
        assert_same(generate(with_limits(engine, max_num_seqs=32), wanted()), single, "shared")


def test_counter_an_end_that_the_grammar_does_not_have_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends that are drawn as the model likes: some text is cut, and is none of its grammar."""
    right = Matcher.banned
    ends = engine.model.eos_token_ids
    monkeypatch.setattr(Matcher, "banned", lambda self, ending: [i for i in right(self, ending) if i not in ends])
    eager = {next(iter(ends)): 20.0}
    requests = [replace(r, params=replace(r.params, logit_bias=eager)) for r in wanted()]
    answers = completions(with_limits(engine), requests)
    formed = [r for r in requests if r.params.structured_outputs is not None]

    def is_whole(request: Request) -> bool:
        assert request.params.structured_outputs is not None
        try:
            return is_one(request.params.structured_outputs, answers[request.row_key].text)
        except ValueError:
            return False

    assert not all(map(is_whole, formed))
