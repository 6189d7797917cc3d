"""Runs with probes: nothing of them can be seen in the rows, and an engine that answers differently is stopped."""

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny_runs
from support.batch_dependent import batch_dependent
from support.bent_engine import next_float
from support.cache_faults import one_token_short
from support.fake_engine import FakeEngine
from support.fake_jobs import make_job, write_input
from support.tiny_runs import make_run, write_jobs

from batchgen import kernels
from batchgen.errors import BatchgenError, Interrupted, RunError, VerifyError
from batchgen.executor.base import Job, Progress
from batchgen.executor.local import run_local
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import start_engine
from batchgen.io.events import read_events
from batchgen.io.manifest import part_name, read_manifest
from batchgen.io.run_folder import RunFolder
from batchgen.loader import load_job
from batchgen.records import Completion, Request
from batchgen.verify.integrity import verify_run

PER_SHARD = 8


@dataclass
class Faulty(FakeEngine):
    """Answers `sample` otherwise when it is asked for it a second time."""

    sample: tuple[str, int] = ("row-0", 0)
    change: Callable[[Completion], Completion] = lambda completion: completion
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        for completion in FakeEngine.generate(self, requests):
            name = completion.row_key, completion.sample_index
            self.seen[name] += 1
            is_second = self.seen[name] == 2 and name == self.sample
            yield self.change(completion) if is_second else completion


def one_bit(completion: Completion) -> Completion:
    logprobs = list(completion.logprobs or ())
    return replace(completion, logprobs=(*logprobs[:-1], next_float(logprobs[-1])))


FAULTS: dict[str, Callable[[Completion], Completion]] = {
    "logprobs": one_bit,
    "token_ids": lambda c: replace(c, token_ids=(*c.token_ids[:-1], 1001)),
    "text": lambda c: replace(c, text=c.text + " "),
    "finish_reason": lambda c: replace(c, finish_reason="stop" if c.finish_reason == "length" else "length"),
}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """50 rows of two samples: 2 without a prompt, and none that the engine refuses."""
    return make_job(write_input(tmp_path / "in", 50, bad=[3, 40]), sampling={"logprobs": 1})


def make(job: Job, out: Path, engine: FakeEngine | None = None, probe: float = 0.005, **how: Any) -> JobReport:
    engine = engine or FakeEngine()
    config = RunConfig(out, max_num_seqs=engine.max_num_seqs, probe=probe, **({"rows_per_shard": PER_SHARD} | how))
    return run_local(job, engine, config)


def asked_twice(engine: FakeEngine) -> set[tuple[str, int]]:
    counts = Counter((request.row_key, request.sample_index) for request in engine.asked)
    assert set(counts.values()) <= {1, 2}
    return {name for name, count in counts.items() if count == 2}


@pytest.mark.parametrize("per_shard", [1, 8, 50])
@pytest.mark.parametrize("max_num_seqs", [1, 8, 200])
def test_the_root_does_not_know_of_probes(job: Job, tmp_path: Path, per_shard: int, max_num_seqs: int) -> None:
    root = make(job, tmp_path / "none", probe=0).root
    for probe in (0.005, 0.3, 1):
        engine = FakeEngine(order=per_shard, max_num_seqs=max_num_seqs)
        out = tmp_path / str(probe)
        report = make(job, out, engine, probe, rows_per_shard=per_shard)
        assert report.root == root
        assert len(asked_twice(engine)) == report.probes == read_manifest(out).probes
        assert engine.most_held <= max_num_seqs
        assert verify_run(out).ok


def test_none_few_and_all(job: Job, tmp_path: Path) -> None:
    counts = {}
    for probe in (0, 0.005, 0.2, 1):
        engine = FakeEngine()
        counts[probe] = make(job, tmp_path / str(probe), engine, probe).probes
        assert len(engine.asked) == 96 + counts[probe]
    assert (counts[0], counts[1]) == (0, 96)
    assert 2 <= counts[0.005] <= 4
    assert 10 <= counts[0.2] <= 30


