import re
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FINGERPRINT, FakeEngine
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import RunError
from batchgen.io.same_job import differences


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [("a.c", 2, 3)]),
        ({"a": 1}, {"b": 1}, [("a", 1, None), ("b", None, 1)]),
        ({"a": [{"b": 1}, {}]}, {"a": [{"b": 4}, {}]}, [("a[0].b", 1, 4)]),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, [("a", ["x", "y"], ["y", "x"])]),
        ({"a": [{"b": 1}]}, {"a": [2]}, [("a", [{"b": 1}], [2])]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", [1], [1, 2])]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
    ],
)
def test_differences_have_dotted_keys(a: Any, b: Any, expected: list[tuple[str, Any, Any]]) -> None:
    assert list(differences(a, b)) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"canary": "d" * 64}, "^this machine computes the model differently from the one that began the run$"),
        ({"canary": "d" * 64, "kernel_set": "e" * 64}, "^is a run of another job: canary is c.*; kernel_set is k"),
    ],
)
def test_a_canary_of_another_machine(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    job = make_job(write_input(tmp_path, rows=4))
    begun = FINGERPRINT | {"canary": "c" * 64}
    run(job, tmp_path / "run", FakeEngine(fingerprint=begun))
    run(job, tmp_path / "run", FakeEngine(fingerprint=begun))
    with pytest.raises(RunError) as refused:
        run(job, tmp_path / "run", FakeEngine(fingerprint=begun | changed))
    assert re.search(message, refused.value.message)
    assert "c" * 64 in str(refused.value)
