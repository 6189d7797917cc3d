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


def computed(blocks: BlockManager, table: list[int], ids: list[int], start: int = 0) -> None:
    blocks.register(table, ids, start, len(ids))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 96, 97])
def test_full_blocks_are_shared_but_never_the_last_token(length: int) -> None:
    ids = list(range(length))
    blocks = BlockManager(num_blocks=20, block_size=32, cache_blocks=20)
    first: list[int] = []
    same: list[int] = []
    longer: list[int] = []
    assert blocks.admit(first, ids, spare=0) == 0
    computed(blocks, first, ids)
    known = (length - 1) // 32
    assert blocks.admit(same, ids, spare=0) == 32 * known
    assert blocks.admit(longer, [*ids, 7], spare=0) == length // 32 * 32
    assert same[:known] == first[:known]
    assert not set(same[known:]) & set(first)
    blocks.check_integrity([first, same, longer])
    for table in (first, same, longer):
        blocks.free(table)
    blocks.check_integrity([])
    assert blocks.admit(same, ids, spare=0) == 32 * known, "found after everyone has left"


def test_without_a_cache_nothing_is_shared() -> None:
    blocks = BlockManager(num_blocks=9, block_size=1, cache_blocks=0)
    first: list[int] = []
    second: list[int] = []
    blocks.admit(first, [5, 6, 7], spare=0)
    computed(blocks, first, [5, 6, 7])
    assert blocks.admit(second, [5, 6, 7], spare=0) == 0
    assert not set(first) & set(second)


def test_room_counts_what_is_known_once_and_what_nobody_owns_as_free() -> None:
    """Four positions of four are free; two of them hold the prefix that is asked for."""
    for spare, ids, fits in ((1, [5, 6, 7], True), (2, [5, 6, 7], False), (0, [5, 6, 7, 8, 9], False)):
        blocks = BlockManager(num_blocks=4, block_size=1, cache_blocks=2)
        table: list[int] = []
        blocks.admit(table, [5, 6], spare=0)
        computed(blocks, table, [5, 6])
        blocks.free(table)
        assert (blocks.admit(table, ids, spare) == 2) is fits
        assert (len(table), blocks.num_free) == ((3, 1) if fits else (0, 4))
        blocks.check_integrity([table])


def test_blocks_of_others_cost_no_room() -> None:
    blocks = BlockManager(num_blocks=4, block_size=1, cache_blocks=1)
    tables: list[list[int]] = [[], [], []]
    assert blocks.admit(tables[0], [5, 6], spare=0) == 0
    computed(blocks, tables[0], [5, 6])
    assert blocks.admit(tables[1], [5, 6, 7], spare=1) == 2
    assert blocks.admit(tables[2], [5, 6, 8], spare=1) is None
    assert blocks.admit(tables[2], [5, 6, 8], spare=0) == 2
    assert (blocks.num_free, blocks.peak_used) == (0, 4)
    blocks.check_integrity(tables)


def test_blank_blocks_go_first_then_what_was_unused_longest() -> None:
    blocks = BlockManager(num_blocks=5, block_size=1, cache_blocks=4)
    tables: list[list[int]] = [[], [], [], []]
    for table, token in zip(tables[:3], (5, 6, 7), strict=True):
        blocks.admit(table, [token], spare=0)
        computed(blocks, table, [token])
    for table in (tables[1], tables[0], tables[2]):
        blocks.free(table)

    def known() -> list[int]:
        return [token for token in (5, 6, 7) if blocks._prefixes.find([token], 1)]

    for positions, left in ((1, [5, 6, 7]), (2, [5, 6, 7]), (3, [5, 7]), (4, [7]), (5, [])):
        assert blocks.grow(tables[3], positions)
        assert known() == left
        blocks.check_integrity(tables)


def test_at_most_so_many_free_blocks_keep_their_content_the_latest_and_their_beginnings() -> None:
    blocks = BlockManager(num_blocks=20, block_size=1, cache_blocks=3)
    for ids in ([1, 2, 3, 4, 5], [6, 7]):
        table: list[int] = []
        blocks.admit(table, ids, spare=0)
        computed(blocks, table, ids)
        blocks.free(table)
        blocks.check_integrity([])
    assert [len(blocks._prefixes.find(ids, 9)) for ids in ([1, 2, 3, 4, 5], [6, 7])] == [1, 2]
    blocks.forget()
    blocks.check_integrity([])
    assert (len(blocks._prefixes), blocks.num_free) == (0, 20)


