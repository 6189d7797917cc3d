"""Where a sequence ends, and that text, token ids and logprobs end at the same place."""

import random
from typing import Any

import pytest
from support.fake_runner import EOS, VOCAB_SIZE, FakeDecoder
from support.oracle import expected_ending

from batchgen.engine.stop import Ending, StopChecker
from batchgen.records import SamplingParams

A, B, AB, BA, SPACE, C, ABC, E2, X82, XAC, EURO, A_E2, NOTHING, _ = range(VOCAB_SIZE)


def run(token_ids: list[int], **params: Any) -> Ending | None:
    """Push tokens until an Ending; every token given must be wanted."""
    sampling = SamplingParams(**{"max_tokens": 100, **params})
    checker = StopChecker(sampling, frozenset({EOS}), FakeDecoder(sampling.skip_special_tokens))
    for k, token_id in enumerate(token_ids):
        if ending := checker.push(token_id):
            assert k == len(token_ids) - 1, "ended early"
            return ending
    return None


def test_goes_on_without_a_reason_to_stop() -> None:
    assert run([A, B, C, NOTHING]) is None


def test_length() -> None:
    assert run([A, B], max_tokens=2) == Ending("length", None, "ab", 2)


def test_eos_stays_in_the_ids_and_its_text_goes() -> None:
    assert run([A, EOS]) == Ending("stop", None, "a", 2)
    assert run([A, EOS], skip_special_tokens=False) == Ending("stop", None, "a", 2)
    assert run([A, EOS], include_stop_str_in_output=True) == Ending("stop", None, "a", 2)
    both = run([A, EOS], include_stop_str_in_output=True, skip_special_tokens=False)
    assert both == Ending("stop", None, "a<eos>", 2)


def test_ignored_eos_is_a_token_like_any_other() -> None:
    assert run([A, EOS, B], ignore_eos=True, max_tokens=3) == Ending("length", None, "ab", 3)
    assert run([A, EOS], ignore_eos=True, stop_token_ids=(EOS,)) == Ending("stop", EOS, "a", 2)


def test_stop_id_is_the_reason_and_eos_is_none() -> None:
    assert run([A, C], stop_token_ids=(C,)) == Ending("stop", C, "a", 2)
    assert run([A, C], stop_token_ids=(C,), include_stop_str_in_output=True) == Ending("stop", C, "ac", 2)
    assert run([A, EOS], stop_token_ids=(EOS,)) == Ending("stop", None, "a", 2)


def test_stop_string_inside_a_token_keeps_the_token_if_any_of_its_text_is_kept() -> None:
    assert run([C, ABC], stop=("b",)) == Ending("stop", "b", "ca", 2)
    assert run([C, ABC], stop=("b",), include_stop_str_in_output=True) == Ending("stop", "b", "cab", 2)


def test_stop_string_across_tokens_drops_the_tokens_past_the_text() -> None:
    assert run([C, SPACE, A, B, C], stop=("abc",)) == Ending("stop", "abc", "c ", 2)
    assert run([C, SPACE, A, B, C], stop=("abc",), include_stop_str_in_output=True) == Ending("stop", "abc", "c abc", 5)


def test_stop_string_at_the_very_start_leaves_nothing() -> None:
    assert run([A, B], stop=("ab",)) == Ending("stop", "ab", "", 0)


def test_tokens_without_text_before_the_match_are_dropped() -> None:
    assert run([C, NOTHING, A, B], stop=("ab",)) == Ending("stop", "ab", "c", 1)


def test_the_match_completed_first_wins_and_then_the_longer() -> None:
    assert run([ABC], stop=("abc", "b")) == Ending("stop", "b", "a", 1)
    assert run([ABC], stop=("bc", "abc")) == Ending("stop", "abc", "", 0)
    assert run([ABC], stop=("c", "a")) == Ending("stop", "a", "", 0)


