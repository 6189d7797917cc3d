"""The twins of the native profile's expert ops mean what those of the portable profile mean."""

import pytest
import torch

from batchgen.kernels.reference import moe, native
from batchgen.kernels.routing import Pairs, Routing

RULES = (
    Routing(8, "softmax", True, 1.0),
    Routing(3, "softmax", False, 1.0),
    Routing(4, "sigmoid", True, 2.5),
    Routing(1, "sigmoid", False, 1.0),
)


@pytest.mark.parametrize("routing", RULES)
def test_route(routing: Routing) -> None:
    logits = torch.randn(40, 24, generator=torch.Generator().manual_seed(3)) * 2
    logits[0] = 0.0
    logits[1, ::2], logits[1, 1::2] = 0.0, -0.0
    logits[2] = logits[2].round()
    bias = torch.linspace(-0.2, 0.2, 24) if routing.scoring == "sigmoid" else None
    ids, weights = native.route(logits, bias, routing)
    expected_ids, expected = moe.route(logits, bias, routing)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)
    logits[3, 5] = torch.nan
    assert 5 in native.route(logits[3:4], None, routing)[0]
    positions = torch.tensor([-1, *range(39)], dtype=torch.int32)
    padded = native.route(logits, bias, routing, positions)[0]
    assert (padded[0] == -1).all()
    assert torch.equal(padded[1:], native.route(logits, bias, routing)[0][1:])


def test_experts_and_combine() -> None:
    random = torch.Generator().manual_seed(4)
    x, gate_up, down = (
        torch.randn(shape, generator=random).bfloat16() for shape in ((6, 32), (3, 48, 32), (3, 32, 24))
    )
    pairs = Pairs(torch.tensor([4, 0, 4, 5]).int(), torch.tensor([2, 0, -1, 0]).int())
    y = native.experts(x, pairs, gate_up, down)
    for p, (row, slot) in enumerate(zip(pairs.rows.tolist(), pairs.slots.tolist(), strict=True)):
        if slot < 0:
            assert y[p].isnan().all()
        else:
            inner = native.linear_silu_mul(x[row : row + 1], gate_up[slot])
            assert torch.equal(y[p], native.linear(inner, down[slot])[0])
    rows, weights, shared = y[[0, 1, 3, 0]].view(2, 2, 32), torch.rand(2, 2, generator=random), x[:2]
    found = native.combine(rows, weights, shared)
    zero = torch.zeros(2, 32)
    expected = moe.combine(rows.float(), weights, shared.float(), zero)
    assert torch.equal(found, expected.bfloat16())
    assert not torch.equal(found, native.combine(rows, weights.flip(1), shared))
