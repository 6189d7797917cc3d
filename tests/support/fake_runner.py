"""A runner without a model, whose next token is a hash of everything that it must not get wrong.

It keeps a paged cache of its own: the cell of a position is a hash of the cell before it, the token and the position,
written and read through the block table alone. A draw hashes all cells of the sequence, the seed, the output counts
and the position. A lost or doubled token, a wrong position, a stale or wrongly shared block therefore changes the
output, and `PoisoningBlocks` makes every read of a block without content and every second write to a cell fail.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from batchgen.engine.batch import Chunk, Sampled
from batchgen.engine.block_manager import BlockManager
from batchgen.engine.matcher import Matcher
from batchgen.records import Request, StructuredOutputs

PIECES = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b" ",
    b"c",
    b"abc",
    b"\xe2",
    b"\x82",
    b"\xac",
    "€".encode(),
    b"a\xe2",
    b"",
    b"<eos>",
]
VOCAB_SIZE = len(PIECES)
EOS = VOCAB_SIZE - 1
POISON = -1


class FakeDecoder:
    def __init__(self, skip_special_tokens: bool) -> None:
        self._skipped = {EOS} if skip_special_tokens else set()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(b"" if token_id in self._skipped else PIECES[token_id])

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class FakeDetokenizer:
    def decoder(self, *, skip_special_tokens: bool) -> FakeDecoder:
        return FakeDecoder(skip_special_tokens)

    def matcher(self, outputs: StructuredOutputs, vocab_size: int) -> Matcher:
        raise NotImplementedError("a hash of everything has no grammar")


def mix(*values: int) -> int:
    return hash(values) & (2**60 - 1)


def write_cell(before: int, token_id: int, position: int) -> int:
    return mix(before, token_id, position)


def draw(cells: Sequence[int], request: Request, counts: Mapping[int, int], banned: Iterable[int]) -> Sampled:
    state = mix(*cells, request.seed, *(x for item in sorted(counts.items()) for x in item))
    token_id = next(i for i in (mix(state, k) % VOCAB_SIZE for k in count()) if i not in banned)
    top = range(request.params.logprobs or 0)
    return Sampled(
        token_id=token_id,
        logprob=-(state % 4096) / 4096,
        top_ids=tuple(mix(state, k) % VOCAB_SIZE for k in top),
        top_values=tuple(-float(k + state % 7) for k in top),
        finite=True,
    )


class FakeRunner:
    """`not_finite_at` maps a request's seed to the output position at which its logits go bad."""

    def __init__(self, num_blocks: int, block_size: int, not_finite_at: Mapping[int, int] | None = None) -> None:
        self._block_size = block_size
        self._cells = [POISON] * (num_blocks * block_size)
        self._not_finite_at = not_finite_at or {}

    def step(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        assert chunks, "an empty step"
        for chunk in chunks:
            assert chunk.length > 0
            for position in range(chunk.start, chunk.stop):
                before = self._read(chunk, position - 1) if position else 0
                token_id = chunk.sequence.token_ids[position]
                self._write(chunk, position, write_cell(before, token_id, position))
        return [self._draw(chunk) for chunk in chunks if chunk.samples]

    def poison(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            start = block * self._block_size
            self._cells[start : start + self._block_size] = [POISON] * self._block_size

    def _draw(self, chunk: Chunk) -> Sampled:
        sequence = chunk.sequence
        cells = [self._read(chunk, position) for position in range(chunk.stop)]
        sampled = draw(cells, sequence.request, sequence.output_counts, sequence.banned_token_ids_now)
        bad = self._not_finite_at.get(sequence.request.seed) == sequence.num_output
        return sampled._replace(finite=False) if bad else sampled

    def _read(self, chunk: Chunk, position: int) -> int:
        cell = self._cells[self._slot(chunk, position)]
        assert cell != POISON, f"position {position} of {chunk.sequence.request.row_key} was freed or never written"
        return cell

    def _write(self, chunk: Chunk, position: int, cell: int) -> None:
        slot = self._slot(chunk, position)
        assert self._cells[slot] == POISON, f"position {position} of {chunk.sequence.request.row_key}: written before"
        self._cells[slot] = cell

    def _slot(self, chunk: Chunk, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return chunk.sequence.block_table[block] * self._block_size + offset


class PoisoningBlocks(BlockManager):
    """Blocks whose contents are poisoned in `runner` when the cache no longer knows them."""

    def __init__(self, runner: FakeRunner, num_blocks: int, block_size: int, cache_blocks: int) -> None:
        super().__init__(num_blocks, block_size, cache_blocks)
        self._runner = runner

    def _discard(self, block: int) -> None:
        self._runner.poison([block])
        super()._discard(block)
