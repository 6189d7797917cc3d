"""Routing, experts and their sum on the tensor cores: near their twins; a row's bits follow from the row alone."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from batchgen.errors import EngineError
from batchgen.kernels.reference import native as twin
from batchgen.kernels.routing import Pairs, Routing
from batchgen.kernels.triton import combine, expert_proof, experts, prove_experts, route
from batchgen.kernels.triton.expert_proof import judged, proof_pairs
from batchgen.kernels.triton.experts import RULES, Tiles, choose, run_experts
from batchgen.kernels.triton.grouped import Cut
from batchgen.kernels.triton.pairs import sort_pairs
from batchgen.kernels.triton.proof import bits

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
BF16 = torch.bfloat16
# Slots, H, inner size, k: Qwen3-30B-A3B's width and a rank's share of its experts; sizes that fill no block.
SHAPES = [(32, 2048, 768, 8), (5, 80, 48, 3), (300, 64, 16, 2)]
SOFTMAX, SIGMOID = Routing(8, "softmax", True, 1.0), Routing(3, "sigmoid", True, 2.5)
EVERY_RULE = [rule.tiles for rule in RULES]
OTHERS = [
    Tiles(16, Cut(32, 64, 2, 4), Cut(16, 128, 2, 3)),
    Tiles(32, Cut(128, 64, 8, 3, programs=1), Cut(64, 256, 4, 2)),
    Tiles(64, Cut(64, 64, 4, 3, programs=2), Cut(256, 64, 4, 2, programs=1, is_flat=True)),
    Tiles(128, Cut(64, 64, 4, 3), Cut(128, 64, 8, 3, programs=2)),
]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(bits(a), bits(b))


def weights_of(S: int, H: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up, and down, with outlier columns, so that another order of additions shows."""
    generator = torch.Generator(DEVICE).manual_seed(S)
    gate_up = torch.randn(S, 2 * inner, H, generator=generator, device=DEVICE, dtype=BF16) * 0.05
    down = torch.randn(S, H, inner, generator=generator, device=DEVICE, dtype=BF16) * 0.05
    gate_up[:, :, 5::61] *= 20
    down[:, :, 3::29] *= 20
    return gate_up, down


def first(pairs: Pairs, count: int) -> Pairs:
    return Pairs(*(part[:count].clone() for part in pairs))


