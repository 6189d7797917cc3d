import json
import struct
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from support.scalar_rows import row_leaves

from batchgen.errors import InputError
from batchgen.io.hashing import params_hash
from batchgen.io.schema import Row, output_schema, rows_schema, rows_to_table
from batchgen.records import Completion, SamplingParams

ROOT = Path(__file__).parents[2]
EMPTY = pa.table({})


def answer(key: str = "a", index: int = 0, **fields: Any) -> Row:
    given: dict[str, Any] = {"token_ids": (5, 6), "text": "hi", "finish_reason": "stop"} | fields
    return Row(2**64 - 1, (1, 2, 3), Completion(key, index, **given))


def failure(key: str = "a", index: int = 0, message: str = "no") -> Row:
    return Row(7, None, Completion(key, index, (), "", "error", error_code="prompt_null", error_message=message))


def make(rows: list[Row], passthrough: pa.Table = EMPTY, logprobs: int | None = None) -> pa.Table:
    schema = output_schema(passthrough.schema, params=SamplingParams(logprobs=logprobs), metadata={"a": "b"})
    return rows_to_table(rows, passthrough, SamplingParams(), schema)


def test_an_answer() -> None:
    [row] = make([answer(stop_reason="\n")]).to_pylist()
    assert row.pop("row_hash")
    assert row == {
        "row_key": "a", "sample_index": 0, "seed": 2**64 - 1, "status": "ok", "error_code": None, "error_message": None,
        "prompt_token_ids": [1, 2, 3], "text": "hi", "token_ids": [5, 6], "finish_reason": "stop", "stop_reason": "\n",
        "num_prompt_tokens": 3, "num_output_tokens": 2, "params_hash": params_hash(SamplingParams()),
    }  # fmt: skip


def test_an_error_has_no_answer() -> None:
    [row] = make([failure()], logprobs=1).to_pylist()
    nulls = {name for name, value in row.items() if value is None}
    assert nulls == {
        "prompt_token_ids", "text", "token_ids", "stop_reason", "num_prompt_tokens", "num_output_tokens", "logprobs",
        "top_logprobs_ids", "top_logprobs_values",
    }  # fmt: skip
    assert (row["status"], row["finish_reason"], row["error_code"]) == ("error", "error", "prompt_null")


def test_an_empty_answer_is_not_null() -> None:
    [row] = make([answer(token_ids=(), text="")]).to_pylist()
    assert (row["text"], row["token_ids"], row["num_output_tokens"]) == ("", [], 0)


def test_the_schema_does_not_depend_on_the_rows() -> None:
    assert make([answer()]).schema == make([failure()]).schema == make([]).schema
    assert make([]).schema.metadata == {b"a": b"b"}
    assert not any(pa.types.is_null(field.type) for field in make([failure()]).schema)


def test_stop_token_and_stop_string_are_told_apart() -> None:
    table = make([answer(stop_reason=13), answer(stop_reason="13"), answer()])
    assert table["stop_reason"].to_pylist() == ["token:13", "13", None]


def test_logprob_columns_come_when_asked() -> None:
    assert "logprobs" not in make([answer()]).column_names
    assert "top_logprobs_ids" not in make([answer(logprobs=(0.0, -1.0))], logprobs=0).column_names
    value = struct.unpack("<f", struct.pack("<I", 0xBF8CCCCD))[0]
    row = answer(
        logprobs=(value, -0.0), top_logprobs_ids=((5,), (6,)), top_logprobs_values=((value,), (float("-inf"),))
    )
    table = make([row], logprobs=1)
    assert table.schema.field("top_logprobs_values").type == pa.list_(pa.list_(pa.float32()))
    logprobs = table["logprobs"].combine_chunks().flatten().to_numpy()
    assert logprobs.view("u4").tolist() == [0xBF8CCCCD, 0x80000000]
    assert table["top_logprobs_values"].to_pylist() == [[[value], [float("-inf")]]]


def test_columns_of_the_prompt_come_when_asked() -> None:
    row = answer(
        prompt_logprobs=(None, -0.5), prompt_top_logprobs_ids=(None, (7,)), prompt_top_logprobs_values=(None, (-0.5,))
    )
    names = ("prompt_logprobs", "prompt_top_logprobs_ids", "prompt_top_logprobs_values")
    validator = jsonschema.Draft202012Validator(rows_schema())
    for wanted, there in ((None, 0), (0, 1), (3, 3)):
        schema = output_schema(pa.schema([]), params=SamplingParams(prompt_logprobs=wanted), metadata={})
        assert [name for name in schema.names if name in names] == list(names[:there])
        done, failed = rows_to_table([row, failure()], EMPTY, SamplingParams(), schema).to_pylist()
        assert [done[name] for name in names[:there]] == [[None, -0.5], [None, [7]], [None, [-0.5]]][:there]
        assert all(failed[name] is None for name in names[:there])
        validator.validate(done)
        validator.validate(failed)


def test_row_hash_is_the_leaf_of_the_other_columns() -> None:
    passthrough = pa.table({"x": pa.array(["p", "q"]).dictionary_encode()})
    table = make([answer("a", 0), answer("a", 1), failure("b", 0), answer("b", 1)], passthrough)
    twin = [leaf.hex() for leaf in row_leaves(table.drop_columns(["row_hash"]))]
    assert table["row_hash"].to_pylist() == twin
    assert len(set(twin)) == 4


def test_passthrough_goes_with_every_sample_of_its_row() -> None:
    table = make([answer("a", 0), answer("a", 1), answer("b", 0), answer("b", 1)], pa.table({"x": [1, None]}))
    assert table["x"].to_pylist() == [1, 1, None, None]
    assert table.column_names[-2:] == ["row_hash", "x"]


def test_a_message_that_is_not_unicode_does_not_kill_the_writer() -> None:
    [row] = make([failure(message="bad \udcb2 here")]).to_pylist()
    assert row["error_message"] == "bad \\udcb2 here"


def test_a_passthrough_column_may_not_have_an_output_name() -> None:
    with pytest.raises(InputError, match="text: a passthrough column has the name of an output column"):
        output_schema(pa.schema([("text", pa.string())]), params=SamplingParams(), metadata={})


def test_the_published_schema_is_the_code() -> None:
    published = json.loads((ROOT / "schemas" / "rows.schema.json").read_text(encoding="utf-8"))
    assert published == rows_schema()


def test_the_published_schema_takes_rows_and_refuses_others() -> None:
    validator = jsonschema.Draft202012Validator(rows_schema())
    rows = make([answer(logprobs=(0.0, -1.0), top_logprobs_ids=((1,), (2,)), top_logprobs_values=((0.0,), (-1.0,)))],
                logprobs=1).to_pylist()  # fmt: skip
    for row in (*rows, *make([answer(), failure()]).to_pylist()):
        validator.validate(row)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**row, "seed": "7"})