def test_shards_count_their_own_probes(job: Job, tmp_path: Path) -> None:
    engine = FakeEngine()
    make(job, tmp_path / "run", engine, 0.2)
    rows = Counter(int(key.removeprefix("row-")) // PER_SHARD for key, _ in asked_twice(engine))
    assert {s.index: s.probes for s in read_manifest(tmp_path / "run").shards if s.probes} == rows


def test_a_probe_has_other_company(job: Job, tmp_path: Path) -> None:
    """It is asked again only after a batch of others, as long as there are others."""
    engine = FakeEngine(max_num_seqs=8)
    make(job, tmp_path / "run", engine)
    order = [(request.row_key, request.sample_index) for request in engine.asked]
    again = [at for at, name in enumerate(order) if name in order[:at]]
    first = next(at for at in again if order[at][0] == "row-0")
    assert 8 <= first - order.index(order[first]) <= 40


def test_progress_counts_no_probe(job: Job, tmp_path: Path) -> None:
    seen: list[int] = []
    config = RunConfig(tmp_path / "run", max_num_seqs=8, rows_per_shard=PER_SHARD, probe=1)
    run_local(job, FakeEngine(), config, lambda progress: seen.append(progress.done))
    assert seen == list(range(101))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n", [1, 2])
def test_tiny_jobs(tmp_path: Path, rows: int, n: int) -> None:
    job = make_job(write_input(tmp_path / "in", rows), sampling={"n": n})
    report = make(job, tmp_path / "run")
    assert (report.counts.rows, report.probes) == (rows * n, min(2, rows * n))


def test_jobs_of_errors_alone(tmp_path: Path) -> None:
    """Of prompts that cannot be made there is nothing to probe; an error of the engine is compared like an answer."""
    without = make_job(write_input(tmp_path / "a", 9, bad=range(9)))
    assert (make(without, tmp_path / "run-a", probe=1).probes, without.inputs.num_rows) == (0, 9)
    failing = make_job(write_input(tmp_path / "b", 3), lambda row: [1])
    report = make(failing, tmp_path / "run-b", Refusing(), probe=1)
    assert (report.counts.error, report.probes) == (6, 6)
    with pytest.raises(VerifyError, match="error_message 'why', then 'why not'"):
        make(failing, tmp_path / "run-c", Refusing(change=lambda c: replace(c, error_message="why not")))


@dataclass
class Refusing(Faulty):
    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        for done in FakeEngine.generate(self, requests):
            failed = Completion(
                done.row_key, done.sample_index, (), "", "error", error_code="template", error_message="why"
            )
            self.seen[done.row_key, done.sample_index] += 1
            yield self.change(failed) if self.seen[done.row_key, done.sample_index] == 2 else failed


@pytest.mark.parametrize("what", FAULTS)
def test_an_engine_that_answers_otherwise_is_stopped(job: Job, tmp_path: Path, what: str) -> None:
    root = make(job, tmp_path / "whole").root
    out = tmp_path / "run"
    with pytest.raises(VerifyError, match=f"row 'row-0' sample 0 was made twice and differs: {what}") as caught:
        make(job, out, Faulty(order=4, change=FAULTS[what]))
    assert caught.value.where == str(out / "evidence" / "probe-001.json")
    assert "batchgen explain" in caught.value.hint

    evidence = json.loads((out / "evidence" / "probe-001.json").read_text())
    assert (evidence["row_key"], evidence["sample_index"]) == ("row-0", 0)
    assert evidence["differences"][0]["field"] == what
    assert evidence["first"][what] != evidence["second"][what]
    assert (evidence["run_config"]["probe"], evidence["engine"]) == (0.005, {"threads": 1})
    assert evidence["fingerprint"] == read_manifest(out).fingerprint
    assert len(evidence["ended_between"]) >= 8

    assert 0 not in {shard.index for shard in read_manifest(out).shards}
    assert not (out / part_name(0)).exists()
    assert verify_run(out).counts == {"unfinished": 1}
    events = read_events(out)
    assert events[-2] == {**events[-2], "event": "probe", "row_key": "row-0", "sample_index": 0, "exact": False}
    assert events[-1]["event"] == "stop"

    with pytest.raises(VerifyError):
        make(job, out, Faulty(order=4, change=FAULTS[what]))
    report = make(job, out)
    assert (report.root, report.failed_probes) == (root, 2)
    assert report.probes == read_manifest(out).probes >= 2
    assert [path.name for path in sorted((out / "evidence").iterdir())] == ["probe-001.json", "probe-002.json"]
    assert verify_run(out).ok


def test_without_probes_the_same_engine_goes_unseen(job: Job, tmp_path: Path) -> None:
    report = make(job, tmp_path / "run", Faulty(change=FAULTS["text"]), probe=0)
    assert (report.root, report.probes) == (make(job, tmp_path / "whole").root, 0)


def test_the_probe_is_told_even_when_its_evidence_cannot_be_kept(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise RunError("cannot write: No space left on device")

    monkeypatch.setattr(RunFolder, "keep_evidence", full)
    with pytest.raises(VerifyError, match="was made twice and differs") as caught:
        make(job, tmp_path / "run", Faulty(change=FAULTS["text"]))
    assert caught.value.where == str(tmp_path / "run")
    assert "the evidence is lost: cannot write" in caplog.text


def test_probes_of_all_processes_are_summed(job: Job, tmp_path: Path) -> None:
    root = make(job, tmp_path / "whole").root
    out = tmp_path / "run"

    def stop(progress: Progress) -> None:
        if progress.done == 60:
            raise KeyboardInterrupt

    config = RunConfig(out, max_num_seqs=8, rows_per_shard=PER_SHARD, probe=0.2)
    with pytest.raises(Interrupted):
        run_local(job, FakeEngine(), config, stop)
    kept = {shard.index: shard.probes for shard in read_manifest(out).shards}
    assert sum(kept.values()) > 0
    report = make(job, out, probe=0)
    assert (report.root, report.probes) == (root, sum(kept.values()))
    (out / part_name(6)).unlink()
    engine = FakeEngine()
    report = make(job, out, engine, probe=1)
    assert (report.root, len(asked_twice(engine))) == (root, 4)
    assert report.probes == sum(count for index, count in kept.items() if index != 6) + 4
    assert make(job, out).probes == report.probes  # a finished run, left alone


def test_a_slow_probe_holds_no_more_than_the_window(job: Job, tmp_path: Path) -> None:
    engine = FakeEngine(max_num_seqs=4, slow=frozenset({"row-0"}))
    report = make(job, tmp_path / "run", engine, probe=1, rows_per_shard=1)
    assert report.root == make(job, tmp_path / "whole", probe=0).root
    assert engine.calls > 2


def test_an_engine_that_loses_a_probe_is_caught(job: Job, tmp_path: Path) -> None:
    class Losing(Faulty):
        def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
            for completion in FakeEngine.generate(self, requests):
                name = completion.row_key, completion.sample_index
                self.seen[name] += 1
                if self.seen[name] == 1:
                    yield completion

    with pytest.raises(BatchgenError, match="2 completions never came, among them row 'row-0' sample 0"):
        make(job, tmp_path / "run", Losing(order=2))


@pytest.mark.parametrize("probe", [-0.1, 1.001, float("nan")])
def test_a_share_that_is_none(probe: float) -> None:
    with pytest.raises(ValueError, match="probe must be a share from 0 to 1"):
        RunConfig(Path("run"), probe=probe)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of the tiny model: 18 rows, among them two without a prompt and one whose logits are not finite."""
    return write_jobs(tmp_path_factory.mktemp("probes"))


@pytest.mark.parametrize("name", ["features", "greedy"])
def test_the_real_engine_is_exact(tiny: Path, tmp_path: Path, name: str) -> None:
    none = make_run(tiny, tmp_path / "none", name, probe=0)
    every = make_run(tiny, tmp_path / "all", name, probe=1)
    asked = none.counts.rows - (4 if name == "features" else 2)
    assert (none.probes, every.probes, every.root) == (0, asked, none.root)
    assert every.counts.error > none.counts.rows - asked  # the row that is not finite was probed too


def test_counter_a_kernel_that_sees_its_batch_is_caught(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default share: two probes find it, in a job that is a batch of its own and in one that is not."""
    nothing: Callable[[int, int | None], None] = lambda done, total: None  # noqa: E731
    job, model = load_job(tiny / "features.yaml", nothing)
    for max_num_seqs in (4, 64):
        config = RunConfig(tmp_path / str(max_num_seqs), max_num_seqs=max_num_seqs, threads=1)
        engine = start_engine(job.spec, model, config)  # proven before the fault
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "linear", batch_dependent)
            with pytest.raises(VerifyError, match=r"was made twice and differs: .* of token \d+: "):
                run_local(job, engine, config)
        assert (config.out / "evidence" / "probe-001.json").exists()


def test_counter_a_cache_that_shares_too_much_is_caught(tmp_path: Path) -> None:
    """A probe computes its prompt anew, so the blocks that its first pass was given are part of what is proven."""
    folder = write_jobs(tmp_path)
    alike = {f"k{i}": "x" * 9 + f"{i} of the word" for i in (0, 1)}  # they differ in the last token of a block
    tiny_runs.write_input(folder, **alike)
    assert make_run(folder, tmp_path / "right", probe=1).probes == 32
    with pytest.MonkeyPatch.context() as patch:
        one_token_short(patch)
        with pytest.raises(VerifyError, match=r"row 'k1' sample . was made twice and differs"):
            make_run(folder, tmp_path / "wrong", probe=1)
