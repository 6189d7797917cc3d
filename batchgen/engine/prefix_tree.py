"""Which block of the KV cache holds which tokens, after which tokens. Plain integers."""

from collections.abc import Iterator, Sequence

from batchgen.errors import EngineError

Key = tuple[int, ...]


class _Node:
    """One block: the tokens in it are its key under its parent, the tokens before it are the keys on the way there."""

    __slots__ = ("block", "children", "key", "parent")

    def __init__(self, parent: "_Node | None", key: Key, block: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[Key, _Node] = {}


class PrefixTree:
    """Full blocks of `block_size` positions, found by all token ids up to their end.

    Keys and values of a position are a function of the tokens up to it. Token ids are compared themselves, never a
    hash alone, so that no two prefixes can be taken for each other.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node(None, (), -1)
        self._nodes: dict[int, _Node] = {}  # by block

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def find(self, token_ids: Sequence[int], most: int) -> list[int]:
        """The blocks of the longest known prefix of `token_ids`, at most `most` of them."""
        found: list[int] = []
        node = self._root
        while len(found) < most and (child := node.children.get(self._key(token_ids, len(found)))):
            found.append(child.block)
            node = child
        return found

    def add(self, table: Sequence[int], token_ids: Sequence[int], start: int, stop: int) -> None:
        """Learn the blocks of `table` that positions ``start <= p < stop`` complete.

        A block whose content is known in another block stays unknown; what follows it is learned all the same.
        """
        first = start // self._block_size
        node = self._nodes.get(table[first - 1]) if first else self._root
        if node is None:  # the block before is a double, or what it followed was forgotten: go by the tokens
            first, node = 0, self._root
        for i in range(first, stop // self._block_size):
            key = self._key(token_ids, i)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = self._nodes[table[i]] = _Node(node, key, table[i])
            node = child

    def path(self, block: int) -> list[int]:
        """`block`, the block that it follows, and so on up to the first."""
        found: list[int] = []
        node: _Node | None = self._nodes[block]
        while node is not None and node is not self._root:
            found.append(node.block)
            node = node.parent
        return found

    def remove(self, block: int) -> None:
        """Forget `block` and all that follow it, for nothing leads to them any more."""
        top = self._nodes[block]
        assert top.parent is not None, "the root has no block"
        del top.parent.children[top.key]
        for node in _below(top):
            del self._nodes[node.block]

    def check_integrity(self) -> None:
        """Raise EngineError unless the tree leads to each of its blocks once, by a full block's tokens."""
        reached = [node for node in _below(self._root) if node is not self._root]
        whole = all(
            node.parent is not None and node.parent.children.get(node.key) is node and len(node.key) == self._block_size
            for node in reached
        )
        if not whole or len(reached) != len(self._nodes) or {n.block: n for n in reached} != self._nodes:
            raise EngineError("the tree of known prefixes and its blocks are at odds")

    def _key(self, token_ids: Sequence[int], i: int) -> Key:
        return tuple(token_ids[i * self._block_size : (i + 1) * self._block_size])


def _below(top: _Node) -> Iterator[_Node]:
    """`top` and every node under it."""
    stack = [top]
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node
