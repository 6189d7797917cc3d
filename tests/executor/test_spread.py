"""Who gets the next request: whoever has least before it, and samples of a prompt together where that costs little."""

from dataclasses import replace

import pytest

from batchgen.executor.spread import Spread
from batchgen.records import Completion, Request, SamplingParams


def asking(prompt: int, most: int, sample: int = 0, first: int = 0) -> Request:
    ids = tuple(range(first, first + prompt))
    return Request(f"p{prompt}-{first}", sample, 0, ids, SamplingParams(max_tokens=most))


def answer(request: Request) -> Completion:
    return Completion(request.row_key, request.sample_index, (), "", "length")


def test_the_least_work_gets_the_next() -> None:
    spread = Spread(3, room=10)
    given = [spread.give(asking(prompt, 10, first=i)) for i, prompt in enumerate((50, 20, 20, 5, 5, 5))]
    assert given == [0, 1, 2, 1, 2, 1]
    assert spread.work == [60, 60, 45]


def test_a_full_rank_gets_none_and_an_answer_makes_room() -> None:
    spread = Spread(2, room=2)
    requests = [asking(1, 1, sample=i, first=i) for i in range(4)]
    at = [spread.give(request) for request in requests]
    assert sorted(at) == [0, 0, 1, 1]
    assert not spread.has_room()
    spread.answered(at[0], answer(requests[0]))
    assert spread.has_room()
    assert spread.give(asking(900, 900)) == at[0]
    assert not spread.has_room()


def test_equal_names_are_counted_apart() -> None:
    """A probe is asked while its row's twin of another job may be there: a name is no key."""
    spread = Spread(1, room=3)
    long, short = asking(10, 5), replace(asking(10, 5), params=SamplingParams(max_tokens=1))
    spread.give(long)
    spread.give(short)
    for _ in range(2):
        spread.answered(0, answer(long))
    assert spread.work == [0]
    with pytest.raises(KeyError):
        spread.answered(0, answer(long))


def test_few_samples_of_a_prompt_go_to_all() -> None:
    spread = Spread(4, room=100)
    assert [spread.give(asking(100, 50, sample=i)) for i in range(4)] == [0, 1, 2, 3]


def test_samples_of_a_prompt_stay_together_in_a_busy_replica() -> None:
    spread = Spread(2, room=1000)
    for i in range(40):
        spread.give(asking(100, 100, first=i))
    given = [spread.give(asking(100, 100, sample=i, first=500)) for i in range(4)]
    assert len(set(given)) == 1
    assert max(spread.work) - min(spread.work) <= 4 * 200


def test_no_rank_is_left_behind() -> None:
    """A thousand samples of one prompt are not the work of one rank."""
    spread = Spread(4, room=10_000)
    for i in range(1000):
        spread.give(asking(30, 30, sample=i))
    assert min(spread.work) > 0.6 * max(spread.work)
