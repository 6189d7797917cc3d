"""A run that takes samples of earlier runs is the run that would have been made without them, row hash by row hash."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785
from support import run_damage
from support.fake_engine import FINGERPRINT, FakeEngine
from support.fake_jobs import make_job, read_rows, write_input
from support.thread_fleet import ThreadFleet

from batchgen.errors import RunError, VerifyError
from batchgen.executor import reuse
from batchgen.executor.base import Job, Progress
from batchgen.executor.driver import run_replicas
from batchgen.executor.local import run_local
from batchgen.executor.reuse import Known, check_runs
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.io.earlier_run import EarlierRun
from batchgen.io.manifest import ReuseRecord, read_manifest, write_manifest
from batchgen.io.schema import EVERYTHING, output_schema
from batchgen.row_sampling import OWN
from batchgen.verify.integrity import verify_run

Change = Callable[[pa.Table], pa.Table]


def write(folder: Path, change: Change = lambda table: table, rows: int = 50) -> Path:
    """The input of write_input with one prompt of none and one that the engine fails, changed."""
    path = write_input(folder, rows, bad=[3]) / "in.parquet"
    table = pq.read_table(path)
    keys = ["bad-7" if key == "row-7" else key for key in table["id"].to_pylist()]
    pq.write_table(change(table.set_column(0, "id", pa.array(keys))), path, row_group_size=17)
    return folder


def run(job: Job, out: Path, *earlier: Path, engine: FakeEngine | None = None, **how: Any) -> tuple[JobReport, int]:
    """And how many samples the engine was asked for."""
    engine = engine or FakeEngine()
    usual: dict[str, Any] = {"max_num_seqs": 8, "rows_per_shard": 8, "probe": 0, "reuse": earlier}
    config = RunConfig(out, **(usual | how))
    return run_local(job, engine, config), len(engine.asked)


def check(job: Job, out: Path, fresh: Path) -> str:
    """`out` is finished, and is the run that `fresh` is, made without any other."""
    if not fresh.exists():
        run(job, fresh)
    assert verify_run(out).ok
    assert read_rows(out)["row_hash"].equals(read_rows(fresh)["row_hash"])
    assert read_manifest(out).root == read_manifest(fresh).root
    return str(read_manifest(out).root)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/in.parquet, and old, a run of it with n = 2."""
    folder = tmp_path_factory.mktemp("there")
    run(make_job(write(folder / "in")), folder / "old")
    return folder


def reworded(table: pa.Table) -> pa.Table:
    prompts = [p and p.replace("prompt 1", "request 1") for p in table["prompt"].to_pylist()]
    return table.set_column(1, "prompt", pa.array(prompts))


CASES: dict[str, tuple[dict[str, Any], int, Change, int]] = {  # n, rows, change, samples made: 2 that fail are always
    "as it was": ({"n": 2}, 50, lambda table: table, 2),
    "n up": ({"n": 5}, 50, lambda table: table, 2 + 48 * 3 + 3),
    "n down": ({"n": 1}, 50, lambda table: table, 1),
    "appended": ({"n": 2}, 61, lambda table: table, 2 + 11 * 2),
    "removed": ({"n": 2}, 50, lambda table: table.take(pa.array(range(7, 50, 3))), 2),
    "reordered": ({"n": 2}, 50, lambda table: table.take(pa.array(range(49, -1, -1))), 2),
    "reworded": ({"n": 2}, 50, reworded, 2 + 11 * 2),
    "other columns": ({"n": 2}, 50, lambda table: table.set_column(3, "meta", pa.array(range(50))), 2),
}


@pytest.mark.parametrize(("name", "rows_per_shard"), [(name, (5, 64, 8)[i % 3]) for i, name in enumerate(CASES)])
def test_what_is_there_is_not_made(there: Path, tmp_path: Path, name: str, rows_per_shard: int) -> None:
    sampling, rows, change, made = CASES[name]
    job = make_job(write(tmp_path / "in", change, rows), sampling=sampling)
    report, asked = run(job, tmp_path / "new", there / "old", rows_per_shard=rows_per_shard)
    check(job, tmp_path / "new", tmp_path / "fresh")
    assert asked == made
    taken = (
        report.counts.rows
        - asked
        - sum(row is None for row in read_rows(tmp_path / "new")["prompt_token_ids"].to_pylist())
    )
    assert (report.reused, report.sources[0]["samples"]) == (taken, taken)


