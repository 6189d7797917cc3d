"""YAML 1.2 alone: the traps of YAML 1.1, and files that are no document at all."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import SpecError
from batchgen.strict_yaml import read_yaml


def read(tmp_path: Path, text: str | bytes) -> tuple[Any, list[str]]:
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    value, problems = read_yaml(path)
    return value, [f"{problem.key}: {problem.message}" for problem in problems]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("010", 10),
        ("0o10", 8),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("~", None),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, written: str, value: object) -> None:
    document, problems = read(tmp_path, f"a: {written}")
    assert (document, problems) == ({"a": value}, [])
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {b: 2026-01-01}", "a.b: 2026-01-01 is read as a date"),
        ("a: [1, .nan]", "a[1]: must be a finite number, got nan"),
        ("a: 1e999", "a: must be a finite number, got inf"),
        ("a: {true: 1}", "a: the key True is not text"),
        ("a: {1.5: 1}", "a: the key 1.5 is not text"),
        ("a: {1: x, '1': y}", "a: two keys that differ only in their quotes"),
        ("a: !!binary aGk=", "a: b'hi' is read as a bytes"),
    ],
)
def test_values_that_json_cannot_hold_are_named(tmp_path: Path, text: str, problem: str) -> None:
    assert read(tmp_path, text)[1] == [problem]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 'job.yaml: line 4: found duplicate key "c"'),
        ("a: [1\nb: 2", "job.yaml: line 2: not valid YAML"),
        ("a: 1\n---\nb: 2", "another document"),
        ("%YAML 1.1\n---\na: no", "job.yaml: line 1: YAML directives"),
        ("a: !!python/name:os.system x", "line 1: not valid YAML: could not determine a constructor"),
        ("a: \x00", "not valid YAML"),
        ("a: &x [*x]", "holds itself"),
        ("a: " + "[" * 5000, "nested too deeply"),
        (b"a: \xff", "is not UTF-8: byte 3 is 0xff"),
    ],
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "job.yaml" in str(caught.value)


def test_places_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a directory"):
        read_yaml(tmp_path)