class Contents(BlockManager):
    """Knows what each position holds: all tokens up to it. Void when the block is discarded."""

    def __init__(self, num_blocks: int, block_size: int, cache_blocks: int) -> None:
        super().__init__(num_blocks, block_size, cache_blocks)
        self.cells: dict[tuple[int, int], tuple[int, ...]] = {}

    def _discard(self, block: int) -> None:
        self.cells = {cell: content for cell, content in self.cells.items() if cell[0] != block}
        super()._discard(block)

    def write(self, table: list[int], ids: list[int], start: int, stop: int) -> None:
        for p in range(start, stop):
            cell = table[p // self.block_size], p % self.block_size
            assert cell not in self.cells, "a cell is written once"
            self.cells[cell] = tuple(ids[: p + 1])

    def holds(self, table: list[int], ids: list[int], num_computed: int) -> bool:
        size = self.block_size
        return all(self.cells[table[p // size], p % size] == tuple(ids[: p + 1]) for p in range(num_computed))


@pytest.mark.parametrize("seed", range(60))
def test_random_sharing_gives_every_owner_its_own_tokens(seed: int) -> None:
    """Few tokens and small pools, so that prefixes agree, fork, double, and are evicted while others hold them."""
    rng = random.Random(seed)
    num_blocks = rng.randint(4, 24)
    blocks = Contents(num_blocks, rng.randint(1, 3), cache_blocks=rng.choice((0, 1, num_blocks // 3, num_blocks)))
    owners: list[tuple[list[int], list[int]]] = []
    shared = 0
    for _ in range(150):
        action = rng.random()
        if action < 0.35:
            old = rng.choice(owners)[1] if owners and rng.random() < 0.5 else []
            ids = [*old[: rng.randint(0, len(old))], *rng.choices((1, 2), k=rng.randint(1, 6))]
            table: list[int] = []
            known = blocks.admit(table, ids, spare=rng.randint(0, 2))
            if known is not None:
                assert known < len(ids)
                blocks.register(table, ids, known, len(ids))
                blocks.write(table, ids, known, len(ids))
                owners.append((table, ids))
                shared += known
        elif action < 0.7 and owners:
            table, ids = rng.choice(owners)
            if blocks.grow(table, len(ids) + 1):
                ids.append(rng.choice((1, 2)))
                blocks.register(table, ids, len(ids) - 1, len(ids))
                blocks.write(table, ids, len(ids) - 1, len(ids))
        elif action < 0.98 and owners:
            blocks.free(owners.pop(rng.randrange(len(owners)))[0])
        elif action >= 0.98:
            blocks.forget()
        blocks.check_integrity([table for table, _ in owners])
        assert all(blocks.holds(table, ids, len(ids)) for table, ids in owners)
        assert len(blocks._prefixes) <= num_blocks
    assert (shared > 0) == (blocks._cache_blocks > 0)


def test_a_broken_cache_is_seen() -> None:
    def pool() -> BlockManager:
        blocks, table = BlockManager(num_blocks=4, block_size=1, cache_blocks=2), list[int]()
        blocks.admit(table, [5, 6], spare=0)
        computed(blocks, table, [5, 6])
        blocks.free(table)
        blocks.check_integrity([])
        return blocks

    known, unknown, many, both = pool(), pool(), pool(), pool()
    known._blank.append(known._kept.popitem()[0])
    unknown._prefixes.remove(max(unknown._kept))
    many._cache_blocks = 1
    both._blank.append(next(iter(both._kept)))
    for broken, message in ((known, "void but known"), (unknown, "kept but unknown"), (many, "2 of at most 1 kept")):
        with pytest.raises(EngineError, match=message):
            broken.check_integrity([])
    with pytest.raises(EngineError, match=r"doubled \[\d"):
        both.check_integrity([])
