"""Which samples are made twice, when, and what is kept of one that differs."""

import json
from dataclasses import replace

import pytest

from batchgen.executor.probes import ProbeFailed, Probes
from batchgen.records import Completion, Request, SamplingParams
from batchgen.seeds import lot, sample_seed

PARAMS = SamplingParams(logit_bias={3: 0.5})


def request(number: int) -> Request:
    key = f"row-{number}"
    return Request(key, 0, sample_seed(7, key, 0), (1, number), PARAMS, ((4, 5),))


def again(number: int) -> Request:
    """As it is asked the second time: nothing that the first pass left behind may be used."""
    return replace(request(number), fresh=True)


def answer(number: int, token: int = 9) -> Completion:
    return Completion(f"row-{number}", 0, (2, token), "x", "stop", logprobs=(-1.0, 0.0))


def chosen(probes: Probes, numbers: range) -> set[int]:
    return {number for number in numbers if probes.chooses(request(number))}


@pytest.mark.parametrize("share", [0.005, 0.1, 0.5])
def test_a_share_is_chosen_whatever_the_order(share: float) -> None:
    """But for the first two, which are another pair in another order."""
    forward, backward = (chosen(Probes(share), order) for order in (range(4000), range(3999, -1, -1)))
    by_lot = {number for number in range(4000) if lot(request(number).seed, "probe") < share}
    assert len(by_lot) == pytest.approx(4000 * share, rel=0.5)
    assert forward == by_lot | {0, 1}
    assert backward == by_lot | {3999, 3998}


def test_none_and_all() -> None:
    assert chosen(Probes(0), range(500)) == set()
    assert chosen(Probes(1), range(500)) == set(range(500))
    assert chosen(Probes(1e-12), range(500)) == {0, 1}


def held(numbers: range, apart: int = 0) -> Probes:
    """Probes that wait, their first answers in this order."""
    probes = Probes(1, apart)
    for number in numbers:
        assert probes.chooses(request(number))
        probes.sample_ended(answer(number))
        probes.hold(request(number), answer(number), number + 100)
    return probes


def test_a_probe_is_held_back_until_others_have_ended() -> None:
    probes = held(range(2), apart=3)
    assert list(probes.due()) == []
    probes.sample_ended(answer(7))
    assert list(probes.due()) == []
    probes.sample_ended(answer(8))
    assert list(probes.due()) == [again(0)]
    probes.sample_ended(answer(9))
    assert list(probes.due()) == [again(1)]
    assert probes.running() == [("row-0", 0), ("row-1", 0)]


def test_what_is_left_goes_in_smaller_company() -> None:
    probes = held(range(5), apart=100)
    groups = []
    while group := list(probes.rest()):
        groups.append([int(request.row_key.removeprefix("row-")) for request in group])
        assert [probes.answer(answer(number)) for number in groups[-1]] == [number + 100 for number in groups[-1]]
    assert groups == [[4, 3, 2], [1], [0]]
    assert probes.agreed == 5
    assert probes.running() == []


def test_what_is_no_probe_is_not_answered() -> None:
    probes = held(range(1))
    assert probes.answer(answer(0)) is None  # it waits, and was not asked again
    assert list(probes.due()) == [again(0)]
    assert probes.answer(answer(1)) is None
    assert probes.answer(answer(0)) == 100
    assert probes.answer(answer(0)) is None


def test_who_hears_of_it() -> None:
    heard: list[Request] = []
    probes = Probes(1, on_probe=heard.append)
    probes.hold(request(0), answer(0), 0)
    assert list(probes.due())
    assert heard == []
    probes.answer(answer(0))
    assert heard == [request(0)]


def test_one_that_differs_is_an_error_with_evidence() -> None:
    probes = held(range(3))
    list(probes.due())
    probes.answer(answer(1))
    for number in (50, 51):
        probes.sample_ended(answer(number))
    with pytest.raises(ProbeFailed) as caught:
        probes.answer(answer(0, token=8))
    assert caught.value.exit_code == 8
    assert str(caught.value).startswith(
        "row 'row-0' sample 0 was made twice and differs: token_ids of token 1: 9, then 8; probes that agreed before: 1"
    )
    evidence = json.loads(json.dumps(caught.value.evidence))
    assert evidence["differences"] == [{"field": "token_ids", "token": 1, "first": 9, "second": 8}]
    assert evidence["first"]["logprobs"] == ["bf800000", "00000000"]
    assert (evidence["first"]["token_ids"], evidence["second"]["token_ids"]) == ([2, 9], [2, 8])
    assert (evidence["seed"], evidence["prompt_token_ids"]) == (str(request(0).seed), [1, 0])
    assert (evidence["params"]["logit_bias"], evidence["bad_words_token_ids"]) == ({"3": 0.5}, [[4, 5]])
    assert evidence["ended_between"] == [["row-1", 0], ["row-2", 0], ["row-50", 0], ["row-51", 0]]
    assert evidence["probes_agreed"] == 1


def test_the_evidence_does_not_grow_with_the_job() -> None:
    probes = held(range(1))
    list(probes.due())
    for number in range(1, 5000):
        probes.sample_ended(answer(number))
    with pytest.raises(ProbeFailed) as caught:
        probes.answer(replace(answer(0), finish_reason="length"))
    assert len(caught.value.evidence["ended_between"]) == 1024
    assert caught.value.evidence["ended_between"][-1] == ("row-4999", 0)
