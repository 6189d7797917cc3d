"""What a sequence says about itself: counts, and the ids that the next draw must not give."""

from typing import Any

import pytest
from support.fake_runner import EOS, FakeDecoder

from batchgen.engine.sequence import Sequence
from batchgen.engine.stop import StopChecker
from batchgen.records import Request, SamplingParams


def make(prompt: tuple[int, ...] = (1, 2), bad_words: tuple[tuple[int, ...], ...] = (), **params: Any) -> Sequence:
    sampling = SamplingParams(**params)
    request = Request("row", 0, 0, prompt, sampling, bad_words)
    return Sequence(request, 0, StopChecker(sampling, frozenset({EOS}), FakeDecoder(True)))


def add(sequence: Sequence, *token_ids: int) -> Sequence:
    for token_id in token_ids:
        sequence.append(token_id, 0.0, (), ())
    return sequence


def test_counts_of_tokens() -> None:
    sequence = make(prompt=(5, 6, 7))
    assert (sequence.num_prompt, sequence.num_output, sequence.num_tokens, sequence.num_uncomputed) == (3, 0, 3, 3)
    sequence.num_computed = 3
    add(sequence, 6)
    assert (sequence.num_prompt, sequence.num_output, sequence.num_tokens, sequence.num_uncomputed) == (3, 1, 4, 1)


def test_output_counts_leave_out_the_prompt_and_seen_ids_do_not() -> None:
    sequence = add(make(prompt=(3, 3, 9)), 3, 4, 3)
    assert sequence.output_counts == {3: 2, 4: 1}
    assert sequence.seen_token_ids == {3, 4, 9}
    assert add(sequence, 7).seen_token_ids == {3, 4, 7, 9}


def test_what_was_recorded_of_each_draw_stays_in_step() -> None:
    sequence = make()
    sequence.append(4, -0.5, (4, 1), (-0.5, -1.0))
    sequence.append(1, -2.0, (0, 2), (-0.1, -0.2))
    assert sequence.logprobs == [-0.5, -2.0]
    assert sequence.top_ids == [(4, 1), (0, 2)]
    assert sequence.top_values == [(-0.5, -1.0), (-0.1, -0.2)]


def test_nothing_is_banned_by_default() -> None:
    assert make(stop_token_ids=(4,)).banned_token_ids_now == frozenset()


def test_ids_that_end_are_banned_for_the_first_min_tokens() -> None:
    sequence = make(min_tokens=2, stop_token_ids=(4, 5))
    for expected in ({EOS, 4, 5}, {EOS, 4, 5}, set(), set()):
        assert sequence.banned_token_ids_now == expected
        add(sequence, 0)


def test_ignored_eos_ends_nothing_and_is_not_banned() -> None:
    assert make(min_tokens=2, ignore_eos=True, stop_token_ids=(4,)).banned_token_ids_now == {4}


def test_a_bad_word_of_one_token_is_always_banned() -> None:
    assert add(make(bad_words=((7,),)), 7, 7).banned_token_ids_now == {7}


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ((), set()),
        ((1,), set()),
        ((1, 2), {3}),
        ((0, 1, 2), {3}),
        ((1, 2, 0), set()),
        ((2,), {9}),
        ((1, 2, 2), {9}),
    ],
)
def test_a_longer_bad_word_bans_its_last_id_after_the_others(output: tuple[int, ...], banned: set[int]) -> None:
    """The prompt ends with the word's start, and does not count."""
    words = ((1, 2, 3),) if 9 not in banned else ((2, 9), (1, 2, 3, 4))
    assert add(make(prompt=(1, 2), bad_words=words), *output).banned_token_ids_now == banned


def test_bans_add_up() -> None:
    sequence = make(min_tokens=1, bad_words=((7,), (8,)))
    assert sequence.banned_token_ids_now == {EOS, 7, 8}
