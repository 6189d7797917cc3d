"""Prefix caches that hand out the wrong block."""

from collections.abc import Sequence

import pytest

from batchgen.engine.prefix_tree import PrefixTree


def without_the_parent(patch: pytest.MonkeyPatch) -> None:
    """A block is found by its own tokens, whatever came before them."""

    def find(self: PrefixTree, token_ids: Sequence[int], most: int) -> list[int]:
        by_key = {node.key: block for block, node in self._nodes.items()}
        keys = [self._key(token_ids, i) for i in range(most)]
        return [by_key[key] for i, key in enumerate(keys) if all(k in by_key for k in keys[: i + 1])]

    patch.setattr(PrefixTree, "find", find)


def one_token_short(patch: pytest.MonkeyPatch) -> None:
    """A block is found by all its tokens but the last."""
    right = PrefixTree._key
    patch.setattr(PrefixTree, "_key", lambda self, token_ids, i: right(self, token_ids, i)[:-1])
    patch.setattr(PrefixTree, "check_integrity", lambda self: None)
