"""Who owns which block of the KV cache. Plain integers: the blocks themselves live with the runner."""

from collections import Counter
from collections.abc import Iterable

from batchgen.errors import EngineError


class BlockManager:
    """A pool of `num_blocks` blocks of `block_size` positions each.

    A block table is a list of block ids: position p of its owner lies in ``table[p // block_size]``.
    Every block is at any time either free or in exactly one table.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.peak_used = 0
        self._free = list(range(num_blocks))[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_positions: int) -> int:
        """How many blocks hold `num_positions` positions."""
        return -(-num_positions // self.block_size)

    def grow(self, table: list[int], num_positions: int) -> bool:
        """Extend `table` to hold `num_positions` positions; False, with nothing changed, if blocks run out."""
        missing = self.blocks_for(num_positions) - len(table)
        if missing > self.num_free:
            return False
        table.extend(self._free.pop() for _ in range(missing))
        self.peak_used = max(self.peak_used, self.num_blocks - self.num_free)
        return True

    def free(self, table: list[int]) -> None:
        """Take back every block of `table`, which is left empty."""
        self._free.extend(reversed(table))
        table.clear()

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Raise EngineError unless all owners' `tables` and the free blocks hold each block of the pool once."""
        places = Counter(self._free)
        for table in tables:
            places.update(table)
        lost = sorted(set(range(self.num_blocks)) - set(places))
        doubled = sorted(block for block, count in places.items() if count > 1)
        foreign = sorted(block for block in places if not 0 <= block < self.num_blocks)
        if lost or doubled or foreign:
            raise EngineError(f"KV blocks are not in one place each: lost {lost}, doubled {doubled}, foreign {foreign}")
