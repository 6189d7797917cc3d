"""The tree of known prefixes against a plain dictionary of whole prefixes, and what it must never confuse."""

import random

import pytest

from batchgen.engine.prefix_tree import PrefixTree, _Node
from batchgen.errors import EngineError

SAME_HASH = (0, 2**61 - 1)  # integers that Python hashes alike


def test_a_prefix_is_found_block_by_block_up_to_where_it_is_known() -> None:
    tree = PrefixTree(2)
    tree.add([7, 3, 5], [1, 2, 3, 4, 5, 6], 0, 5)
    assert tree.find([1, 2, 3, 4, 5, 6, 7], most=9) == [7, 3]  # position 5 was not in yet
    assert tree.find([1, 2, 3, 4], most=1) == [7]
    assert tree.find([1, 2, 9, 9], most=9) == [7]
    assert tree.find([1, 9, 3, 4], most=9) == []
    assert tree.find([1], most=9) == []
    tree.add([7, 3, 5], [1, 2, 3, 4, 5, 6], 5, 6)
    assert tree.find([1, 2, 3, 4, 5, 6, 7], most=9) == [7, 3, 5]
    assert (len(tree), 5 in tree, 6 in tree) == (3, True, False)


def test_the_same_tokens_after_others_are_another_block() -> None:
    tree = PrefixTree(2)
    tree.add([0, 1], [1, 1, 5, 5], 0, 4)
    tree.add([2, 3], [2, 2, 5, 5], 0, 4)
    assert tree.find([1, 1, 5, 5], most=2) == [0, 1]
    assert tree.find([2, 2, 5, 5], most=2) == [2, 3]
    assert tree.find([5, 5], most=2) == []


def test_tokens_of_one_hash_are_told_apart() -> None:
    assert hash(SAME_HASH[0]) == hash(SAME_HASH[1])
    tree = PrefixTree(1)
    tree.add([4], [SAME_HASH[0]], 0, 1)
    assert tree.find([SAME_HASH[1]], most=1) == []
    tree.add([5], [SAME_HASH[1]], 0, 1)
    assert (tree.find([SAME_HASH[0]], most=1), tree.find([SAME_HASH[1]], most=1)) == ([4], [5])


def test_a_double_stays_unknown_and_what_follows_it_is_learned() -> None:
    tree = PrefixTree(1)
    tree.add([0, 1], [8, 9], 0, 2)
    tree.add([2, 3, 4], [8, 9, 7], 0, 3)
    assert tree.find([8, 9, 7], most=3) == [0, 1, 4]
    tree.add([2, 3, 4, 5], [8, 9, 7, 6], 3, 4)
    tree.add([6, 7, 8], [8, 9, 5], 0, 1)
    tree.add([6, 7, 8], [8, 9, 5], 2, 3)  # the block before is a double
    assert tree.find([8, 9, 5], most=3) == [0, 1, 8]
    assert sorted(block for block in range(9) if block in tree) == [0, 1, 4, 5, 8]
    tree.check_integrity()


def test_what_follows_a_forgotten_block_is_forgotten_and_can_be_learned_anew() -> None:
    tree = PrefixTree(1)
    tree.add([0, 1, 2], [5, 6, 7], 0, 3)
    tree.add([0, 1, 3], [5, 6, 8], 0, 3)
    tree.add([9], [4], 0, 1)
    assert tree.path(3) == [3, 1, 0]
    tree.remove(1)
    assert [block for block in range(10) if block in tree] == [0, 9]
    assert (tree.find([5, 6, 7], most=3), tree.find([4], most=1)) == ([0], [9])
    tree.add([0, 1, 2, 4], [5, 6, 7, 7], 3, 4)
    assert tree.find([5, 6, 7, 7], most=4) == [0, 1, 2, 4]
    tree.check_integrity()


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_against_a_dictionary_of_whole_prefixes(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 3)
    tree, plain, next_block = PrefixTree(size), dict[tuple[int, ...], int](), 0

    def found(ids: list[int], most: int) -> list[int]:
        blocks: list[int] = []
        while len(blocks) < min(most, len(ids) // size):
            if (block := plain.get(tuple(ids[: (len(blocks) + 1) * size]))) is None:
                break
            blocks.append(block)
        return blocks

    for _ in range(60):
        ids = [rng.choice((*SAME_HASH, 5)) for _ in range(rng.randint(1, 4 * size + 1))]
        most = rng.randint(0, 5)
        table = tree.find(ids, most)
        assert table == found(ids, most)
        start = len(table) * size
        if rng.random() < 0.3 and table:  # a table that shares nothing with those before
            table, start = [], 0
        missing = -(-len(ids) // size) - len(table)
        table = table + list(range(next_block, next_block + missing))
        next_block += missing
        while start < len(ids):
            stop = rng.randint(start + 1, len(ids))
            tree.add(table, ids, start, stop)
            start = stop
        for i in range(len(ids) // size):
            plain.setdefault(tuple(ids[: (i + 1) * size]), table[i])
        if plain and rng.random() < 0.4:
            prefix, block = rng.choice(list(plain.items()))
            assert tree.path(block)[::-1] == found(list(prefix), 9)
            tree.remove(block)
            plain = {p: b for p, b in plain.items() if p[: len(prefix)] != prefix}
        tree.check_integrity()
        assert len(tree) == len(plain)
        assert all(block in tree for block in plain.values())


def test_a_broken_tree_is_seen() -> None:
    def tree() -> PrefixTree:
        made = PrefixTree(2)
        made.add([3, 4], [1, 2, 3, 4], 0, 4)
        made.check_integrity()
        return made

    unreachable, short, moved = tree(), tree(), tree()
    unreachable._root.children.clear()
    top = short._root.children[1, 2]
    top.children[9,] = short._nodes[7] = _Node(top, (9,), 7)
    moved._nodes[3].block = 5
    for broken in (unreachable, short, moved):
        with pytest.raises(EngineError, match="at odds"):
            broken.check_integrity()
