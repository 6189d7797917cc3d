"""The example prompts: the Parquet file is what the text says, and the text is what the README says."""

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

DATA = Path(__file__).parents[2] / "examples" / "data"


def load_script(path: Path) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


make_parquet = load_script(DATA / "make_parquet.py")


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(DATA / "prompts.parquet").to_pylist()
    return rows


def test_the_parquet_file_holds_the_text(prompts: list[dict[str, Any]]) -> None:
    assert prompts == make_parquet.read_prompts(DATA / "prompts.jsonl")


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second, kept = tmp_path / "1.parquet", tmp_path / "2.parquet", DATA / "prompts.parquet"
    for target in (first, second):
        make_parquet.build(DATA / "prompts.jsonl", target)
    assert first.read_bytes() == second.read_bytes()
    if pq.read_metadata(first).created_by == pq.read_metadata(kept).created_by:
        assert first.read_bytes() == kept.read_bytes()


def test_another_text_gives_other_bytes(tmp_path: Path) -> None:
    changed = tmp_path / "prompts.jsonl"
    changed.write_text((DATA / "prompts.jsonl").read_text(encoding="utf-8").replace("snail", "slug"), encoding="utf-8")
    make_parquet.build(changed, tmp_path / "changed.parquet")
    make_parquet.build(DATA / "prompts.jsonl", tmp_path / "same.parquet")
    assert (tmp_path / "changed.parquet").read_bytes() != (tmp_path / "same.parquet").read_bytes()


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([{"id": "a"}], "keys"),
        ([dict.fromkeys(make_parquet.SCHEMA.names, "a")] * 2, "line 2: id 'a' is taken"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[dict[str, str]], fault: str) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        make_parquet.read_prompts(source)


def test_the_prompts_are_many_and_varied(prompts: list[dict[str, Any]]) -> None:
    counts = Counter(row["category"] for row in prompts)
    assert len(prompts) == 328
    assert len(counts) == 18
    assert max(counts.values()) < len(prompts) / 10
    assert len({json.dumps(row["messages"]) for row in prompts}) == len(prompts)
    assert len({row["category"] for row in prompts[:36]}) >= 15, "the first rows are a sample of the whole"
    long_ones = [index for index, row in enumerate(prompts) if row["source"].startswith("passage:")]
    assert 8 <= sum(index < len(prompts) // 4 for index in long_ones) <= 20, "and so are their lengths"


def test_every_prompt_is_a_chat_that_awaits_an_answer(prompts: list[dict[str, Any]]) -> None:
    for row in prompts:
        roles = [message["role"] for message in row["messages"]]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == (["user", "assistant"] * len(turns))[: len(turns)], row["id"]
        assert roles[-1] == "user", row["id"]
        assert all(message["content"].strip() == message["content"] != "" for message in row["messages"]), row["id"]
        assert 1 <= row["difficulty"] <= 5, row["id"]


def test_lengths_have_a_spread_and_the_traps_are_there(prompts: list[dict[str, Any]]) -> None:
    words = [sum(len(message["content"].split()) for message in row["messages"]) for row in prompts]
    assert min(words) == 1
    assert sum(words) / len(words) > 80
    assert sum(300 <= count <= 600 for count in words) >= 40
    tags = Counter(tag for row in prompts for tag in row["tags"])
    assert tags["non-ascii"] >= 30
    assert tags["multi-turn"] >= 15
    assert tags["system"] >= 20
    assert tags["look-alike"] == 3
