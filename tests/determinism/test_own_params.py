"""A row that says sampling parameters itself gives the bits of a job that says them, whoever is beside it.

Guards against parameters that leak from a row to its mates, that hang on the place in a batch, and that a record of the
row does not tell (peers keep per-request parameters in no output at all).
"""

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.own_jobs import BASE, KINDS, OWN, ROWS, TYPES, job_text, write_own_jobs, write_rows
from support.tiny_jobs import make, samples_of

from batchgen.errors import Interrupted
from batchgen.executor.base import Progress
from batchgen.io.manifest import read_manifest
from batchgen.spec import JobSpec
from batchgen.text.asking import RowParams
from batchgen.verify.explain import explain_run
from batchgen.verify.integrity import verify_run
from batchgen.verify.ledger import Ledger

Rows = dict[tuple[str, int], dict[str, Any]]


def rows_of(out: Path) -> Rows:
    parts = sorted((out / "rows").glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return {(row["row_key"], row["sample_index"]): row for row in rows}


def without_record(rows: Rows) -> Rows:
    """But for what the row said, and with it its hash."""
    return {name: {k: v for k, v in row.items() if k not in ("sampling", "row_hash")} for name, row in rows.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own_jobs(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    make(folder, folder / "whole", "own")
    return folder / "whole"


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Rows:
    """Of jobs that say for all rows what those of a kind say themselves."""
    rows: Rows = {}
    for index in range(len(KINDS)):
        make(folder, folder / "kinds" / str(index), f"kind{index}", probe=0)
        rows |= rows_of(folder / "kinds" / str(index))
    return without_record(rows)


def test_every_row_is_that_of_a_job_which_says_the_same(whole: Path, wanted: Rows) -> None:
    assert without_record(rows_of(whole)) == wanted
    assert {row["status"] for row in wanted.values()} == {"ok"}


def test_counter_rows_that_nobody_listens_to_are_caught(
    folder: Path, wanted: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the job's own parameters: other tokens in every kind but the first, which says nothing."""
    monkeypatch.setattr(RowParams, "of", lambda self, sampling: self.job)
    make(folder, tmp_path / "deaf", "own", probe=0)
    deaf = rows_of(tmp_path / "deaf")
    odd = {int(name[0][1:]) % len(KINDS) for name, row in deaf.items() if row["token_ids"] != wanted[name]["token_ids"]}
    assert odd == set(range(1, len(KINDS)))


@pytest.mark.parametrize(
    "how",
    [
        {"max_num_seqs": 1, "rows_per_shard": 7},
        {"max_num_batched_tokens": 7, "prefix_cache": False, "rows_per_shard": 1000},
        {"probe": 1, "max_num_seqs": 5},
    ],
)
def test_however_it_is_run(folder: Path, whole: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    assert make(folder, tmp_path / "run", "own", **how).root == read_manifest(whole).root


def test_other_mates_in_another_order(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Backwards, and without every other row."""
    table = pq.read_table(folder / "in.parquet")
    pq.write_table(table.take(list(range(ROWS))[::-2]), tmp_path / "in.parquet")
    (tmp_path / "model").symlink_to(folder / "model")
    (tmp_path / "own.yaml").write_text((folder / "own.yaml").read_text())
    make(tmp_path, tmp_path / "run", "own")
    found, known = samples_of(tmp_path / "run"), samples_of(whole)
    assert len(found) == ROWS
    assert found.items() <= known.items()


def test_stopped_and_resumed(folder: Path, whole: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 45:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        make(folder, tmp_path / "run", "own", on_progress=stop)
    report = make(folder, tmp_path / "run", "own", max_num_seqs=3)
    assert (report.root, report.resumed > 0) == (read_manifest(whole).root, True)
    assert verify_run(tmp_path / "run").ok


def test_explain_makes_such_a_row_again(whole: Path) -> None:
    found = explain_run(Ledger.open(whole, lambda done, total: None), "k8", 1)
    assert (found.differs, [side.reproduced for side in found.sides]) == (False, [True, True])


def test_an_earlier_run_gives_the_rows_that_still_say_the_same(folder: Path, whole: Path, tmp_path: Path) -> None:
    said = [KINDS[i % len(KINDS)] for i in range(ROWS)]
    said[4] = said[4] | {"top_k": 31}
    said[11] = {}
    write_rows(tmp_path / "in.parquet", said)
    (tmp_path / "model").symlink_to(folder / "model")
    (tmp_path / "own.yaml").write_text(job_text(BASE | {"n": 3}, sampling=OWN))
    report = make(tmp_path, tmp_path / "run", "own", reuse=(whole,), probe=1)
    assert report.reused == 2 * (ROWS - 2)
    assert make(tmp_path, tmp_path / "again", "own").root == report.root


def test_jobs_whose_rows_say_nothing_stay_as_they_were(folder: Path, whole: Path, wanted: Rows) -> None:
    plain, own = (read_manifest(out) for out in (folder / "kinds" / "0", whole))
    columns = [name for name, _ in plain.columns]
    assert "sampling" not in columns
    assert [name for name, _ in own.columns] == [*columns[:-2], "sampling", *columns[-2:]]
    [entry] = JobSpec.from_resolved(plain.spec).resolved()["inputs"]
    assert "sampling" not in entry
    assert OWN.keys() == TYPES.keys()