def test_columns_of_rollouts_are_taken_along(tmp_path: Path) -> None:
    write(tmp_path / "in", rows=9)
    columns = {"kept_tokens": 9, "routed_experts": True}
    old, new = (make_job(tmp_path / "in", sampling=columns | {"n": n}) for n in (2, 3))
    run(old, tmp_path / "old")
    _, asked = run(new, tmp_path / "new", tmp_path / "old")
    check(new, tmp_path / "new", tmp_path / "fresh")
    assert asked == 7 + 3


def test_each_sample_is_from_the_first_run_that_has_it(there: Path, tmp_path: Path) -> None:
    job = make_job(write(tmp_path / "in", rows=60), sampling={"n": 3})
    run(make_job(write(tmp_path / "more", lambda t: t.slice(40), 60), sampling={"n": 3}), tmp_path / "tail")
    report, asked = run(job, tmp_path / "new", there / "old", tmp_path / "tail")
    root = check(job, tmp_path / "new", tmp_path / "fresh")
    assert asked == 38 + 3, "the third samples of the first forty rows, and the row that fails"
    manifest = read_manifest(tmp_path / "new")
    old, tail = (read_manifest(path).root for path in (there / "old", tmp_path / "tail"))
    assert [(run.root, samples) for run, samples in manifest.reused] == [(old, 96), (tail, 10 + 30)]
    assert (tmp_path / "new" / manifest.reuse[1].path).resolve() == (tmp_path / "tail").resolve()
    assert report.root == root


def test_a_sample_is_from_the_run_that_has_its_prompt(there: Path, tmp_path: Path) -> None:
    job = make_job(write(tmp_path / "in", reworded))
    run(job, tmp_path / "reworded")
    _, asked = run(job, tmp_path / "new", there / "old", tmp_path / "reworded")
    check(job, tmp_path / "new", tmp_path / "reworded")
    assert asked == 2
    assert [samples for _, samples in read_manifest(tmp_path / "new").reused] == [74, 22]


def test_it_is_known_of_every_column_where_it_comes_from() -> None:
    """A new one is refused until it is: then it belongs in one of the sets, and in tests/determinism/test_reuse.py."""
    columns = output_schema(pa.schema([]), params=EVERYTHING, own_sampling=OWN, metadata={}).names
    assert set(columns) == reuse._TAKEN | reuse._MADE


@pytest.mark.parametrize(
    ("sections", "parts", "why"),
    [
        ({"sampling": {"temperature": 0.5}}, {}, "sampling.temperature 1.0 -> 0.5"),
        ({"seed": 1}, {}, "seed 0 -> 1"),
        ({"sampling": {"max_tokens": 9, "top_k": 3}}, {}, "sampling.max_tokens 8 -> 9; sampling.top_k 0 -> 3"),
        ({}, {"weights_digest": "x" * 64}, "weights_digest wwwwwwwwwwww… -> xxxxxxxxxxxx…"),
        ({}, {"canary": "c" * 64}, "canary null -> cccccccccccc…"),
    ],
)
def test_another_job_is_named_and_nothing_is_taken(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, sections: Any, parts: dict[str, str], why: str
) -> None:
    job = make_job(there / "in", **sections)
    report, asked = run(job, tmp_path / "new", there / "old", engine=FakeEngine(fingerprint=FINGERPRINT | parts))
    assert f"nothing is reused of {there / 'old'}: {why}" in caplog.messages
    assert (asked, report.reused, report.sources) == (98, 0, ())
    run(job, tmp_path / "fresh", engine=FakeEngine(fingerprint=FINGERPRINT | parts))
    check(job, tmp_path / "new", tmp_path / "fresh")


def test_only_what_differs_is_told_and_never_two_beginnings_that_are_equal(there: Path) -> None:
    old, new = (make_job(there / "in", sampling={"stop": ["a" * 50 + end]}) for end in "bc")
    engines = [FakeEngine(fingerprint={"limits": f'{{"max_model_len": {most}, "eos": [1]}}'}) for most in (8, 9)]
    then, now = (job.fingerprint(engine) for job, engine in zip((old, new), engines, strict=True))
    found = reuse._obstacles(replace(read_manifest(there / "old"), fingerprint=then), old.spec, now, new.spec)
    assert found == ["limits.max_model_len 8 -> 9", "sampling.stop is another"]


