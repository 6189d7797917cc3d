"""One rank: every pair is there, in order, and the answers are where they were asked for."""

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen.errors import EngineError
from batchgen.parallel.all_to_all import AllToAllExchange
from batchgen.parallel.exchange import Exchange, LocalExchange, RowNumbers
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.padded import PaddedExchange
from batchgen.parallel.placement import Placement, initial
from batchgen.parallel.routes import Routes

CPU = torch.device("cpu")


def routes(placement: Placement) -> Routes:
    return Routes(Mesh.alone(CPU), placement, counting=False)


def every_exchange(placement: Placement) -> list[Exchange]:
    return [
        LocalExchange(routes(placement)),
        AllToAllExchange(routes(placement)),
        PaddedExchange(routes(placement)),
    ]


def test_pairs_are_by_token_then_by_place() -> None:
    x = torch.arange(6).view(3, 2).bfloat16()
    arrived = LocalExchange().dispatch(x, torch.tensor([[0, 2], [1, 3], [0, 3]], dtype=torch.int32))
    assert arrived.x is x
    assert_bitwise(arrived.pairs.rows, torch.tensor([0, 0, 1, 1, 2, 2], dtype=torch.int32))
    assert_bitwise(arrived.pairs.slots, torch.tensor([0, 2, 1, 3, 0, 3], dtype=torch.int32))


@pytest.mark.parametrize("kind", range(3))
def test_answers_come_back_by_token_and_place(kind: int) -> None:
    placement = Placement(4, (3, 1, 0, 2, 1), 1)
    exchange = every_exchange(placement)[kind]
    ids = torch.tensor([[0, 2], [1, 3], [0, 3], [1, 2]], dtype=torch.int32)
    x = torch.arange(16).view(4, 4).bfloat16()
    for _ in range(2):
        arrived = exchange.dispatch(x, ids)
        held = torch.tensor(placement.slots)[arrived.pairs.slots.long()]
        answers = 100 * held[:, None] + arrived.x[arrived.pairs.rows.long()]
        assert_bitwise(exchange.combine(answers.float()), (100 * ids[:, :, None] + x[:, None, :]).float())


@pytest.mark.parametrize("kind", range(3))
def test_both_copies_of_an_expert_work(kind: int) -> None:
    exchange = every_exchange(Placement(2, (0, 1, 1), 1))[kind]
    arrived = exchange.dispatch(torch.zeros(9, 4).bfloat16(), torch.tensor([[0, 1]] * 9, dtype=torch.int32))
    assert set(arrived.pairs.slots.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("kind", range(3))
def test_an_id_of_minus_one_goes_nowhere(kind: int) -> None:
    exchange = every_exchange(initial(3, 1))[kind]
    ids = torch.tensor([[0, 2], [-1, -1]], dtype=torch.int32)
    arrived = exchange.dispatch(torch.ones(2, 4).bfloat16(), ids)
    assert [slot for slot in arrived.pairs.slots.tolist() if slot >= 0] == [0, 2]
    answers = exchange.combine(torch.ones(len(arrived.pairs.slots), 4))
    assert answers.shape == (2, 2, 4)
    assert_bitwise(answers[0], torch.ones(2, 4))


@pytest.mark.parametrize("kind", range(3))
def test_no_tokens(kind: int) -> None:
    exchange = every_exchange(initial(3, 1, 1))[kind]
    arrived = exchange.dispatch(torch.zeros(0, 4).bfloat16(), torch.zeros(0, 2, dtype=torch.int32))
    assert (arrived.x.shape, arrived.x.dtype) == ((0, 4), torch.bfloat16)
    assert arrived.pairs.rows.dtype == arrived.pairs.slots.dtype == torch.int32
    assert exchange.combine(torch.zeros(0, 4)).shape == (0, 2, 4)


@pytest.mark.parametrize("kind", range(3))
def test_a_combine_has_its_dispatch(kind: int) -> None:
    exchange = every_exchange(initial(3, 1))[kind]
    with pytest.raises(EngineError, match="dispatch"):
        exchange.combine(torch.zeros(0, 4))
    exchange.dispatch(torch.zeros(0, 4).bfloat16(), torch.zeros(0, 2, dtype=torch.int32))
    exchange.combine(torch.zeros(0, 4))
    with pytest.raises(EngineError, match="dispatch"):
        exchange.combine(torch.zeros(0, 4))


def test_an_answer_too_few_is_refused() -> None:
    exchange = AllToAllExchange(routes(initial(3, 1)))
    exchange.dispatch(torch.zeros(2, 4).bfloat16(), torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(EngineError, match="1 answers, which fit no dispatch"):
        exchange.combine(torch.zeros(1, 4))


def test_rows_of_half_a_word_are_refused() -> None:
    exchange = AllToAllExchange(routes(initial(3, 1)))
    with pytest.raises(EngineError, match="rows of 4 bytes; ranks exchange multiples of 8"):
        exchange.dispatch(torch.zeros(2, 2).bfloat16(), torch.zeros(2, 1, dtype=torch.int32))


def test_row_numbers_are_kept_and_grow() -> None:
    numbers = RowNumbers()
    first = numbers.of(3, 2, CPU)
    assert first.tolist() == [0, 0, 1, 1, 2, 2]
    assert numbers.of(2, 2, CPU).data_ptr() == first.data_ptr()
    assert numbers.of(100, 2, CPU).tolist() == [row for row in range(100) for _ in range(2)]
    assert numbers.of(2, 3, CPU).tolist() == [0, 0, 0, 1, 1, 1]
    assert first.tolist() == [0, 0, 1, 1, 2, 2]
    assert numbers.of(0, 2, CPU).tolist() == []