@pytest.mark.parametrize(("S", "H", "inner", "k"), SHAPES)
def test_experts_are_near_their_twin(S: int, H: int, inner: int, k: int) -> None:
    gate_up, down = weights_of(S, H, inner)
    x, pairs = proof_pairs(70, S, k, gate_up)
    there = pairs.slots >= 0
    y, expected = (op(x, pairs, gate_up, down)[there].double() for op in (experts, twin.experts))
    assert ((y - expected).norm(dim=1) / expected.norm(dim=1)).max() < 3e-2
    assert (y - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize(("S", "H", "inner", "k"), SHAPES)
def test_experts_at_every_number_of_tokens(S: int, H: int, inner: int, k: int) -> None:
    """Slots with none and with one pair are among them: few pairs leave most slots so."""
    gate_up, down = weights_of(S, H, inner)
    x, pairs = proof_pairs(1024, S, k, gate_up)
    expected, there = judged(x, pairs, gate_up, down), pairs.slots >= 0
    counts = torch.bincount(pairs.slots[there], minlength=S)
    assert (counts[S - 2 :].tolist(), int(counts.max()) > 2 * 1024 * k // S) == ([0, 1], True)
    wrong = []
    for M in (*range(1, 257), *range(257, 1024, 85), 1024):
        y, some = experts(x[:M].clone(), first(pairs, M * k), gate_up, down), there[: M * k]
        if not same(y[some], expected[: M * k][some]):
            wrong.append(M)
    assert wrong == []


def test_a_pair_alone_and_pairs_in_any_order() -> None:
    S, H, inner, k = SHAPES[0]
    gate_up, down = weights_of(S, H, inner)
    x, pairs = proof_pairs(200, S, k, gate_up)
    y, there = experts(x, pairs, gate_up, down), pairs.slots >= 0
    for p in there.nonzero()[::37, 0].tolist():
        row = int(pairs.rows[p])
        one = Pairs(torch.zeros(1, dtype=torch.int32, device=DEVICE), pairs.slots[p : p + 1].clone())
        assert same(experts(x[row : row + 1].clone(), one, gate_up, down), y[p : p + 1])
    for _ in range(3):
        order = torch.randperm(len(there), device=DEVICE)
        shuffled = Pairs(pairs.rows[order].contiguous(), pairs.slots[order].contiguous())
        assert same(experts(x, shuffled, gate_up, down)[there[order]], y[order][there[order]])
    moved = torch.randperm(S, device=DEVICE)
    renamed = Pairs(pairs.rows, torch.where(there, moved.argsort()[pairs.slots.long()], -1).int())
    assert same(experts(x, renamed, gate_up[moved], down[moved])[there], y[there])


@pytest.mark.parametrize("tiles", [*EVERY_RULE, *OTHERS])
def test_no_tile_can_be_seen(tiles: Tiles) -> None:
    for S, H, inner, k in SHAPES:
        gate_up, down = weights_of(S, H, inner)
        for M in (1, 9, 150, 700):
            x, pairs = proof_pairs(M, S, k, gate_up)
            expected, there = judged(x, pairs, gate_up, down), pairs.slots >= 0
            assert same(run_experts(x, pairs, gate_up, down, tiles)[there], expected[there]), (S, M)


def test_what_others_hold_cannot_be_seen() -> None:
    """NaN in rows of other pairs, and in rows that no pair wants."""
    S, H, inner, k = SHAPES[0]
    gate_up, down = weights_of(S, H, inner)
    x, pairs = proof_pairs(64, S, k, gate_up)
    y = experts(x, pairs, gate_up, down)
    x[::3] = torch.nan
    clean = (pairs.slots >= 0) & (pairs.rows % 3 != 0)
    for tiles in EVERY_RULE:
        assert same(run_experts(x, pairs, gate_up, down, tiles)[clean], y[clean])


def test_no_pairs_and_none_with_a_slot() -> None:
    gate_up, down = weights_of(*SHAPES[1][:3])
    x, pairs = proof_pairs(4, *SHAPES[1][::3], gate_up)
    assert experts(x[:0], first(pairs, 0), gate_up, down).shape == (0, SHAPES[1][1])
    nobody = Pairs(pairs.rows, torch.full_like(pairs.slots, -1))
    experts(x, nobody, gate_up, down)
    assert int(sort_pairs(nobody, len(down), 16, x).used) == 0


@pytest.mark.parametrize("P", [1, 8, 1000, 4096, 4097, 40_000, 131_072])
def test_pairs_are_sorted(P: int) -> None:
    for S in (1, 7, 128, 300):
        slots = (torch.rand(P, device=DEVICE).square() * (S + 1)).int() - 1
        rows = torch.randint(0, 5000, (P,), device=DEVICE, dtype=torch.int32)
        x = torch.empty(17, 16, device=DEVICE)
        for m in (16, 128):
            found = sort_pairs(Pairs(rows, slots), S, m, x)
            wanted = torch.argsort(torch.where(slots < 0, S, slots), stable=True)[: int((slots >= 0).sum())]
            assert torch.equal(found.order[: len(wanted)].long(), wanted)
            assert torch.equal(found.rows[: len(wanted)], rows[wanted])
            tiles, at = [], 0
            for slot, count in enumerate(torch.bincount(slots[slots >= 0], minlength=S).tolist()):
                tiles += [[slot, at + i, at + min(count, i + m)] for i in range(0, count, m)]
                at += count
            assert int(found.used) == len(tiles) <= len(found.tiles)
            assert found.tiles[: len(tiles)].tolist() == tiles


def test_a_graph_follows_its_inputs() -> None:
    """The grid is that of the capture, the tiles are those of the replay."""
    S, H, inner, k = SHAPES[0]
    gate_up, down = weights_of(S, H, inner)
    logits = [torch.randn(48, S, device=DEVICE) * scale for scale in (1.0, 3.0)]
    x = torch.randn(48, H, device=DEVICE, dtype=BF16)
    rows = torch.arange(48, device=DEVICE, dtype=torch.int32).repeat_interleave(k)
    held = logits[0].clone()

    def step() -> torch.Tensor:
        ids, weights = route(held, None, SOFTMAX)
        return combine(experts(x, Pairs(rows, ids.view(-1)), gate_up, down).view(48, k, H), weights, None)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    found = []
    for given in logits:
        held.copy_(given)
        graph.replay()
        found.append(y.clone())
        assert same(found[-1], step())
    assert not same(*found)


def logits_of(T: int, E: int) -> torch.Tensor:
    """Some rows are full of ties, of -0 beside 0, of large values."""
    logits = torch.randn(T, E, device=DEVICE) * torch.logspace(-2, 1.5, T, device=DEVICE)[:, None]
    logits[0], logits[1, ::2], logits[1, 1::2] = 0.0, 0.0, -0.0
    logits[2] = logits[2].sign()
    return logits


@pytest.mark.parametrize("routing", [SOFTMAX, replace(SOFTMAX, norm_topk=False), SIGMOID, replace(SIGMOID, top_k=1)])
@pytest.mark.parametrize("E", [8, 9, 128, 384])
def test_route(E: int, routing: Routing) -> None:
    logits = logits_of(700, E)
    bias = torch.randn(E, device=DEVICE) * 0.1 if routing.scoring == "sigmoid" else None
    ids, weights = route(logits, bias, routing)
    expected_ids, expected = twin.route(logits, bias, routing)
    is_same = (ids == expected_ids).all(1)
    assert is_same.float().mean() > (0.97 if bias is not None else 0.9999)  # sigmoids may differ in the last bit
    torch.testing.assert_close(weights[is_same], expected[is_same], rtol=2e-5, atol=1e-30)
    assert (ids.diff() > 0).all()
    for row in (*range(9), 100, 699):  # alone, and at another alignment
        alone = route(logits[row : row + 1], bias, routing)
        assert torch.equal(alone[0], ids[row : row + 1])
        assert same(alone[1], weights[row : row + 1])
    positions = torch.arange(700, device=DEVICE, dtype=torch.int32) % 5 - 1
    padded, _ = route(logits, bias, routing, positions)
    assert torch.equal(padded, ids.masked_fill((positions < 0)[:, None], -1))


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(3, 20, device=DEVICE)
    logits[1, [3, 19, 11]], logits[2, 0], logits[2, 7] = 1.0, -1.0, torch.nan
    ids, _ = route(logits, None, replace(SOFTMAX, top_k=4))
    assert ids.tolist() == [[0, 1, 2, 3], [0, 3, 11, 19], [1, 2, 3, 7]]


@pytest.mark.parametrize(("k", "H"), [(8, 2048), (1, 1000), (6, 4096)])
@pytest.mark.parametrize("is_shared", [True, False])
def test_combine(k: int, H: int, is_shared: bool) -> None:
    rows = torch.randn(300, k, H, device=DEVICE, dtype=BF16) * torch.logspace(-2, 2, k, device=DEVICE)[:, None].to(BF16)
    weights = torch.rand(300, k, device=DEVICE)
    shared = torch.randn(300, H, device=DEVICE, dtype=BF16) if is_shared else None
    y = combine(rows, weights, shared)
    assert same(y, twin.combine(rows, weights, shared))
    for T in (1, 2, 16, 17, 100):
        assert same(combine(rows[:T], weights[:T], None if shared is None else shared[:T]), y[:T])
    if k > 1:  # counter: in another order it is another sum
        assert not same(combine(rows.flip(1).contiguous(), weights.flip(1).contiguous(), shared), y)


def test_the_proof_holds() -> None:
    for S, H, inner, k in SHAPES:
        assert prove_experts(*weights_of(S, H, inner), k, [*range(1, 40), 256, 2048]) == 42


def test_counter_a_split_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(x: torch.Tensor, pairs: Pairs, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        half = down.shape[2] // 2
        zero = torch.zeros_like(down)
        parts = [
            run_experts(x, pairs, gate_up, torch.cat(ends, 2), choose(len(pairs.slots), len(down))).float()
            for ends in (
                (down[..., :half], zero[..., half:]),
                (zero[..., :half], down[..., half:]),
            )
        ]
        return (parts[0] + parts[1]).to(BF16)

    monkeypatch.setattr(expert_proof, "experts", split)
    with pytest.raises(EngineError, match=r"experts of .* give other bits for 8 tokens than plain products"):
        prove_experts(*weights_of(*SHAPES[0][:3]), 8, [8, 64])


def test_wrong_operands_are_refused() -> None:
    gate_up, down = weights_of(*SHAPES[1][:3])
    x, pairs = proof_pairs(4, 5, 3, gate_up)
    with pytest.raises(EngineError, match="the pairs' slots is"):
        experts(x, Pairs(pairs.rows, pairs.slots.long()), gate_up, down)
    with pytest.raises(EngineError, match="the experts' down is"):
        experts(x, pairs, gate_up, down[:, :, :32])
    with pytest.raises(EngineError, match="multiples of 16"):
        experts(x[:, :72].contiguous(), pairs, gate_up[:, :, :72].contiguous(), down[:, :72].contiguous())
    with pytest.raises(EngineError, match="a bias of sigmoid scores alone"):
        route(torch.zeros(1, 9, device=DEVICE), torch.zeros(9, device=DEVICE), SOFTMAX)
    with pytest.raises(EngineError, match="9 of 8 experts"):
        route(torch.zeros(1, 8, device=DEVICE), None, replace(SOFTMAX, top_k=9))
