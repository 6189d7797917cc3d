"""Chunks of a prefill. Guards against cuts that change a sum (pegainfer #688, vLLM PR #46592: cuts come from the step's
token budget, not from the request) and against a prefill that differs from decode.
"""

import pytest
import torch
from support.bitwise import assert_bitwise
from support.model_cases import assert_same, generate, make_engine, requests

from batchgen import kernels
from batchgen.engine.kv_cache import allocate
from batchgen.kernels.cpu.ops import attention as exact_attention
from batchgen.layers.step import StepTensors
from batchgen.loader import LoadedModel
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.packed import PackedWeights


@pytest.mark.parametrize("budget", [*range(1, 41), 63, 64, 65, 128, 1000])
def test_every_token_budget(model: LoadedModel, alone: dict[str, str], budget: int) -> None:
    wanted = requests(24) if budget > 3 else requests(14)
    assert_same(generate(make_engine(model, max_num_seqs=8, max_num_batched_tokens=budget), wanted), alone, f"{budget}")


@pytest.fixture(scope="module")
def decoder(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    cache = tmp_path_factory.mktemp("packed")
    weights = PackedWeights.open_or_build(lambda: open_checkpoint(model.path), cache, "tiny")
    return Decoder(model.config, weights.tensors, model.max_model_len)


def logits(decoder: Decoder, ids: list[int], cuts: list[int]) -> torch.Tensor:
    """Of every position, computed in chunks that end at `cuts`."""
    cache = allocate(decoder.config, 6)
    table = [4, 0, 3, 1, 5][: -(-len(ids) // 32)]
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        positions = range(start, stop)
        step = StepTensors(
            token_ids=torch.tensor(ids[start:stop], dtype=torch.int32),
            positions=torch.tensor(positions, dtype=torch.int32),
            slots=torch.tensor([table[p // 32] * 32 + p % 32 for p in positions]),
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            block_tables=torch.tensor([table], dtype=torch.int32),
            sample_rows=torch.arange(stop - start),
        )
        parts.append(decoder.forward(step, cache).clone())
    return torch.cat(parts)


IDS = [(i * 37) % 190 + 3 for i in range(100)]


def test_every_cut(decoder: Decoder) -> None:
    """One cut at every position; the whole by single tokens, which is decode, gives the same bits too."""
    whole = logits(decoder, IDS, [])
    for cut in range(1, len(IDS)):
        assert_bitwise(logits(decoder, IDS, [cut]), whole, f"cut at {cut}")
    assert_bitwise(logits(decoder, IDS, list(range(1, len(IDS)))), whole, "token by token")


def test_counter_one_bit_of_one_element_is_seen(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
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

    whole = logits(decoder, IDS, [])
    monkeypatch.setattr(kernels, "attention", shifted)
    assert_bitwise(logits(decoder, IDS, [32]), whole, "cut at a block's edge")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_bitwise(logits(decoder, IDS, [33]), whole)