@pytest.mark.parametrize(("n", "to_make"), [(3, "sample 2"), (4, "sample 2 to 3")])
def test_what_is_said_before_it_starts(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, n: int, to_make: str
) -> None:
    caplog.set_level(logging.INFO)
    run(make_job(there / "in", sampling={"n": n}), tmp_path / "new", there / "old")
    text = (
        f"up to 96 of {50 * n} samples are reused: those of the same row key and prompt; to make: {to_make} of each row"
    )
    assert f"{there / 'old'}: {text}" in caplog.messages


def test_an_untrue_row_is_not_taken_nor_any_of_its_file(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one whose own row_hash fits it."""
    run(make_job(there / "in"), tmp_path / "old")
    run_damage.rewrite(tmp_path / "old", 1, run_damage.put("text", 5, "?"))
    run_damage.rewrite(tmp_path / "old", 2, lambda table: run_damage.rehash(run_damage.put("text", 5, "?")(table)))
    (tmp_path / "old" / "rows" / "part-00003.parquet").unlink()
    job = make_job(there / "in", sampling={"n": 3})
    _, asked = run(job, tmp_path / "new", tmp_path / "old")
    check(job, tmp_path / "new", tmp_path / "fresh")
    assert asked == 3 * 24 + 24 + 3
    warned = [at.getMessage().rpartition("; ")[2] for at in caplog.records if at.levelno >= logging.WARNING]
    assert warned == [f"rows/part-0000{shard}.parquet is not reused" for shard in (1, 2, 3)]


def test_a_row_that_changes_meanwhile_is_not_taken(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_job(there / "in"), tmp_path / "old")
    opened = EarlierRun.open

    def changing(*args: Any) -> Any:
        found = opened(*args)
        run_damage.rewrite(tmp_path / "old", 4, run_damage.put("text", 5, "?"))
        return found

    monkeypatch.setattr(EarlierRun, "open", changing)
    _, asked = run(make_job(there / "in"), tmp_path / "new", tmp_path / "old")
    check(make_job(there / "in"), tmp_path / "new", there / "old")
    assert asked == 16 + 2
    assert caplog.messages[-1].endswith("rows/part-00004.parquet is no longer reused")


def test_a_run_whose_hashes_fit_but_not_its_root_is_refused(there: Path, tmp_path: Path) -> None:
    run(make_job(there / "in"), tmp_path / "old")
    run_damage.forge(tmp_path / "old", 1, run_damage.put("text", 5, "?"), root=False)
    with pytest.raises(RunError, match="cannot be reused: its root is not that of its rows"):
        run(make_job(there / "in", sampling={"n": 3}), tmp_path / "new", tmp_path / "old")


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_forged_row_is_found_by_its_probe(there: Path, tmp_path: Path, replicas: int) -> None:
    """Its hashes, digest and root fit; only making it again tells."""
    run(make_job(there / "in"), tmp_path / "old")
    for column, row, value in (("stop_reason", 5, "token:?"), ("prompt_token_ids", 8, None)):
        run_damage.forge(tmp_path / "old", 1, run_damage.put(column, row, value), root=True)
    job, reason = (
        make_job(there / "in", sampling={"n": 3}),
        "'row-10' sample 1 was taken from an earlier run, made again",
    )
    config = RunConfig(tmp_path / "new", rows_per_shard=8, probe=1, reuse=(tmp_path / "old",), replicas=replicas or 1)
    made = partial(run_replicas, job, ThreadFleet(job, config)) if replicas else partial(run_local, job, FakeEngine())
    with pytest.raises(VerifyError, match=reason):
        made(config)


def test_probes_make_what_was_taken_again(there: Path, tmp_path: Path) -> None:
    engine, job = FakeEngine(), make_job(there / "in", sampling={"n": 3})
    report, asked = run(job, tmp_path / "new", there / "old", engine=engine, probe=1)
    check(job, tmp_path / "new", tmp_path / "fresh")
    assert (report.reused, report.probes, asked) == (96, 147, 147 + 51)
    assert sum(request.fresh for request in engine.asked) == 147


@pytest.mark.parametrize("probe", [0, 0.005])
def test_counter_a_sample_of_another_seed_is_caught(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: float
) -> None:
    """Whoever forgets to compare seeds makes another root, and by default hears of it at the first probe."""
    monkeypatch.setattr(reuse, "_obstacles", lambda *_: [])
    job = make_job(there / "in", seed=1)
    run(job, tmp_path / "right", there / "old", probe=probe)
    check(job, tmp_path / "right", tmp_path / "fresh")
    monkeypatch.setattr(Known, "answers", lambda *_: True)
    if probe:
        with pytest.raises(VerifyError, match="was taken from an earlier run, made again and differs"):
            run(job, tmp_path / "wrong", there / "old", probe=probe)
    else:
        run(job, tmp_path / "wrong", there / "old", probe=probe)
        with pytest.raises(AssertionError):
            check(job, tmp_path / "wrong", tmp_path / "fresh")


def test_of_a_run_that_is_not_finished_what_is_there(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(make_job(there / "in"), tmp_path / "old")
    whole = read_manifest(tmp_path / "old")
    write_manifest(tmp_path / "old", replace(whole.with_shards(whole.shards[2:5]), root=None))
    job = make_job(there / "in", sampling={"n": 3})
    report, asked = run(job, tmp_path / "new", tmp_path / "old")
    check(job, tmp_path / "new", tmp_path / "fresh")
    assert (report.reused, asked) == (48, 147 - 48)
    assert read_manifest(tmp_path / "new").reuse == (ReuseRecord("../old", None),)
    assert any("it is not finished, 48 of its 100 samples are there" in message for message in caplog.messages)


class Stops(Exception):
    """In the middle of a run."""


def test_a_run_that_is_stopped_goes_on(there: Path, tmp_path: Path) -> None:
    """With other earlier runs, and with none: what it has taken stays, and stays counted."""
    job = make_job(there / "in", sampling={"n": 3})
    run(make_job(write(tmp_path / "in2", lambda t: t.slice(30)), sampling={"n": 3}), tmp_path / "tail")

    def until(samples: int, *earlier: Path) -> JobReport:
        def stop(progress: Progress) -> None:
            if progress.done >= samples:
                raise Stops

        config = RunConfig(tmp_path / "new", rows_per_shard=4, max_num_seqs=2, reuse=earlier)
        return run_local(job, FakeEngine(max_num_seqs=2), config, stop)

    for samples, earlier in ((60, there / "old"), (120, tmp_path / "tail")):
        with pytest.raises(Stops):
            until(samples, earlier)
        assert set(verify_run(tmp_path / "new").counts) == {"unfinished"}
    report = until(1000)
    check(job, tmp_path / "new", tmp_path / "fresh")
    manifest = read_manifest(tmp_path / "new")
    counts = [samples for _, samples in manifest.reused]
    assert [run.path.rpartition("/")[2] for run in manifest.reuse] == ["old", "tail"]
    assert min(counts) > 0
    assert sum(counts) <= report.resumed
    assert report.reused == 0


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas(there: Path, tmp_path: Path, replicas: int) -> None:
    job, shown = make_job(write(tmp_path / "in", rows=60), sampling={"n": 3}), list[tuple[int, int]]()
    config = RunConfig(tmp_path / "new", rows_per_shard=4, max_num_seqs=8, replicas=replicas, reuse=(there / "old",))
    engines = [FakeEngine(order=number) for number in range(replicas)]
    fleet = ThreadFleet(job, config, engines.__getitem__)
    report = run_replicas(job, fleet, config, lambda progress: shown.append((progress.done, progress.reused)))
    check(job, tmp_path / "new", tmp_path / "fresh")
    assert (report.reused, report.sources[0]["samples"], shown[-1]) == (96, 96, (180, 96))
    asked = [request for engine in engines for request in engine.asked]
    assert {(r.row_key, r.sample_index) for r in asked if not r.fresh} >= {(f"row-{i}", 2) for i in range(10, 50)}
    assert not any(
        request.sample_index < 2 and int(request.row_key[4:]) < 50
        for request in asked
        if not request.fresh and "bad" not in request.row_key
    )


def test_what_cannot_be_reused_is_told_at_once(there: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        check_runs([tmp_path], tmp_path / "new")
    with pytest.raises(RunError, match="cannot be made of its own samples"):
        check_runs([there / "in" / ".." / "old"], there / "old")
    (tmp_path / "odd").mkdir()
    whole = read_manifest(there / "old")
    other, none = ({**whole.spec, "seed": seed} for seed in ("1", "x"))
    of_none = {**whole.fingerprint, "job_fingerprint": hashlib.sha256(rfc8785.dumps(none)).hexdigest()}
    for spec, prints, why in (
        (other, whole.fingerprint, "job_fingerprint is not that of its spec"),
        (none, of_none, "its spec is not that of a job: seed"),
    ):
        write_manifest(tmp_path / "odd", replace(whole, spec=spec, fingerprint=prints))
        with pytest.raises(RunError, match=f"odd/manifest.json: cannot be reused: {why}"):
            check_runs([there / "old", tmp_path / "odd"], tmp_path / "new")
