"""Rows made again: all bits are the same whatever the RunConfig, and whoever forged one is caught, hashes or not."""

import logging
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batch_dependent import batch_dependent
from support.bent_engine import next_float
from support.tiny_runs import FAILING, NOT_FINITE, ROWS, edit_manifest, forge, make_run, replay, row_of

from batchgen import job, kernels
from batchgen.engine.engine import Engine
from batchgen.errors import InputError, VerifyError
from batchgen.executor.base import Progress
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import part_name, read_manifest, write_manifest
from batchgen.seeds import sample_seed
from batchgen.verify.choice import Rows, all_rows, drawn_rows, named_rows
from batchgen.verify.integrity import verify_run
from batchgen.verify.ledger import Ledger
from batchgen.verify.mismatch import Mismatch
from batchgen.verify.prompts import StoredPrompts
from batchgen.verify.replay import other_config, replay_rows

CONFIGS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 1, "max_num_batched_tokens": 7, "prefix_cache": True, "threads": 3},
    {"max_num_seqs": 3, "max_num_batched_tokens": 33, "prefix_cache": False},
    {"max_num_seqs": 64, "max_num_batched_tokens": 1000, "prefix_cache": True, "threads": 1},
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("name", "samples"), [("features", 2), ("greedy", 1)])
def test_every_row_is_bit_exact(made: Path, name: str, samples: int, config: dict[str, Any]) -> None:
    found = replay(made / "runs" / name, **config)
    errors = len(FAILING) * samples
    assert (found.chosen, found.exact, found.bad) == (ROWS * samples, ROWS * samples - errors, 0)
    assert (found.prompt_errors, found.mismatches, found.left, found.ok) == (errors, (), 0, True)


@pytest.mark.parametrize("name", ["features", "greedy"])
def test_from_the_input_error_rows_too(made: Path, name: str) -> None:
    found = replay(made / "runs" / name, from_input=True)
    assert (found.exact, found.prompt_errors, found.ok) == (found.chosen, 0, True)


def test_rows_that_were_drawn_or_named(made: Path) -> None:
    run = made / "runs/features"
    assert replay(run, lambda ledger: drawn_rows(ledger.manifest, 7)).chosen == 7
    failed = replay(run, lambda ledger: named_rows(ledger, [NOT_FINITE, "k1"], 1))
    assert (failed.chosen, failed.exact, failed.ok) == (2, 2, True)
    half = replay(run, lambda ledger: named_rows(ledger, [FAILING[0], "k1"]))
    assert (half.chosen, half.compared, half.prompt_errors, half.ok) == (4, 2, 2, True)


def test_an_unfinished_run(folder: Path) -> None:
    run = folder / "runs/features"
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest.with_shards(manifest.shards[1:3]), root=None))
    for shard in (0, 3):
        (run / part_name(shard)).unlink()
    found = replay(run)
    assert (found.chosen, found.exact + found.prompt_errors, found.ok) == (20, 20, True)


