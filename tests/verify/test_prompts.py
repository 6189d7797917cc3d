"""Prompts built again from the input: the same ids, or a clear word about what is no longer as it was."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import FAILING, NOT_FINITE, edit_fingerprint, edit_manifest, make_run, sha256, write_input

from batchgen.errors import BatchgenError, InputError, RowError
from batchgen.io.manifest import read_manifest
from batchgen.verify.ledger import Ledger
from batchgen.verify.prompts import InputPrompts, Prompts, StoredPrompts


def open_(run: Path, job_dir: Path | None = None) -> Ledger:
    return Ledger.open(run, lambda done, total: None, job_dir)


def everything(ledger: Ledger, prompts: Prompts) -> dict[tuple[str, int], Any]:
    """(row_key, position in its shard) -> (ids or error code, passthrough row)."""
    found = {}
    for shard in ledger.manifest.shards:
        table = ledger.table(shard)
        positions = prompts.known(table, range(table.num_rows))
        made, passthrough = prompts.of(shard, table, positions)
        rows = passthrough.to_pylist() if passthrough.num_columns else [None] * len(made)
        for position, prompt, row in zip(positions, made, rows, strict=True):
            what = prompt.ids.code if isinstance(prompt.ids, RowError) else prompt.ids
            found[prompt.row_key, position] = what, row
    return found


@pytest.mark.parametrize(("name", "errors"), [("features", 4), ("greedy", 2)])
def test_both_sources_agree(made: Path, name: str, errors: int) -> None:
    ledger = open_(made / "runs" / name)
    stored = everything(ledger, StoredPrompts())
    built = everything(ledger, InputPrompts(ledger))
    assert len(built) == ledger.manifest.counts.rows
    assert len(stored) == len(built) - errors
    assert stored.items() <= built.items()
    failed = {key: what for (key, _), (what, _) in built.items() if isinstance(what, str)}
    assert failed == dict(zip(FAILING, ("prompt_null", "prompt_overlong"), strict=True))
    assert NOT_FINITE in {key for key, _ in stored}


@pytest.mark.parametrize("source", [StoredPrompts, InputPrompts])
def test_some_positions(made: Path, source: Any) -> None:
    """In the middle of a shard, one sample of a row and both of another."""
    ledger = open_(made / "runs/features")
    prompts = source(ledger) if source is InputPrompts else source()
    shard = ledger.manifest.shards[2]
    made_again, passthrough = prompts.of(shard, ledger.table(shard), [3, 6, 7])
    assert [prompt.row_key for prompt in made_again] == ["k11", "k13", "k13"]
    assert [row["label"] for row in passthrough.to_pylist()] == ["ü", None, None]


def refused(run: Path, *texts: str, job_dir: Path | None = None) -> BatchgenError:
    ledger = open_(run, job_dir)
    with pytest.raises(InputError) as caught:
        InputPrompts(ledger)
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def test_input_that_changed(folder: Path) -> None:
    """Also where it can no longer be read as the job says: the change is told, not what comes of it."""
    then = sha256(folder / "in.parquet")
    write_input(folder, k1="Something else.")
    now = sha256(folder / "in.parquet")
    refused(folder / "runs/features", "in.parquet: has changed since the run", f"SHA-256 {now} now, {then} then")
    (folder / "in.parquet").write_bytes(b"torn")
    refused(folder / "runs/features", "in.parquet: has changed since the run", f"{then} then")


def test_input_that_is_gone(folder: Path, tmp_path: Path, made: Path) -> None:
    (folder / "in.parquet").unlink()
    looked = str((folder).resolve())
    refused(folder / "runs/features", "the input is gone", "in.parquet", f"seen from {looked}", "--job-dir")
    ledger = open_(folder / "runs/features", made)
    assert len(everything(ledger, InputPrompts(ledger))) == 36


def test_a_file_more_or_less(folder: Path) -> None:
    """Of a job that names its files by a pattern."""
    (folder / "data").mkdir()
    for name in ("part-1", "part-2"):
        shutil.copy(folder / "in.parquet", folder / f"data/{name}.parquet")
    text = (folder / "greedy.yaml").read_text(encoding="utf-8")
    text = text.replace("{path: in.parquet,", "{path: data/*.parquet, limit: 20,")
    text = text.replace("{column: id}", "{column: id, on_duplicate: suffix}")
    (folder / "many.yaml").write_text(text, encoding="utf-8")
    run = folder / "runs/many"
    make_run(folder, run, "many", probe=0.0)
    assert [record.rows for record in read_manifest(run).inputs] == [18, 2]
    ledger = open_(run)
    assert len(everything(ledger, InputPrompts(ledger))) == 20
    shutil.copy(folder / "in.parquet", folder / "data/part-0.parquet")
    refused(run, "the job now takes other files: part-0.parquet, part-2.parquet")
    (folder / "data/part-0.parquet").unlink()
    shutil.rmtree(folder / "data")
    refused(run, "the input is gone: no file matches 'data/*.parquet'")


def test_other_rows_of_the_same_files(folder: Path) -> None:
    run = folder / "runs/greedy"
    digest = read_manifest(run).fingerprint["inputs_digest"]
    edit_fingerprint(run, inputs_digest=digest[::-1])
    refused(run, "the job now takes other rows of its files")


def test_other_passthrough_columns(folder: Path) -> None:
    run = folder / "runs/features"
    columns = [list(column) for column in read_manifest(run).columns]
    columns[-1][0] = "mate"
    edit_manifest(run, columns=columns)
    refused(run, "the passthrough columns are not those of the run")


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("k0", [], ["k1", "k2"]), ("k4", ["k2", "k3"], ["k5", "k6"]), ("k17", ["k15", "k16"], [])],
)
def test_the_neighbours_of_a_row(made: Path, key: str, before: list[str], after: list[str]) -> None:
    ledger = open_(made / "runs/greedy")
    earlier, row, later = InputPrompts(ledger).around(key, 2)
    assert ([one.row_key for one in earlier], row.row_key, [one.row_key for one in later]) == (before, key, after)
    stored = {name: what for (name, _), (what, _) in everything(ledger, StoredPrompts()).items()}
    for prompt in (*earlier, row, *later):
        assert isinstance(prompt.ids, RowError) if prompt.row_key in FAILING else prompt.ids == stored[prompt.row_key]


def test_a_row_that_is_not_in_the_input(made: Path) -> None:
    with pytest.raises(InputError, match="the input has no row 'k99'"):
        InputPrompts(open_(made / "runs/greedy")).around("k99", 2)