def test_stop_string_that_ends_on_the_last_token_beats_length_and_eos() -> None:
    assert run([A, B], stop=("b",), max_tokens=2) == Ending("stop", "b", "a", 1)
    with_text = {"include_stop_str_in_output": True, "skip_special_tokens": False}
    assert run([A, EOS], stop=("eos",), **with_text) == Ending("stop", "eos", "a<eos", 2)


def test_a_character_of_several_tokens_is_found_when_it_is_whole() -> None:
    assert run([A, E2, X82, XAC], stop=("€",)) == Ending("stop", "€", "a", 1)
    assert run([A, E2, X82, XAC], stop=("€",), include_stop_str_in_output=True) == Ending("stop", "€", "a€", 4)
    assert run([A, EURO], stop=("€",)) == Ending("stop", "€", "a", 1)
    assert run([A_E2, X82, XAC, B], stop=("b",)) == Ending("stop", "b", "a€", 3)


def test_an_unfinished_character_becomes_a_replacement_and_is_searched() -> None:
    assert run([A, E2], max_tokens=2) == Ending("length", None, "a\ufffd", 2)
    assert run([A, E2, EOS]) == Ending("stop", None, "a\ufffd", 3)
    assert run([A, E2], max_tokens=2, stop=("\ufffd",)) == Ending("stop", "\ufffd", "a", 1)
    assert run([A, E2], max_tokens=2, stop=("a\ufffd",), include_stop_str_in_output=True) == Ending(
        "stop", "a\ufffd", "a\ufffd", 2
    )


def test_stop_strings_are_looked_for_after_min_tokens() -> None:
    assert run([A, B, C], stop=("b",), min_tokens=2) is None
    assert run([A, B, C, B], stop=("b",), min_tokens=2) == Ending("stop", "b", "abc", 3)
    assert run([A, B, C], stop=("bc",), min_tokens=2) == Ending("stop", "bc", "a", 1)
    assert run([A, B], stop=("b",), min_tokens=2, max_tokens=2) == Ending("length", None, "ab", 2)


def test_every_ending_is_the_one_found_by_reading_the_whole_text_again() -> None:
    rng = random.Random(7)
    words = ["a", "b", "ab", "ba", "bab", "abab", " a", "c", "€", "b€", "\ufffd", "<e", "eos>", "aa", "caa"]
    reasons = set()
    for _ in range(4000):
        params = SamplingParams(
            max_tokens=rng.randint(1, 14),
            min_tokens=rng.choice([0, 0, 1, 3]),
            stop=tuple(rng.sample(words, rng.randint(0, 3))),
            stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 1]))),
            ignore_eos=rng.random() < 0.3,
            include_stop_str_in_output=rng.random() < 0.5,
            skip_special_tokens=rng.random() < 0.5,
        )
        checker = StopChecker(params, frozenset({EOS}), FakeDecoder(params.skip_special_tokens))
        output: list[int] = []
        ending = None
        while ending is None:
            output.append(rng.randrange(VOCAB_SIZE))
            ending = checker.push(output[-1])
            assert ending == expected_ending(output, params), (params, output)
        reasons.add((ending.finish_reason, type(ending.stop_reason)))
    assert reasons == {("length", type(None)), ("stop", type(None)), ("stop", int), ("stop", str)}


@pytest.mark.parametrize("cut", [[ABC, A], [ABC, ABC], [AB, C, A], [A, B, C, AB]])
def test_the_text_does_not_depend_on_its_cut_into_tokens(cut: list[int]) -> None:
    ending = run(cut, stop=("cabb", "bca"))
    assert ending is not None
    assert (ending.stop_reason, ending.text, ending.num_tokens) == ("bca", "a", 1)


def test_the_scan_looks_at_the_end_of_the_text_only() -> None:
    """Guards against work that grows with the square of the length."""
    checker = StopChecker(SamplingParams(stop=("abba", "cc"), max_tokens=10**6), frozenset(), FakeDecoder(True))
    for _ in range(1000):
        assert checker.push(A) is None
        assert len(checker._tail) <= len("abba") - 1
