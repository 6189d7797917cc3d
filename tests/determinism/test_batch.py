"""Batch size and batch mates. Guards against kernels, splits or sampling paths that look at how many rows there are:
vLLM #51187 moved logprobs at 44 and 45 sequences only, so every size from 1 to 64 is tried.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.batch_dependent import batch_dependent
from support.model_cases import assert_same, generate, load_tiny, make_engine, requests, with_limits
from support.tiny_models import FAMILIES

from batchgen import kernels
from batchgen.engine.engine import Engine


@pytest.mark.parametrize("size", range(1, 65))
def test_every_batch_size(engine: Engine, alone: dict[str, str], size: int) -> None:
    """`size` sequences at once, from a place in the list that moves with it, so that rows meet other mates."""
    batch = [requests()[(size * 5 + i) % 64] for i in range(size)]
    assert_same(generate(with_limits(engine, max_num_seqs=size), batch), alone, f"batch of {size}")


def test_every_width(engine: Engine, alone: dict[str, str]) -> None:
    """All 64 through windows of other widths: who runs beside whom changes with every finished row."""
    for width in (2, 3, 7, 17, 44, 45, 64):
        assert_same(generate(with_limits(engine, max_num_seqs=width), requests()), alone, f"width {width}")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tmp_path: Path, family: str) -> None:
    """Biased projections, normed heads, a head tied to the embedding: each has ops of its own."""
    engine = make_engine(load_tiny(tmp_path, family, tie_word_embeddings=family.startswith("qwen")))
    single = generate(with_limits(engine, max_num_seqs=1), requests(32))
    for width in (2, 7, 32):
        batch = with_limits(engine, max_num_seqs=width, max_num_batched_tokens=11 * width)
        assert_same(generate(batch, requests(32)), single, f"{family}, width {width}")


def test_counter_a_batch_dependent_sum_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "linear", batch_dependent)
    one_by_one = generate(with_limits(engine, max_num_seqs=1), requests(6))
    together = generate(with_limits(engine, max_num_seqs=6), requests(6))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(together, one_by_one, "batch of 6")


def test_counter_shared_noise_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise keyed by the place in the batch (SGLang PR #35697) instead of the sample's seed."""
    import batchgen.engine.sampling as sampling

    right: Callable[..., object] = sampling.sample_rows

    def by_place(sequences: list[object]) -> object:
        rows = right(sequences)
        rows.seed[:] = range(len(sequences))  # type: ignore[attr-defined]
        return rows

    monkeypatch.setattr(sampling, "sample_rows", by_place)
    one_by_one = generate(with_limits(engine, max_num_seqs=1), requests(16))
    together = generate(with_limits(engine, max_num_seqs=16), requests(16))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(together, one_by_one, "batch of 16")
