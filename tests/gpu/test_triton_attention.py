"""Attention on the tensor cores: near its twin, and the same bits however a step is put together."""

import sys

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from batchgen.kernels.reference import native as twin
from batchgen.kernels.triton import StepShape, attention
from batchgen.kernels.triton.attention import Launch

pytestmark = pytest.mark.gpu

HEADS = [(16, 8, 128), (9, 3, 64), (32, 4, 128), (8, 8, 96), (7, 1, 64), (4, 2, 256), (20, 1, 128)]
Cache = tuple[torch.Tensor, torch.Tensor]


class Past:
    """Sequences of one length over a cache with permuted blocks, with outliers; blocks that none owns hold NaN."""

    def __init__(self, S: int, length: int, heads: tuple[int, int, int], seed: int = 0) -> None:
        """Queries for every position of every sequence: q [S, length, Hq, D]."""
        g = torch.Generator("cuda").manual_seed(seed)
        Hq, _, D = heads
        self.S, self.length = S, length
        width = -(-length // 32)
        blocks = S * width + 5
        order = torch.randperm(blocks, device="cuda", generator=g)[: S * width]
        self.tables = order.view(S, width).to(torch.int32)
        self.cache = self._part(blocks, order, heads, g), self._part(blocks, order, heads, g)
        self.cache[0][:] *= 2
        self.cache[1][..., 3] *= 50
        self.q = torch.randn(S, length, Hq, D, device="cuda", generator=g).to(torch.bfloat16)

    def _part(self, blocks: int, order: torch.Tensor, heads: tuple[int, int, int], g: torch.Generator) -> torch.Tensor:
        part = torch.full((blocks, heads[1], 32, heads[2]), torch.nan, device="cuda", dtype=torch.bfloat16)
        values = torch.randn(len(order), *part.shape[1:], device="cuda", generator=g).to(torch.bfloat16)
        values.view(self.S, -1, *part.shape[1:])[:, -1, :, (self.length - 1) % 32 + 1 :] = torch.nan  # past the end
        part[order] = values
        return part

    def run(self, spans: list[tuple[int, int, int]], launches: tuple[Launch, Launch] | None = None) -> torch.Tensor:
        """One step of spans (sequence, first position, end): bf16 [tokens, Hq * D]."""
        q = torch.cat([self.q[s, begin:end] for s, begin, end in spans])
        positions = torch.cat([torch.arange(begin, end) for _, begin, end in spans]).to("cuda", torch.int32)
        lengths = [end - begin for _, begin, end in spans]
        starts = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
        tables = self.tables[[s for s, *_ in spans]].contiguous()
        shape = StepShape(lengths.count(1), max(lengths), max(end for *_, end in spans))
        return attention(q, self.cache, tables, starts, positions, shape, launches=launches)

    def whole(self, s: int) -> torch.Tensor:
        """All positions of one sequence in one prefill."""
        return self.run([(s, 0, self.length)])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("heads", HEADS)
def test_it_is_near_its_twin(heads: tuple[int, int, int]) -> None:
    past = Past(1, 600, heads)
    starts = torch.tensor([0, 600], device="cuda", dtype=torch.int32)
    positions = torch.arange(600, device="cuda", dtype=torch.int32)
    expected = twin.attention(past.q[0], past.cache, past.tables, starts, positions).float()
    assert (past.whole(0).float() - expected).norm() / expected.norm() < 4e-3


@pytest.mark.parametrize("heads", HEADS)
def test_decode_at_every_position_equals_prefill(heads: tuple[int, int, int]) -> None:
    past = Past(1, 700, heads)
    assert same(past.run([(0, at, at + 1) for at in range(700)]), past.whole(0))


def test_every_batch_size_of_decode_equals_the_row_alone() -> None:
    past = Past(64, 530, (16, 8, 128))
    spans = [(s, at := 530 - 7 * s - 1, at + 1) for s in range(64)]
    alone = torch.cat([past.run([span]) for span in spans])
    for size in range(1, 65):
        assert same(past.run(spans[:size]), alone[:size]), size


@pytest.mark.parametrize("cut", [1, 2, 31, 32, 63, 64, 65, 255, 256, 257, 511, 699])
def test_chunks_cut_anywhere_equal_the_whole(cut: int) -> None:
    past = Past(1, 700, (16, 8, 128))
    parts = [past.run([(0, 0, cut)]), past.run([(0, cut, 700)])]
    assert same(torch.cat(parts), past.whole(0))


def test_a_mixed_step_equals_each_part_alone() -> None:
    past = Past(5, 700, (16, 8, 128))
    spans = [(0, 699, 700), (1, 0, 650), (2, 3, 4), (3, 300, 700), (4, 650, 651)]
    together = past.run(spans)
    assert same(together, torch.cat([past.whole(s)[begin:end] for s, begin, end in spans]))


def test_no_launch_can_be_seen() -> None:
    past = Past(1, 700, (16, 8, 128))
    whole = past.whole(0)
    singles = [(0, at, at + 1) for at in range(700)]
    for rows, warps, stages in [(16, 1, 2), (16, 4, 3), (32, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3)]:
        launches = (Launch(16, min(warps, 4), stages), Launch(rows, warps, stages))
        assert same(past.run([(0, 0, 700)], launches), whole), (rows, warps, stages)
        assert same(past.run(singles, launches), whole), (rows, warps, stages)


def test_permuted_blocks_hold_the_same_sequence() -> None:
    past = Past(1, 700, (16, 8, 128))
    whole = past.whole(0)
    order = torch.randperm(len(past.cache[0]), device="cuda")
    past.cache = past.cache[0][order], past.cache[1][order]
    past.tables = order.argsort()[past.tables.long()].to(torch.int32)
    assert same(past.whole(0), whole)


def test_a_second_launch_and_a_graph_give_the_same_bytes() -> None:
    past = Past(4, 700, (16, 8, 128))
    spans = [(s, 699, 700) for s in range(4)]
    first = past.run(spans)
    assert same(past.run(spans), first)
    q, starts = past.q[:, 699].contiguous(), torch.arange(5, device="cuda", dtype=torch.int32)
    positions = torch.full((4,), 699, device="cuda", dtype=torch.int32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # for contexts of up to 4096 positions
        out = attention(q, past.cache, past.tables, starts, positions, StepShape(4, 1, 4096))
    graph.replay()
    assert same(out, first)


def test_padding_reads_nothing_and_changes_nothing() -> None:
    past = Past(2, 300, (16, 8, 128))
    q = past.q[[0, 1, 1], 299].contiguous()
    tables = torch.cat([past.tables, torch.full_like(past.tables[:1], 1 << 30)])
    positions = torch.tensor([299, 299, -1], device="cuda", dtype=torch.int32)
    starts = torch.arange(4, device="cuda", dtype=torch.int32)
    for longest in (300, 2000):
        out = attention(q, past.cache, tables, starts, positions, StepShape(3, 1, longest))
        assert same(out[:2], past.run([(0, 299, 300), (1, 299, 300)]))
        assert not out[2].any()


def test_another_split_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counter-test: a split count that follows the batch is the classic fault."""
    past = Past(1, 700, (16, 8, 128))
    whole = past.whole(0)
    monkeypatch.setattr(sys.modules[Launch.__module__], "SPLIT", 128)
    assert not same(past.whole(0), whole)


def test_a_changed_key_is_seen() -> None:
    """Counter-test: one key of the past changes every later row of its group, and no earlier one."""
    past = Past(1, 700, (16, 8, 128))
    whole = past.whole(0).view(700, 16, 128)
    past.cache[1][past.tables[0, 400 // 32], 2, 400 % 32, 5] += 30
    rows = (past.whole(0).view(700, 16, 128) != whole).flatten(1).any(1)
    assert not rows[:400].any()
    assert rows[400:].sum() > 100
