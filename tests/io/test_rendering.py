"""Inputs whose prompts are made by templates: the rows they give, and faults that cost their own row only."""

import datetime
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.jobs import job_spec, text_of_bytes, write_parquet

from batchgen.errors import InputError
from batchgen.io.inputs import scan_inputs
from batchgen.io.reader import InputRow, Inputs, read_rows
from batchgen.spec import JobSpec


def spec(*, row_key: dict[str, Any] | None = None, **entry: Any) -> JobSpec:
    return job_spec({"path": "in.parquet"} | entry, row_key=row_key or {"column": "id"})


def rows_of(inputs: Inputs) -> list[InputRow]:
    return list(read_rows(inputs, 0, inputs.num_rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "in.parquet", id=["a", "b", "c"], topic=["tides", None, "ships"], level=[1, 2, 3])
    return tmp_path


def test_a_prompt_of_columns(folder: Path) -> None:
    rows = rows_of(scan_inputs(spec(prompt_template="{{ level }}: {{ topic }}"), folder))
    assert [row.prompt for row in rows] == ["1: tides", None, "3: ships"]
    assert [row.error.code if row.error else None for row in rows] == [None, "template", None]


def test_messages_of_columns(folder: Path) -> None:
    template = [
        {"role": "system", "content": "Level {{ level }}."},
        {"role": "user", "content": "{{ topic or 'all' }}"},
    ]
    rows = rows_of(scan_inputs(spec(messages_template=template), folder))
    assert rows[1].messages == [{"role": "system", "content": "Level 2."}, {"role": "user", "content": "all"}]
    assert rows[1].error is None


def test_bytes_that_are_no_text_fail_their_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a", "b"], topic=text_of_bytes([b"ok", b"\xff"]))
    rows = rows_of(scan_inputs(spec(prompt_template="{{ topic }}"), tmp_path))
    assert rows[0].prompt == "ok"
    assert rows[1].error is not None
    assert rows[1].error.code == "prompt_encoding"


def test_content_hashes_are_those_of_the_rendered_prompt(folder: Path) -> None:
    by_hash = {"derive": "content_hash"}
    made = rows_of(scan_inputs(spec(prompt_template="{{ level }}", row_key=by_hash), folder))
    write_parquet(folder / "in.parquet", prompt=["1", "2", "3"])
    given = rows_of(scan_inputs(spec(columns={"prompt": "prompt"}, row_key=by_hash), folder))
    assert [row.row_key for row in made] == [row.row_key for row in given]


def test_rows_that_cannot_be_rendered_have_keys_of_their_own(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", topic=[None, None], level=[1, 2])
    inputs = scan_inputs(spec(prompt_template="{{ level }} {{ topic }}", row_key={"derive": "content_hash"}), tmp_path)
    assert len({row.row_key for row in rows_of(inputs)}) == 2


def test_inputs_travel_to_other_processes(folder: Path) -> None:
    inputs = scan_inputs(spec(prompt_template="{{ level }}"), folder)
    assert rows_of(pickle.loads(pickle.dumps(inputs))) == rows_of(inputs)


def test_a_column_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        scan_inputs(spec(prompt_template="{{ topics }}"), folder)
    assert "no column 'topics'" in str(caught.value)
    assert "did you mean 'topic'?" in str(caught.value)


def test_a_column_without_a_json_form_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", id=["a"], day=[datetime.date(2026, 1, 1)])
    with pytest.raises(InputError, match="inside a template column has no JSON form"):
        scan_inputs(spec(prompt_template="{{ day }}"), tmp_path)


def test_a_template_is_part_of_the_fingerprint() -> None:
    asked = [spec(prompt_template=text).fingerprint() for text in ("{{ a }}", "{{ b }}")]
    assert len(set(asked)) == 2


def test_the_fingerprint_of_a_job_without_one_is_what_it_was() -> None:
    """Noted before there were templates: keys that are not used stand in no hash."""
    assert job_spec().fingerprint() == "5074c6161c967dc9f431dc595f2c5d85dcba8b535de29f344c7da827e6c9d28b"
    assert set(job_spec().resolved()["inputs"][0]) == {"path", "columns", "where", "limit", "passthrough"}
