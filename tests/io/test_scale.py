"""At scale: prompts are read once, and no list of keys or rows is ever held."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_engine import FakeEngine
from support.fake_jobs import build_prompt, run
from support.jobs import job_spec

from batchgen.errors import EngineError
from batchgen.executor.base import Job
from batchgen.io import inputs as inputs_module
from batchgen.io import reader
from batchgen.io.inputs import scan_inputs
from batchgen.io.manifest import read_manifest
from batchgen.io.reader import Block, InputFile, Inputs
from batchgen.plan import make_plan
from batchgen.verify.integrity import verify_run

ROWS = 300


def write_files(folder: Path, files: int, rows: int) -> Path:
    """Of `rows` each; small row groups."""
    for file in range(files):
        ids = [f"row-{i}" for i in range(file * rows, (file + 1) * rows)]
        table = pa.table({"id": ids, "prompt": [f"prompt {i}" for i in ids], "label": ids})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=max(20, rows // 2))
    return folder


def job_of(folder: Path, **sections: Any) -> Job:
    entry = {"path": "part-*.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["label"]}
    spec = job_spec(entry, sampling={"n": 2, "max_tokens": 4}, **sections)
    return Job(spec, b"", scan_inputs(spec, folder), spec.sampling, build_prompt)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows were read of each column."""
    found: Counter[str] = Counter()
    real = reader.read_blocks

    def counting(
        inputs: Inputs, start: int, stop: int, columns: Callable[[Inputs, InputFile], list[str]]
    ) -> Iterator[Block]:
        for block in real(inputs, start, stop, columns):
            found.update({name: len(block.numbers) for name in block.batch.schema.names})
            yield block

    monkeypatch.setattr(reader, "read_blocks", counting)
    monkeypatch.setattr(inputs_module, "read_blocks", counting)
    return found


def test_a_plan_reads_no_prompt_and_a_run_reads_each_once(tmp_path: Path, reads: Counter[str]) -> None:
    job = job_of(write_files(tmp_path, 3, ROWS // 3))
    make_plan(job.spec, job.inputs)
    assert reads == {"id": ROWS, "label": ROWS}
    run(job, tmp_path / "run")
    assert reads["prompt"] == ROWS


def test_who_goes_on_reads_only_what_is_missing(tmp_path: Path, reads: Counter[str]) -> None:
    class Dying(FakeEngine):
        def generate(self, requests: Any) -> Any:
            for number, completion in enumerate(super().generate(requests)):
                if number == 400:
                    raise EngineError("out of memory")
                yield completion

    job = job_of(write_files(tmp_path, 3, ROWS // 3))
    with pytest.raises(EngineError):
        run(job, tmp_path / "run", Dying())
    done = sum(shard.stop - shard.start for shard in read_manifest(tmp_path / "run").shards)
    assert done > ROWS // 2
    reads.clear()
    run(job_of(tmp_path), tmp_path / "run")
    assert ROWS - done <= reads["prompt"] <= ROWS - done + 1024  # of each gap, the batch in which it begins
    assert reads["prompt"] < ROWS


def test_verify_reads_no_input(tmp_path: Path, reads: Counter[str]) -> None:
    run(job_of(write_files(tmp_path, 3, ROWS // 3)), tmp_path / "run")
    reads.clear()
    assert verify_run(tmp_path / "run").ok
    assert not reads


def peak(work: Callable[[], object]) -> int:
    """Bytes: the most that Python, numpy and Arrow held at once."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return int(most + pa.total_allocated_bytes() - before)


def test_to_plan_takes_few_bytes_a_row(tmp_path: Path) -> None:
    rows = 400_000
    write_files(tmp_path, 4, rows // 4)
    spec = job_spec({"path": "part-*.parquet", "columns": {"prompt": "prompt"}})
    assert peak(lambda: make_plan(spec, scan_inputs(spec, tmp_path))) < 24 * rows + (9 << 20)


def test_counter_a_list_of_the_keys_takes_more(tmp_path: Path) -> None:
    rows = 400_000
    write_files(tmp_path, 4, rows // 4)
    spec = job_spec({"path": "part-*.parquet", "columns": {"prompt": "prompt"}})
    inputs = scan_inputs(spec, tmp_path)
    assert peak(lambda: [key for block in reader.read_keys(inputs) for key in block]) > 24 * rows + (9 << 20)
