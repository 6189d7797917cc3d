"""Chunks of a prefill. Guards against cuts that change a sum (pegainfer #688, vLLM PR #46592: cuts come from the step's
token budget, not from the request), and against a prompt that no chunk fits (SGLang #36344: 129 tokens, chunks of 128,
an alignment above both, and the request starves).
"""

import pytest
import torch
from support.bitwise import assert_bitwise
from support.forward import position_logits
from support.model_cases import ask, assert_same, generate, ids, requests, with_limits

from batchgen import kernels
from batchgen.engine.engine import Engine
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.models.decoder import Decoder

IDS = [(i * 37) % 190 + 3 for i in range(100)]


@pytest.mark.parametrize("budget", [*range(1, 41), 63, 64, 65, 128, 1000])
def test_every_token_budget(engine: Engine, alone: dict[str, str], budget: int) -> None:
    wanted = requests(24) if budget > 3 else requests(14)
    cut = with_limits(engine, max_num_seqs=8, max_num_batched_tokens=budget)
    assert_same(generate(cut, wanted), alone, f"budget {budget}")


@pytest.mark.parametrize("budget", [1, 2, 31, 32, 33, 64, 127, 128, 129])
def test_prompts_around_the_budget(engine: Engine, budget: int) -> None:
    """One token less than a chunk, as many, one more: each ends, and gives what it gives in one piece."""
    lengths = sorted({n for n in (budget - 1, budget, budget + 1, 2 * budget, 2 * budget + 1) if 0 < n <= 140})
    wanted = [ask(f"of {n}", ids(n)) for n in lengths]
    whole = generate(with_limits(engine, max_num_seqs=1, max_num_batched_tokens=1000), wanted)
    assert_same(generate(with_limits(engine, max_num_batched_tokens=budget), wanted), whole, f"budget {budget}")


@pytest.fixture(scope="module")
def whole(decoder: Decoder) -> torch.Tensor:
    """The logits of every position, in one piece."""
    return position_logits(decoder, IDS, [])


def test_every_cut(decoder: Decoder, whole: torch.Tensor) -> None:
    for cut in range(1, len(IDS)):
        assert_bitwise(position_logits(decoder, IDS, [cut]), whole, f"cut at {cut}")


def test_every_chunk_size(decoder: Decoder, whole: torch.Tensor) -> None:
    """Chunks of one size, from single tokens, which is decode, to two blocks and a little."""
    for size in range(1, 68):
        cuts = list(range(size, len(IDS), size))
        assert_bitwise(position_logits(decoder, IDS, cuts), whole, f"chunks of {size}")


def test_counter_one_bit_of_one_element_is_seen(
    decoder: Decoder, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bit of one attention output, in chunks that begin off a block's edge, moves the logits."""

    def shifted(
        q: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        tables: torch.Tensor,
        start: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        out = exact_attention(q, cache, tables, start, positions)
        if int(positions[0]) % 32:
            out.view(torch.int16)[0, 0] += 1
        return out

    monkeypatch.setattr(kernels, "attention", shifted)
    assert_bitwise(position_logits(decoder, IDS, [32]), whole, "cut at a block's edge")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_bitwise(position_logits(decoder, IDS, [33]), whole)
