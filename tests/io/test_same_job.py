from typing import Any

import pytest

from batchgen.io.same_job import differences


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [("a.c", 2, 3)]),
        ({"a": 1}, {"b": 1}, [("a", 1, None), ("b", None, 1)]),
        ({"a": [{"b": 1}, 2]}, {"a": [{"b": 4}, 2]}, [("a[0].b", 1, 4)]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", [1], [1, 2])]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
    ],
)
def test_differences_have_dotted_keys(a: Any, b: Any, expected: list[tuple[str, Any, Any]]) -> None:
    assert list(differences(a, b)) == expected
