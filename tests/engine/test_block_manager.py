"""The pool of KV blocks: every block in one place, whatever is asked of it."""

import random

import pytest

from batchgen.engine.block_manager import BlockManager
from batchgen.errors import EngineError


@pytest.mark.parametrize("block_size", [1, 2, 3, 32])
def test_a_table_holds_its_positions_and_no_block_more(block_size: int) -> None:
    blocks = BlockManager(num_blocks=100, block_size=block_size, cache_blocks=0)
    table: list[int] = []
    for positions in range(1, 100):
        assert blocks.grow(table, positions)
        assert (len(table) - 1) * block_size < positions <= len(table) * block_size
        assert len(table) == blocks.blocks_for(positions)
        blocks.check_integrity([table])


def test_growing_to_less_than_there_is_changes_nothing() -> None:
    blocks = BlockManager(num_blocks=4, block_size=2, cache_blocks=0)
    table: list[int] = []
    assert blocks.grow(table, 7)
    before = list(table)
    assert blocks.grow(table, 1)
    assert table == before


def test_a_refused_growth_changes_nothing() -> None:
    blocks = BlockManager(num_blocks=3, block_size=2, cache_blocks=0)
    table: list[int] = []
    assert blocks.grow(table, 4)
    before = list(table)
    assert not blocks.grow(table, 7)
    assert (table, blocks.num_free) == (before, 1)
    assert blocks.grow(table, 6)
    assert blocks.num_free == 0


def test_peak_is_the_most_ever_in_use() -> None:
    blocks = BlockManager(num_blocks=5, block_size=1, cache_blocks=0)
    a: list[int] = []
    b: list[int] = []
    blocks.grow(a, 2)
    blocks.grow(b, 1)
    blocks.free(a)
    blocks.grow(b, 2)
    assert blocks.peak_used == 3


def test_random_growth_and_freeing_keeps_every_block_in_one_place() -> None:
    rng = random.Random(0)
    for num_blocks in range(1, 20):
        blocks = BlockManager(num_blocks, block_size=rng.randint(1, 4), cache_blocks=0)
        tables: list[list[int]] = [[] for _ in range(5)]
        for _ in range(100):
            table = rng.choice(tables)
            if rng.random() < 0.3:
                blocks.free(table)
                assert table == []
            else:
                blocks.grow(table, rng.randint(1, 30))
            blocks.check_integrity(tables)
        for table in tables:
            blocks.free(table)
        assert blocks.num_free == num_blocks


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda tables: tables[0].pop(), "lost"),
        (lambda tables: tables[1].append(tables[0][0]), "doubled"),
        (lambda tables: tables[1].append(99), "foreign"),
    ],
)
def test_a_broken_table_is_seen(spoil: object, word: str) -> None:
    blocks = BlockManager(num_blocks=8, block_size=2, cache_blocks=0)
    tables: list[list[int]] = [[], []]
    blocks.grow(tables[0], 5)
    blocks.grow(tables[1], 3)
    blocks.check_integrity(tables)
    assert callable(spoil)
    spoil(tables)
    with pytest.raises(EngineError, match=rf"{word} \[\d"):
        blocks.check_integrity(tables)
