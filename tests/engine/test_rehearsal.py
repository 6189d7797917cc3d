"""The largest step is as large as a step can be."""

from pathlib import Path

import pytest
import torch
from support.model_cases import load_tiny, make_engine

from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.rehearsal import _largest, rehearse
from batchgen.engine.scheduler import Limits
from batchgen.errors import EngineError


@pytest.mark.parametrize(("total", "longest"), [(1, 100), (99, 100), (100, 100), (101, 100), (350, 100), (64, 33)])
def test_it_fills_the_budget(total: int, longest: int) -> None:
    step = _largest(Limits(7, total, 400, 0), longest)
    lengths = step.query_start.diff()
    assert len(step.token_ids) == total == int(lengths.sum())
    assert int(lengths.max()) == min(total, longest)
    assert torch.equal(step.positions, torch.cat([torch.arange(n) for n in lengths]).int())
    assert int(step.block_tables.max()) == (min(total, longest) - 1) // 32
    assert len(step.sample_rows) == min(7, total)


def test_no_memory_is_said_before_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(load_tiny(tmp_path))
    runner = engine.runner
    assert isinstance(runner, ModelRunner)

    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner._model, "forward", full)
    with pytest.raises(EngineError, match="no memory left for a step of 256 tokens and the logits of 64") as caught:
        rehearse(runner._model, runner._cache, engine.limits, engine.model.max_model_len)
    assert "lower --max-num-batched-tokens" in str(caught.value.hint)
