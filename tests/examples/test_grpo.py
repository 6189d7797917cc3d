"""The GRPO example: it learns, twice the same, with any limits of the engine; and it would notice a wrong logprob."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.example_scripts import load

from batchgen import Engine

STEPS = 12


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BATCHGEN_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def trained(folder: Path, steps: int, **limits: Any) -> list[tuple[str, str]]:
    folder.mkdir()
    example = load("grpo")
    vars(example)["PROMPTS_PER_STEP"] = 20
    return [(reward.hex(), digest) for reward, digest in example.train(folder, steps, **limits)]


def test_two_runs_give_one_curve_and_the_same_weights(tmp_path: Path) -> None:
    curve = trained(tmp_path / "a", STEPS)
    assert trained(tmp_path / "b", STEPS, max_num_seqs=37, max_num_batched_tokens=100, prefix_cache=False) == curve
    rewards = [float.fromhex(reward) for reward, _ in curve]
    assert sum(rewards[-4:]) > 1.3 * sum(rewards[:4])
    assert len({digest for _, digest in curve}) == STEPS


def test_counter_another_seed_is_another_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = trained(tmp_path / "a", 2)
    right = Engine.generate
    monkeypatch.setattr(Engine, "generate", lambda engine, some, params, seed: right(engine, some, params, seed + 1))
    assert trained(tmp_path / "b", 2) != curve


def test_counter_a_rollout_of_older_weights_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that keeps its weights between generating and scoring would hide it; here they move in between."""
    example = load("grpo")
    right = Engine.score

    def late(engine: Engine, rollouts: Any) -> Any:
        weights = example.TinyLlama().state_dict()
        engine.update_weights(weights, version="another")
        return right(engine, rollouts)

    monkeypatch.setattr(Engine, "score", late)
    with pytest.raises(AssertionError, match="of two policies"):
        next(example.train(tmp_path, 1))
