"""The names of the ops are those that a step launches, for every family."""

from pathlib import Path

import pytest
from support.model_cases import load_tiny, make_engine, requests
from support.tiny_models import FAMILIES

from batchgen import kernels
from batchgen.engine.batch import Chunk, Sampled
from batchgen.models.op_names import OpName, op_names


class CountingRunner:
    """Hears every op of each step, with its number of rows, and the rows and draws that the step had."""

    def __init__(self, runner: object) -> None:
        self.inner = runner
        self.heard: list[list[tuple[str, int]]] = []
        self.sizes: list[tuple[int, int]] = []

    def step(self, chunks: list[Chunk]) -> list[Sampled]:
        ops: list[tuple[str, int]] = []
        with kernels.watch(lambda op, outputs: ops.append((op, len(next(iter(outputs.values())))))):
            sampled: list[Sampled] = self.inner.step(chunks)  # type: ignore[attr-defined]
        self.heard.append(ops)
        self.sizes.append((sum(chunk.length for chunk in chunks), sum(chunk.samples for chunk in chunks)))
        return sampled


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_launches_these(tmp_path: Path, family: str) -> None:
    model = load_tiny(tmp_path, family, num_hidden_layers=3)
    engine = make_engine(model, max_num_batched_tokens=20, max_num_seqs=2)
    engine.runner = runner = CountingRunner(engine.runner)  # type: ignore[assignment]
    names = op_names(model.config)
    assert len(names) == 4 + sum({"qwen3_moe": (10,) * 3, "dots1": (8, 12, 12)}.get(family, (8,) * 3))
    list(engine.generate(requests(7)[1:]))  # the first of them has 31 tokens
    assert {draws > 0 for _, draws in runner.sizes} == {False, True}, "steps of both kinds"
    for ops, (tokens, draws) in zip(runner.heard, runner.sizes, strict=True):
        expected = names if draws else names[:-1]
        assert ops == [(name.op, draws if name.drawn else tokens) for name in expected]


def test_they_read_well() -> None:
    assert str(OpName(7, "attention output linear", "linear")) == "layer 7, attention output linear"
    assert str(OpName(None, "sampler", "sample", drawn=True)) == "sampler"
