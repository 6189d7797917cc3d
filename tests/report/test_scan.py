"""One pass over the rows: every number as DuckDB counts it on the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from support.fake_engine import complete
from support.fake_jobs import read_rows
from support.report_runs import failed, ok, write_run

from batchgen.errors import RunError
from batchgen.io.manifest import part_name, read_manifest
from batchgen.records import Completion, Request
from batchgen.report import scan as module
from batchgen.report.scan import NUM_FAILED, Scan, rows_at, scan

Counts = Callable[[str], list[tuple[Any, ...]]]


def answer(request: Request) -> Completion:
    """Answers of which many are equal, some cut, some failed."""
    number = int(request.row_key.split("-")[1])
    if number % 11 == 3:
        return failed(request, f"sample {request.sample_index}")
    if number % 5 == 0:
        return ok(request, [number, request.sample_index // 2], "pairs", "length")
    return complete(request)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 prompts, 4 samples of each, some prompts of no token. Read it, never change it."""
    keys = [f"row-{i}" for i in range(300)]
    lengths = [0 if i % 37 == 1 else 1 + i * i % 90 for i in range(300)]
    return write_run(
        tmp_path_factory.mktemp("scan"), keys, answer, lengths=lengths, sampling={"n": 4}, rows_per_shard=7
    )


@pytest.fixture(scope="module")
def found(run: Path) -> Scan:
    return scan(run, read_manifest(run))


@pytest.fixture(scope="module")
def sql(run: Path) -> Counts:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            files = str(run / "rows" / "*.parquet")
            connection.execute(f"CREATE VIEW samples AS SELECT * FROM read_parquet('{files}')")
            rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
            return rows

    return ask


def test_counts(found: Scan, sql: Counts) -> None:
    by_reason: dict[str, int] = dict(sql("SELECT finish_reason, count(*) FROM samples GROUP BY ALL"))
    tally = found.tally
    assert by_reason == {"stop": tally.stop, "length": tally.length, "error": tally.error}
    assert sql("SELECT count(*), sum(num_prompt_tokens), sum(num_output_tokens) FROM samples") == [
        (tally.rows, tally.prompt_tokens, tally.output_tokens)
    ]


def test_lengths(found: Scan, sql: Counts) -> None:
    one = "SELECT num_prompt_tokens, count(*) FROM samples WHERE sample_index = 0 AND num_prompt_tokens IS NOT NULL"
    assert dict(found.prompts.counts) == dict(sql(f"{one} GROUP BY ALL"))
    for reason, lengths in (("stop", found.stopped), ("length", found.cut)):
        query = f"SELECT num_output_tokens, count(*) FROM samples WHERE finish_reason = '{reason}' GROUP BY ALL"
        assert dict(lengths.counts) == dict(sql(query))
    spread = found.prompts.spread()
    assert spread is not None
    query = f"SELECT median(x), min(x), max(x) FROM ({one.replace(', count(*)', ' AS x')})"
    [(median, minimum, maximum)] = sql(query)
    assert (spread.minimum, spread.maximum) == (minimum, maximum)
    assert abs(spread.median - median) <= 1, "DuckDB takes the mean of the two in the middle"


def test_diversity(found: Scan, sql: Counts) -> None:
    per_prompt = """
        SELECT distinct_answers, count(*) FROM (
            SELECT row_key, count(DISTINCT token_ids) AS distinct_answers FROM samples
            GROUP BY row_key HAVING bool_and(status = 'ok'))
        GROUP BY ALL"""
    diversity = found.diversity
    assert diversity is not None
    expected: dict[int, int] = dict(sql(per_prompt))
    assert dict(enumerate(diversity.distinct, 1)) == {count: expected.get(count, 0) for count in range(1, 5)}
    assert diversity.distinct[1], "the case is in the data"
    assert [(diversity.left_out,)] == sql("SELECT count(DISTINCT row_key) FROM samples WHERE status = 'error'")


def test_errors(found: Scan, sql: Counts) -> None:
    counts = sql("SELECT error_code, count(*) FROM samples WHERE status = 'error' GROUP BY ALL")
    assert {code: error.count for code, error in found.errors.items()} == dict(counts)
    assert set(found.errors) == {"prompt_empty", "non_finite_logits"}
    first = found.errors["prompt_empty"].first
    assert (first.row_key, first.sample_index, first.error_message) == ("row-1", 0, "no token in row-1")


def test_the_first_failed_rows_in_order(run: Path, found: Scan) -> None:
    rows = [row for row in read_rows(run).to_pylist() if row["status"] == "error"]
    expected = [(row["row_key"], row["sample_index"], row["error_message"]) for row in rows[:NUM_FAILED]]
    assert len(rows) > NUM_FAILED
    assert [(row.row_key, row.sample_index, row.error_message) for row in found.failed] == expected


@pytest.mark.parametrize("batch_rows", [1, 3, 64])
def test_batches_cannot_be_seen(run: Path, found: Scan, batch_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", batch_rows)
    again = scan(run, read_manifest(run))
    assert again.tally == found.tally
    assert again.prompts.counts == found.prompts.counts
    assert again.diversity == found.diversity
    assert (again.errors, again.failed) == (found.errors, found.failed)


def test_what_is_kept_does_not_grow(run: Path, found: Scan) -> None:
    """Fed the same rows again and again, as a run of any size would be."""
    manifest = read_manifest(run)
    grown = Scan(manifest.plan.n)
    for _ in range(5):
        for shard in manifest.shards:
            grown.add(pq.read_table(run / part_name(shard.index), columns=grown.columns()))
    assert grown.tally.rows == 5 * found.tally.rows
    assert len(grown.failed) == NUM_FAILED
    assert grown.errors.keys() == found.errors.keys()
    assert grown.prompts.counts == {length: 5 * count for length, count in found.prompts.counts.items()}
    assert grown.diversity is not None
    assert found.diversity is not None
    assert grown.diversity.distinct == tuple(5 * count for count in found.diversity.distinct)
    assert len(grown.diversity.least) == len(found.diversity.least)


def test_rows_by_their_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", 5)
    rows = read_rows(run).to_pylist()
    places = {0, 1, 4, 5, 27, 28, 29, 600, len(rows) - 1}
    found = rows_at(run, read_manifest(run), places)
    assert found.keys() == places
    for place, row in found.items():
        assert row == {name: rows[place][name] for name in row}
        assert {"row_key", "text", "prompt_token_ids", "row_hash"} <= row.keys()


@pytest.mark.parametrize("fault", ["gone", "torn", "short", "column"])
def test_files_that_cannot_be_counted(tmp_path: Path, fault: str) -> None:
    run = write_run(tmp_path, [f"row-{i}" for i in range(10)])
    file = run / part_name(1)
    table = pq.read_table(file)
    messages = {"gone": "cannot be read", "torn": "cannot be read", "short": "does not hold the rows"}
    if fault == "gone":
        file.unlink()
    elif fault == "torn":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        pq.write_table(table.slice(1) if fault == "short" else table.drop_columns(["status"]), file)
    with pytest.raises(
        RunError, match=rf"part-00001\.parquet: {messages.get(fault, 'lacks the column status')}"
    ) as caught:
        scan(run, read_manifest(run))
    assert caught.value.hint == f"batchgen verify {run} says what is wrong"


def test_one_sample_of_each_prompt_has_no_diversity(tmp_path: Path) -> None:
    run = write_run(tmp_path, ["row-0", "row-2"], sampling={"n": 1})
    found = scan(run, read_manifest(run))
    assert found.diversity is None
    assert "token_ids" not in found.columns()
