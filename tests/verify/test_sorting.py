"""Every row of two runs is in exactly one category, and in the one that a plain reading of the rules gives."""

import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.bent_engine import BentEngine
from support.fake_jobs import make_job, read_rows, run

from batchgen.verify.diff import diff_runs
from batchgen.verify.sorting import KINDS, SCHEMA

KEYS = ["a", "b", "c", "é", "e\u0301", "bad", "", "a\0", "d", "f"]
BENDS = ["none", "none", "token", "shorter", "logprob", "top", "error", "other_error", "text"]
SIDE = st.fixed_dictionaries(
    {
        "rows": st.dictionaries(
            st.sampled_from(KEYS),
            st.tuples(st.sampled_from(["p", "p", "q", None]), st.sampled_from(BENDS), st.sampled_from(["x", "x", "y"])),
            min_size=1,
        ),
        "n": st.integers(1, 3),
        "seed": st.sampled_from([0, 0, 0, 2**64 - 1]),
        "temperature": st.sampled_from([1.0, 1.0, 1.0, 0.5]),
        "per": st.integers(1, 5),
    }
)
PLAIN: dict[str, Any] = {"n": 1, "seed": 0, "temperature": 1.0, "per": 2}


def make(folder: Path, side: dict[str, Any]) -> Path:
    """A run of these rows: key -> (prompt, bend, label)."""
    folder.mkdir()
    keys, cells = list(side["rows"]), list(side["rows"].values())
    columns = {
        "id": keys,
        "prompt": pa.array([cell[0] for cell in cells], pa.string()),
        "label": [cell[2] for cell in cells],
        "meta": [0] * len(keys),
    }
    pq.write_table(pa.table(columns), folder / "in.parquet")
    sampling = {"n": side["n"], "temperature": side["temperature"], "logprobs": 1}
    bends = {key: cell[1] for key, cell in side["rows"].items()}
    run(make_job(folder, sampling=sampling, seed=side["seed"]), folder / "run", BentEngine(bends=bends), side["per"])
    return folder / "run"


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<f", value)
    return [bits(each) for each in value] if isinstance(value, list) else value


def kind_of(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    """The rules, once more and one row at a time."""
    if a is None or b is None:
        return "only_in_b" if a is None else "only_in_a"
    a, b = ({name: bits(value) for name, value in row.items()} for row in (a, b))
    if a["row_hash"] == b["row_hash"]:
        return "identical"
    prompts = a["prompt_token_ids"], b["prompt_token_ids"]
    if None not in prompts and prompts[0] != prompts[1]:
        return "prompt"
    if (a["params_hash"], a["seed"]) != (b["params_hash"], b["seed"]):
        return "parameters"
    if a["status"] != b["status"]:
        return "error"
    if (a["error_code"], a["error_message"]) != (b["error_code"], b["error_message"]):
        return "other_error"
    if a["token_ids"] != b["token_ids"]:
        return "diverged"
    logprobs = ("logprobs", "top_logprobs_ids", "top_logprobs_values")
    return "logprobs" if any(a[name] != b[name] for name in logprobs) else "columns"


@given(SIDE, SIDE)
@example(
    {"rows": dict.fromkeys(KEYS, ("p", "none", "x")), **PLAIN},
    {"rows": {key: ("p", bend, "x") for key, bend in zip(KEYS, BENDS[1:], strict=False)}, **PLAIN},
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_categories_are_a_partition(left: dict[str, Any], right: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b = make(folder / "a", left), make(folder / "b", right)
        diff = diff_runs(a, b, out=folder / "diff.parquet")
        rows_a, rows_b = (
            {(row["row_key"], row["sample_index"]): row for row in read_rows(out).to_pylist()} for out in (a, b)
        )
        expected = {id_: kind_of(rows_a.get(id_), rows_b.get(id_)) for id_ in rows_a.keys() | rows_b.keys()}
        assert {found.kind: found.rows for found in diff.categories} == Counter(expected.values())
        assert diff.rows == sum(found.rows for found in diff.categories) == len(expected)
        assert abs(sum(found.share for found in diff.categories) - 1) < 1e-9
        listed = pq.read_table(folder / "diff.parquet")
        assert listed.schema.equals(SCHEMA)
        found = {(row["row_key"], row["sample_index"]): row["kind"] for row in listed.to_pylist()}
        assert found == {id_: kind for id_, kind in expected.items() if kind != "identical"}
        assert listed.num_rows == len(found)


def test_kinds_come_in_one_order(tmp_path: Path) -> None:
    """The table of the terminal and of --json is the same for the same two runs."""
    left = {"rows": dict.fromkeys(KEYS, ("p", "none", "x")), **PLAIN}
    bends = ["token", "logprob", "error", "text", "none", "none", "top", "shorter", "none"]
    right = {"rows": {key: ("p", bend, "x") for key, bend in zip(KEYS[1:], bends, strict=True)}, **PLAIN}
    diff = diff_runs(make(tmp_path / "a", left), make(tmp_path / "b", right))
    kinds = [found.kind for found in diff.categories]
    assert kinds == [kind for kind in KINDS if kind in kinds]
    assert kinds == ["identical", "logprobs", "diverged", "error", "columns", "only_in_a"]
