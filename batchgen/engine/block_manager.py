"""Who owns which block of the KV cache. Plain integers: the blocks themselves live with the runner."""

from collections import Counter
from collections.abc import Iterable, Sequence

from batchgen.engine.prefix_tree import PrefixTree
from batchgen.errors import EngineError


class BlockManager:
    """A pool of `num_blocks` blocks of `block_size` positions each.

    A block table is a list of block ids: position p of its owner lies in ``table[p // block_size]``.
    A full block may be in several tables whose tokens agree up to its end; nobody writes to it again. At most
    `cache_blocks` free blocks keep their content, to be found by the next owner with the same tokens; 0 means that
    nothing is shared at all. The bound is there because a page that nobody has touched takes no memory.
    """

    def __init__(self, num_blocks: int, block_size: int, cache_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.peak_used = 0
        self._cache_blocks = cache_blocks
        self._prefixes = PrefixTree(block_size)
        self._owners = [0] * num_blocks  # tables that hold the block
        self._blank = list(range(num_blocks))[::-1]  # free, content void
        self._kept: dict[int, None] = {}  # free, content known; longest unused first

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._kept)

    def blocks_for(self, num_positions: int) -> int:
        """How many blocks hold `num_positions` positions."""
        return -(-num_positions // self.block_size)

    def admit(self, table: list[int], token_ids: Sequence[int], spare: int, reusable: int | None = None) -> int | None:
        """Fill an empty `table` with blocks for all of `token_ids`, known ones first; how many positions those hold.

        Of those only the first `reusable` positions count, None: all but the last. Later ones must be computed, for
        their logits. Gives None, with nothing changed, unless `spare` free blocks are left.
        """
        reusable = len(token_ids) - 1 if reusable is None else reusable
        known = self._prefixes.find(token_ids, reusable // self.block_size)
        unowned = sum(not self._owners[block] for block in known)
        if self.blocks_for(len(token_ids)) - len(known) + unowned + spare > self.num_free:
            return None
        for block in known:
            self._kept.pop(block, None)
            self._owners[block] += 1
        table.extend(known)
        self.grow(table, len(token_ids))
        return len(known) * self.block_size

    def grow(self, table: list[int], num_positions: int) -> bool:
        """Extend `table` to hold `num_positions` positions; False, with nothing changed, if blocks run out."""
        missing = self.blocks_for(num_positions) - len(table)
        if missing > self.num_free:
            return False
        table.extend(self._take() for _ in range(missing))
        self.peak_used = max(self.peak_used, self.num_blocks - self.num_free)
        return True

    def register(self, table: Sequence[int], token_ids: Sequence[int], start: int, stop: int) -> None:
        """Positions ``start <= p < stop`` are in the step that comes: the blocks that they complete may be shared.

        Within that step already, for each layer stores keys and values of all tokens before any of them attends. If
        the step fails, `forget`.
        """
        if self._cache_blocks:
            self._prefixes.add(table, token_ids, start, stop)

    def free(self, table: list[int]) -> None:
        """Take back every block of `table`, which is left empty."""
        for block in table:
            self._owners[block] -= 1
        free = [block for block in reversed(table) if not self._owners[block]]
        known = [block for block in reversed(table) if block in self._prefixes]
        # Later blocks first, and with them whatever leads to them: thus no block outlives the one that it follows.
        for block in self._prefixes.path(known[0]) if known else ():
            if not self._owners[block]:
                self._kept.pop(block, None)
                self._kept[block] = None
        for block in free:
            if block not in self._kept:
                self._discard(block)
        table.clear()
        while len(self._kept) > self._cache_blocks:
            self._evict()

    def forget(self) -> None:
        """No content is known any more. Tables stay as they are."""
        while self._kept:
            self._discard(self._kept.popitem()[0])
        self._prefixes = PrefixTree(self.block_size)

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Raise EngineError unless each block of the pool is free once, or in as many of `tables` as it has owners.

        `tables` are those of all owners.
        """
        free, owned = Counter([*self._blank, *self._kept]), Counter(block for table in tables for block in table)
        pool = range(self.num_blocks)
        lost = [b for b in pool if owned[b] < self._owners[b] or not free[b] + owned[b]]
        doubled = [b for b in pool if owned[b] > self._owners[b] or free[b] + bool(owned[b]) > 1]
        foreign = sorted(b for b in {*free, *owned} if b not in pool)
        if lost or doubled or foreign:
            raise EngineError(f"KV blocks are not in one place each: lost {lost}, doubled {doubled}, foreign {foreign}")
        self._prefixes.check_integrity()
        blank = [block for block in self._blank if block in self._prefixes]
        unknown = [block for block in self._kept if block not in self._prefixes]
        if blank or unknown or len(self._kept) > self._cache_blocks:
            kept = f"{len(self._kept)} of at most {self._cache_blocks} kept"
            raise EngineError(f"free KV blocks: {blank} void but known, {unknown} kept but unknown, {kept}")

    def _take(self) -> int:
        if not self._blank:
            self._evict()
        block = self._blank.pop()
        self._owners[block] = 1
        return block

    def _evict(self) -> None:
        """The free block that was unused longest loses its content. What follows it has owners, or is gone already."""
        block = next(iter(self._kept))
        del self._kept[block]
        self._prefixes.remove(block)
        self._discard(block)

    def _discard(self, block: int) -> None:
        """A block that nobody owns and nobody can find: the one way back to the blank ones."""
        self._blank.append(block)