def test_a_moved_run(folder: Path, made: Path, tmp_path: Path) -> None:
    """With its job, and alone: then one has to say where the model is."""
    assert replay(folder / "runs/features").ok
    alone = tmp_path / "alone"
    shutil.move(folder / "runs/features", alone)
    ledger = Ledger.open(alone, lambda done, total: None, made)
    engine = ledger.start_engine(RunConfig(alone, threads=1))
    assert replay_rows(ledger, engine, all_rows(ledger.manifest), StoredPrompts()).ok


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 64, 256])
@pytest.mark.parametrize("cache", [True, False])
def test_the_config_is_another_in_all_that_must_not_matter(tmp_path: Path, limit: int, cache: bool) -> None:
    then = RunConfig(tmp_path, max_num_seqs=limit, max_num_batched_tokens=limit, prefix_cache=cache, probe=0.5)
    now = other_config(tmp_path, then.recorded())
    for name in ("max_num_seqs", "max_num_batched_tokens", "prefix_cache"):
        assert getattr(now, name) != getattr(then, name)
    assert now.max_num_seqs >= max(1, limit // 2)
    assert now.probe == 0
    chosen = other_config(tmp_path, then.recorded(), max_num_seqs=limit, prefix_cache=False, threads=None)
    assert (chosen.max_num_seqs, chosen.prefix_cache, chosen.threads) == (limit, False, None)


Change = Callable[[dict[str, Any]], dict[str, Any]]


def caught(run: Path, change: Change, key: str = "k6", **how: Any) -> Mismatch:
    """Verify finds nothing, and replay finds this row alone."""
    forge(run, key, change)
    assert verify_run(run).ok
    found = replay(run, **how)
    assert (found.bad, found.ok, len(found.mismatches)) == (1, False, 1)
    [mismatch] = found.mismatches
    assert (mismatch.row_key, mismatch.sample_index) == (key, 0)
    return mismatch


def with_token(at: int, token: int) -> Change:
    return lambda row: {"token_ids": [*row["token_ids"][:at], token, *row["token_ids"][at + 1 :]]}


@pytest.mark.parametrize("at", [0, 5, 13])
def test_a_forged_token(folder: Path, at: int) -> None:
    """Every hash, count and the root fit; the draw did not go that way."""
    [true, false] = row_of(folder / "runs/features", "k6")[2]["token_ids"][at], 77
    mismatch = caught(folder / "runs/features", with_token(at, false))
    assert (mismatch.column, mismatch.columns, mismatch.position) == ("token_ids", ("token_ids",), at)
    assert (mismatch.stored, mismatch.made) == (false, true)
    draw = mismatch.draw
    assert draw is not None
    assert draw.stored is not None
    assert draw.made is not None
    assert (draw.stored.token_id, draw.made.token_id, draw.drawn) == (false, true, true)
    assert draw.stored.text == "k"
    assert draw.made.score is not None
    assert draw.stored.score is not None
    assert draw.margin is not None
    assert draw.margin == pytest.approx(draw.made.score - draw.stored.score)
    assert draw.margin > 0
    assert draw.stored.logit != draw.stored.score


def test_margins_of_a_greedy_row(folder: Path) -> None:
    """Without noise and penalties a margin is one of logits."""
    draw = caught(folder / "runs/greedy", with_token(4, 77)).draw
    assert draw is not None
    assert draw.stored is not None
    assert draw.made is not None
    assert draw.made.logit is not None
    assert draw.stored.logit is not None
    assert (draw.made.score, draw.stored.is_filtered) == (0, False)
    assert draw.margin == pytest.approx(draw.made.logit - draw.stored.logit, rel=1e-6)


@pytest.mark.parametrize("token", [77, 71, 100_000, -1])
def test_a_token_that_could_not_be_drawn(folder: Path, token: int) -> None:
    """It was filtered out; it is a bad word; there is no such token."""
    assert (71,) in Ledger.open(folder / "runs/features", lambda done, total: None).bad_words_token_ids
    draw = caught(folder / "runs/features", with_token(5, token)).draw
    assert draw is not None
    assert draw.stored is not None
    assert (draw.stored.logit is not None) == (0 <= token < 1000)
    assert draw.stored.is_filtered == (token == 77)
    assert (draw.stored.score is not None) == (draw.margin is not None) == (token == 77)


def test_a_row_that_was_cut_or_drawn_out(folder: Path) -> None:
    def cut(row: dict[str, Any]) -> dict[str, Any]:
        lists = ("token_ids", "logprobs", "top_logprobs_ids", "top_logprobs_values")
        return {name: row[name][:9] for name in lists} | {"num_output_tokens": 9}

    mismatch = caught(folder / "runs/features", cut)
    assert (mismatch.position, mismatch.stored) == (9, None)
    assert mismatch.draw is not None
    assert (mismatch.draw.stored, mismatch.draw.margin) == (None, None)
    assert mismatch.draw.made is not None
    assert mismatch.draw.made.token_id == mismatch.draw.drawn == mismatch.made


def test_one_bit_of_a_logprob(folder: Path) -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        return {"logprobs": [*row["logprobs"][:3], next_float(row["logprobs"][3]), *row["logprobs"][4:]]}

    mismatch = caught(folder / "runs/features", change)
    assert (mismatch.column, mismatch.position, mismatch.draw) == ("logprobs", 3, None)
    bits = [int(side.partition("0x")[2].rstrip(")"), 16) for side in (mismatch.stored, mismatch.made)]
    assert bits[0] - bits[1] == 1


@pytest.mark.parametrize(
    ("column", "change", "position"),
    [
        ("text", lambda row: {"text": row["text"] + "!"}, None),
        ("finish_reason", lambda row: {"finish_reason": "stop"}, None),
        ("stop_reason", lambda row: {"stop_reason": "token:2"}, None),
        ("top_logprobs_ids", lambda row: {"top_logprobs_ids": [[1, 2, 3], *row["top_logprobs_ids"][1:]]}, 0),
        ("status", lambda row: {"status": "error", "error_code": "non_finite_logits"}, None),
    ],
)
def test_other_forged_values(folder: Path, column: str, change: Change, position: int | None) -> None:
    mismatch = caught(folder / "runs/features", change)
    assert (mismatch.column, mismatch.position) == (column, position)
    assert mismatch.stored != mismatch.made


def test_a_failure_that_was_hidden(folder: Path) -> None:
    answer = {"status": "ok", "error_code": None, "error_message": None, "finish_reason": "length", "text": "k"}
    answer |= {"token_ids": [77], "num_output_tokens": 1, "logprobs": [-1.0]}  # type: ignore[dict-item]
    answer |= {"top_logprobs_ids": [[77]], "top_logprobs_values": [[-1.0]]}  # type: ignore[dict-item]
    mismatch = caught(folder / "runs/features", lambda row: answer, NOT_FINITE)
    assert (mismatch.column, mismatch.stored, mismatch.made) == ("status", "ok", "error")


def test_prompts_are_taken_from_the_ledger_unless_told(folder: Path) -> None:
    """A forged error, a forged label: only the input can tell."""
    run = folder / "runs/features"
    forge(run, "k6", lambda row: {"label": "forged"})
    assert replay(run, lambda ledger: named_rows(ledger, ["k6"], 0)).ok
    forge(run, FAILING[0], lambda row: {"error_message": "forged"})
    assert replay(run, lambda ledger: named_rows(ledger, [FAILING[0], "k1"])).ok
    found = replay(run, from_input=True)
    assert {(m.row_key, m.column, m.stored) for m in found.mismatches} == {
        ("k6", "label", "forged"),
        (FAILING[0], "error_message", "forged"),
    }


def test_a_forged_prompt_is_found_in_the_input(folder: Path) -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_token_ids": [*row["prompt_token_ids"][:7], 77, *row["prompt_token_ids"][8:]]}

    mismatch = caught(folder / "runs/features", change, from_input=True)
    assert (mismatch.column, mismatch.position, mismatch.stored) == ("prompt_token_ids", 7, 77)


def test_a_forged_key_is_found_in_the_input(folder: Path) -> None:
    """With the seed of that key. A greedy row does not look at its seed."""
    run = folder / "runs/greedy"
    forge(run, "k6", lambda row: {"row_key": "K6", "seed": sample_seed(0, "K6", 0)})
    assert replay(run).ok
    assert [mismatch.column for mismatch in replay(run, from_input=True).mismatches] == ["row_key"]


def test_an_edited_row_is_told_before_anything_is_made(folder: Path) -> None:
    path = folder / "runs/features" / part_name(1)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(VerifyError, match=r"rows/part-00001\.parquet.*\n.*batchgen verify"):
        replay(folder / "runs/features", plant=pytest.fail)


def test_only_as_many_bad_rows_are_explained_as_asked(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = folder / "runs/greedy"
    for key in ("k0", "k1", "k2"):
        forge(run, key, lambda row: {"text": "forged"})
    with caplog.at_level(logging.WARNING):
        found = replay(run, limit=2)
    assert (found.bad, len(found.mismatches), found.exact) == (3, 2, found.chosen - 3 - len(FAILING))
    assert len(caplog.messages) == 1
    assert "is not bit-exact; the others are still compared" in caplog.messages[0]


def test_a_row_that_is_there_twice(folder: Path) -> None:
    run = folder / "runs/greedy"
    forge(run, "k6", lambda row: {"row_key": "k8", "seed": sample_seed(0, "k8", 0)})
    with pytest.raises(VerifyError, match="row 'k8' sample 0 is there twice"):
        replay(run)


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "linear", batch_dependent)


def test_counter_a_batch_dependent_kernel_is_caught(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum whose order follows the batch, planted after the proof at the start."""
    found = replay(made / "runs/features", plant=lambda: plant(monkeypatch))
    assert found.bad > 0
    assert not found.ok


def test_a_run_by_a_batch_dependent_kernel_is_caught(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By right kernels, and by the same ones: other company, other bits. Seen to be so by every probe."""
    start: Callable[..., Engine] = vars(job)["start_replica"]
    with monkeypatch.context() as planted:

        def start_and_plant(*args: Any) -> Engine:
            engine = start(*args)
            plant(planted)
            return engine

        planted.setattr(job, "start_replica", start_and_plant)
        make_run(made, tmp_path / "run", probe=0.0)
    edit_manifest(tmp_path / "run", run_config={"job_dir": str(made)})
    assert verify_run(tmp_path / "run").ok
    assert replay(tmp_path / "run").bad > 0
    assert replay(tmp_path / "run", plant=lambda: plant(monkeypatch)).bad > 0


def test_ctrl_c_ends_with_what_was_compared(folder: Path) -> None:
    run = folder / "runs/greedy"
    forge(run, "k6", lambda row: {"token_ids": [77, *row["token_ids"][1:]]})
    ledger = Ledger.open(run, lambda done, total: None)
    engine = ledger.start_engine(other_config(run, ledger.manifest.run_config, max_num_seqs=2))

    def stop(progress: Progress) -> None:
        if progress.done >= 8:
            os.kill(os.getpid(), signal.SIGINT)

    found = replay_rows(ledger, engine, all_rows(ledger.manifest), StoredPrompts(), on_progress=stop)
    assert found.interrupted
    assert not found.ok
    assert found.compared + found.prompt_errors == 8
    assert found.left == found.chosen - 8
    assert all(mismatch.draw is None for mismatch in found.mismatches), "no more is computed"
    assert replay_rows(ledger, engine, all_rows(ledger.manifest), StoredPrompts()).bad == 1, "the engine is free again"


def test_few_shards_are_held(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each sample that is worked on, at most, and the one that is being opened."""
    make_run(made, tmp_path / "run", "greedy", rows_per_shard=1)
    ledger = Ledger.open(tmp_path / "run", lambda done, total: None, made)
    engine = ledger.start_engine(other_config(tmp_path / "run", ledger.manifest.run_config, max_num_seqs=2))
    opened, most = 0, 0
    right = Ledger.table

    def table(self: Ledger, shard: Any) -> Any:
        nonlocal opened
        opened += 1
        return right(self, shard)

    def look(progress: Progress) -> None:
        nonlocal most
        most = max(most, opened - progress.done)

    monkeypatch.setattr(Ledger, "table", table)
    assert replay_rows(ledger, engine, all_rows(ledger.manifest), StoredPrompts(), on_progress=look).ok
    assert (opened, most <= 3) == (ROWS, True)


def test_nothing_is_no_proof(made: Path) -> None:
    with pytest.raises(InputError, match="the run has no row yet"):
        replay(made / "runs/greedy", lambda ledger: Rows({}, ""))

    def failing(ledger: Ledger) -> Rows:
        return named_rows(ledger, FAILING)

    with pytest.raises(InputError, match=r"all chosen rows \(2\) hold prompt errors: nothing was compared"):
        replay(made / "runs/greedy", failing)
    assert replay(made / "runs/greedy", failing, from_input=True).compared == 2
