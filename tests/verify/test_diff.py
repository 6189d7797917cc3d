"""Each way in which two runs can differ, by whole jobs over a fake engine."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bent_engine import Bend, BentEngine, next_float
from support.fake_engine import FINGERPRINT
from support.fake_jobs import build_prompt, make_job, run, write_input
from support.run_damage import rewrite
from support.tiny_runs import edit_manifest, forge, row_of
from support.varied_types import VARIANTS, retype

from batchgen.errors import RowError, RunError, VerifyError
from batchgen.io.manifest import part_name, read_manifest, write_manifest
from batchgen.io.reader import InputRow
from batchgen.verify.causes import Difference
from batchgen.verify.diff import Diff, diff_runs

ROWS = 40
SAMPLING = {"logprobs": 2, "max_tokens": 24}

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(name, ...) runs a job in a folder of that name."""

    def make(name: str, bends: Mapping[str, Bend] | None = None, *, per: int = 8, **job: Any) -> Path:
        source = job.pop("source", None) or tmp_path / "in"
        if not source.exists():
            write_input(source, ROWS, bad=[5])
        job["sampling"] = SAMPLING | job.get("sampling", {})
        engine = BentEngine(fingerprint=FINGERPRINT | job.pop("fingerprint", {}), bends=bends or {})
        run(make_job(source, **job), tmp_path / name, engine, per)
        return tmp_path / name

    return make


def kinds(diff: Diff) -> dict[str, int]:
    return {category.kind: category.rows for category in diff.categories}


def cause(diff: Diff, kind: str) -> tuple[str, list[str]]:
    [category] = [category for category in diff.categories if category.kind == kind]
    return category.cause.verdict, [difference.key for difference in category.cause.differences]


def cut(out: Path, keep: int) -> Path:
    """Make a finished run one of which `keep` shards are done."""
    manifest = read_manifest(out)
    for shard in manifest.shards[keep:]:
        (out / part_name(shard.index)).unlink()
    write_manifest(out, replace(manifest.with_shards(manifest.shards[:keep]), root=None))
    return out


def test_equal_roots_need_no_file(make: Make) -> None:
    a, b = make("a"), make("b", per=3)
    shutil.rmtree(b / "rows")
    diff = diff_runs(a, b)
    assert (diff.identical, diff.by_roots, diff.rows) == (True, True, 2 * ROWS)
    assert kinds(diff) == {"identical": 2 * ROWS}


@pytest.mark.parametrize(
    ("bend", "kind", "detail"),
    [
        ("token", "diverged", None),
        ("shorter", "diverged", None),
        ("logprob", "logprobs", None),
        ("top", "logprobs", None),
        ("error", "error", "non_finite_logits in B"),
        ("text", "columns", "text"),
    ],
)
def test_a_bent_row(make: Make, tmp_path: Path, bend: Bend, kind: str, detail: str | None) -> None:
    a, b = make("a"), make("b", {"row-7": bend, "row-30": bend}, per=5)
    diff = diff_runs(a, b, out=tmp_path / "diff.parquet")
    assert kinds(diff) == {"identical": 2 * ROWS - 4, kind: 4}
    assert cause(diff, kind) == ("unexplained", [])
    rows = pq.read_table(tmp_path / "diff.parquet").to_pylist()
    assert [(row["row_key"], row["sample_index"]) for row in rows] == [
        ("row-7", 0), ("row-7", 1), ("row-30", 0), ("row-30", 1),
    ]  # fmt: skip
    assert {(row["kind"], row["detail"]) for row in rows} == {(kind, detail)}
    for row in rows:
        left, right = (row_of(out, row["row_key"], row["sample_index"])[2] for out in (a, b))
        assert (row["row_hash_a"], row["row_hash_b"]) == (left["row_hash"], right["row_hash"])
        assert (row["text_a"], row["text_b"]) == (left["text"], right["text"])
        size = len(left["token_ids"])
        at = {"token": size // 2, "shorter": size - 1, "logprob": size // 2, "top": size // 2}.get(bend)
        assert row["position"] == at
        if at is not None:
            for side, whole in (("a", left), ("b", right)):
                here = [*whole["token_ids"], None], [*whole["logprobs"], None]
                assert (row[f"token_{side}"], row[f"logprob_{side}"]) == (here[0][at], here[1][at])


def test_two_errors(make: Make) -> None:
    a, b = make("a", {"row-1": "error"}), make("b", {"row-1": "other_error"})
    diff = diff_runs(a, b)
    assert kinds(diff) == {"identical": 2 * ROWS - 2, "other_error": 2}
    assert diff.categories[1].evidence == {"non_finite_logits with another message": 2}


def test_an_error_of_the_prompt_and_one_of_the_model(make: Make, tmp_path: Path) -> None:
    def refuse(row: InputRow) -> list[int]:
        if row.row_key == "row-1":
            raise RowError("template", "no")
        return build_prompt(row)

    diff = diff_runs(make("a", {"row-1": "error"}), make("b", build=refuse, prompts={"overlong": "truncate_left"}))
    assert kinds(diff)["other_error"] == 2
    assert diff.categories[1].evidence == {"non_finite_logits in A and template in B": 2}
    diff = diff_runs(make("c"), tmp_path / "b")
    assert kinds(diff) == {"identical": 2 * ROWS - 2, "error": 2}
    assert cause(diff, "error") == ("cause", ["prompts.overlong"])


def test_a_prompt_that_is_there_in_one_input_only(make: Make, tmp_path: Path) -> None:
    diff = diff_runs(make("a"), make("b", source=write_input(tmp_path / "other", ROWS)))
    assert kinds(diff) == {"identical": 2 * ROWS - 2, "error": 2}
    assert diff.categories[1].evidence == {"prompt_null in A": 2}
    assert cause(diff, "error") == ("cause", ["file in.parquet"])


def test_parameters_come_before_what_they_did(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", seed=2**63 + 5))
    assert kinds(diff) == {"parameters": 2 * ROWS}
    [found] = diff.categories
    assert found.evidence == {"seed": 2 * ROWS}
    assert found.answers == {"other tokens": 2 * ROWS - 2, "error": 2}
    assert found.cause.differences == (Difference("seed", "0", str(2**63 + 5)),)


def test_seed_and_parameters(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", seed=1, sampling={"temperature": 0.5}))
    assert cause(diff, "parameters") == ("all_of", ["sampling.temperature", "seed"])
    assert diff.examples[0]["detail"] == "seed, params_hash"


def test_logprobs_that_one_run_did_not_ask_for(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", sampling={"logprobs": None}))
    assert cause(diff, "parameters") == ("cause", ["sampling.logprobs"])
    [found] = diff.categories
    assert found.answers["error"] == 2


def test_prompts(make: Make, tmp_path: Path) -> None:
    diff = diff_runs(
        make("a"), make("b", build=lambda row: [7, *build_prompt(row)], model={"path": "model", "chat_template": "{x"})
    )
    assert kinds(diff) == {"identical": 2, "prompt": 2 * ROWS - 2}
    assert cause(diff, "prompt") == ("cause", ["model.chat_template"])
    assert diff.examples[1]["detail"] == "prompt token 0"
    assert diff.examples[1]["around"] == {
        "of": "prompt_token_ids",
        "position": 0,
        "first": 0,
        "a": list(b"promp"),
        "b": [7, *b"prom"],
    }


def test_more_samples_of_each_row(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", sampling={"n": 3}, per=5))
    assert kinds(diff) == {"identical": 2 * ROWS, "only_in_b": ROWS}
    assert cause(diff, "only_in_b") == ("cause", ["sampling.n"])
    assert kinds(diff_runs(make("c", sampling={"n": 3}), make("d"))) == {"identical": 2 * ROWS, "only_in_a": ROWS}


def entry(**changes: Any) -> dict[str, Any]:
    return {"path": "in.parquet", "columns": {"prompt": "prompt"}, "passthrough": ["label", "meta"]} | changes


def test_a_condition(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", inputs=[entry(where="id <> 'row-3'", limit=20)]))
    assert kinds(diff) == {"identical": 40, "only_in_a": 40}
    assert cause(diff, "only_in_a") == ("one_of", ["inputs[0].limit", "inputs[0].where"])


def test_passthrough(make: Make) -> None:
    a, b = make("a"), make("b", inputs=[entry(passthrough=["meta", "id"])])
    diff = diff_runs(a, b)
    assert kinds(diff) == {"columns": 2 * ROWS}
    assert diff.categories[0].evidence == {"label in A alone": 2 * ROWS, "id in B alone": 2 * ROWS}
    assert cause(diff, "columns") == ("cause", ["inputs[0].passthrough"])
    swapped = diff_runs(a, make("c", inputs=[entry(passthrough=["meta", "label"])]))
    assert swapped.categories[0].evidence == {"columns in another order": 2 * ROWS}


def test_a_passthrough_value(make: Make, tmp_path: Path) -> None:
    source = write_input(tmp_path / "other", ROWS, bad=[5])
    table = pq.read_table(source / "in.parquet")
    labels = [value if row != 9 else "changed" for row, value in enumerate(table["label"].to_pylist())]
    pq.write_table(table.set_column(2, "label", pa.array(labels)), source / "in.parquet")
    diff = diff_runs(make("a"), make("b", source=source))
    assert kinds(diff) == {"identical": 2 * ROWS - 2, "columns": 2}
    assert diff.categories[1].evidence == {"label": 2}
    assert cause(diff, "columns") == ("cause", ["file in.parquet"])


def test_a_passthrough_column_of_another_type(make: Make, tmp_path: Path) -> None:
    source = write_input(tmp_path / "other", ROWS, bad=[5])
    table = pq.read_table(source / "in.parquet")
    pq.write_table(table.set_column(2, "label", pa.array(range(ROWS))), source / "in.parquet")
    diff = diff_runs(make("a"), make("b", source=source))
    assert diff.categories[0].evidence == {"label of another type": 2 * ROWS}
    assert cause(diff, "columns") == ("cause", ["file in.parquet"])


def test_fingerprints_name_the_cause(make: Make) -> None:
    a = make("a")
    other = {"weights_digest": "v" * 64, "canary": "c"}
    b = make("b", {"row-2": "token", "row-3": "logprob", "row-4": "wide"}, fingerprint=other)
    assert cause(diff_runs(a, b), "diverged") == ("cause", ["weights_digest"])
    assert cause(diff_runs(a, b), "error") == ("cause", ["weights_digest"])
    c = make("c", {"row-2": "token", "row-3": "logprob"}, fingerprint={"tokenizer_digest": "v" * 64, "kernel_set": "x"})
    diff = diff_runs(a, c)
    assert cause(diff, "diverged") == ("one_of", ["kernel_set", "tokenizer_digest"])
    assert cause(diff, "logprobs") == ("cause", ["kernel_set"])


def test_a_difference_that_cannot_have_done_it(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", {"row-2": "token"}, inputs=[entry(limit=20)]))
    assert cause(diff, "only_in_a") == ("cause", ["inputs[0].limit"])
    assert cause(diff, "diverged") == ("unexplained", [])


def test_an_unfinished_run(make: Make) -> None:
    a, b = make("a"), cut(make("b", per=3), 5)
    diff = diff_runs(a, b)
    assert kinds(diff) == {"identical": 30, "not_made_in_b": 50}
    assert cause(diff, "not_made_in_b") == ("unfinished", [])
    assert (diff.b.finished, diff.b.rows, diff.b.samples) == (False, 30, 80)
    assert kinds(diff_runs(b, a)) == {"identical": 30, "not_made_in_a": 50}
    assert diff_runs(b, b).identical


def test_an_unfinished_run_that_asks_for_fewer_samples(make: Make) -> None:
    diff = diff_runs(make("a", sampling={"n": 3}), cut(make("b", per=4), 5))
    assert kinds(diff) == {"identical": 40, "only_in_a": ROWS, "not_made_in_b": 40}
    assert cause(diff, "only_in_a") == ("cause", ["sampling.n"])


def test_an_unfinished_run_of_another_input(make: Make) -> None:
    """Whether it will hold the rows cannot be known from files."""
    diff = diff_runs(make("a"), cut(make("b", inputs=[entry(where="id <> 'row-3'")]), 3))
    assert kinds(diff) == {"identical": 48, "only_in_a": 32}
    assert diff.categories[1].evidence == {"not in that job, or still to be made": 32}
    assert cause(diff, "only_in_a") == ("unfinished", [])


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_that_another_program_wrote_anew(make: Make, tmp_path: Path, variant: str) -> None:
    a, b = make("a"), make("b", {"row-7": "token"})
    expected = diff_runs(a, b, out=tmp_path / "before.parquet")
    for out in (a, b):
        for shard in (0, 2):
            rewrite(out, shard, retype(variant))
    assert diff_runs(a, b, out=tmp_path / "after.parquet") == expected
    assert pq.read_table(tmp_path / "after.parquet").equals(pq.read_table(tmp_path / "before.parquet"))


def test_rows_in_another_order(make: Make, tmp_path: Path) -> None:
    source = write_input(tmp_path / "other", ROWS, bad=[5])
    table = pq.read_table(source / "in.parquet")
    pq.write_table(table.take(pa.array([(7 * row) % ROWS for row in range(ROWS)])), source / "in.parquet")
    a, b = make("a", {"row-2": "token"}, per=16), make("b", {"row-9": "logprob"}, source=source, per=3)
    assert kinds(diff_runs(a, b)) == {"identical": 2 * ROWS - 4, "diverged": 2, "logprobs": 2}


def test_keys_are_bytes(make: Make, tmp_path: Path) -> None:
    keys = [
        "é",
        "e\u0301",
        "a\0b",
        "a\0c",
        "",
        " ",
        "'; DROP TABLE a; --",
        "K",
        "k",
        "ﬁ",
        "fi",
        "\U0001f600",
        "1",
        "01",
    ]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        named = keys if name == "one" else keys[::-1]
        table = {"id": named, "prompt": named, "label": ["x"] * len(keys), "meta": [1] * len(keys)}
        pq.write_table(pa.table(table | {"prompt": [f"say {key}" for key in named]}), tmp_path / name / "in.parquet")
    a, b = make("a", source=tmp_path / "one"), make("b", {"é": "token"}, source=tmp_path / "two", per=3)
    diff = diff_runs(a, b)
    assert kinds(diff) == {"identical": 2 * len(keys) - 2, "diverged": 2}
    assert {row["row_key"] for row in diff.examples} == {"é"}


def test_a_flipped_sign_of_zero_is_other_logprob_bits(make: Make) -> None:
    """SQL and == take -0.0 for 0.0."""
    a, b = make("a"), make("b")
    for out, zero in ((a, 0.0), (b, -0.0)):
        forge(out, "row-11", lambda row, zero=zero: {"logprobs": [*row["logprobs"][:-1], zero]})  # type: ignore[misc]
    diff = diff_runs(a, b)
    assert kinds(diff) == {"identical": 2 * ROWS - 1, "logprobs": 1}
    [row] = diff.examples
    assert (str(row["logprob_a"]), str(row["logprob_b"])) == ("0.0", "-0.0")
    assert row["position"] == len(row_of(a, "row-11")[2]["logprobs"]) - 1


def test_a_nan_is_equal_to_itself_and_to_no_other(make: Make) -> None:
    a, b = make("a", {"row-11": "text"}), make("b")
    for out in (a, b):
        forge(out, "row-11", lambda row: {"logprobs": [float("nan"), *row["logprobs"][1:]]})
    assert kinds(diff_runs(a, b)) == {"identical": 2 * ROWS - 2, "columns": 2}


def test_examples_take_turns(make: Make) -> None:
    a = make("a")
    b = make("b", dict.fromkeys([f"row-{i}" for i in range(6, 20)], "token") | {"row-30": "text", "row-31": "logprob"})
    order = [row["kind"] for row in diff_runs(a, b, examples=5).examples]
    assert order == ["logprobs", "diverged", "columns", "logprobs", "diverged"]
    assert diff_runs(a, b, examples=0).examples == ()


def test_where_answers_part(make: Make) -> None:
    a, b = make("a"), make("b", {f"row-{i}": "token" for i in range(ROWS)})
    diff = diff_runs(a, b)
    parted = sorted(len(row_of(a, f"row-{i}", s)[2]["token_ids"]) // 2 for i in range(ROWS) for s in (0, 1) if i != 5)
    found = diff.diverged_at
    assert found is not None
    assert (found.minimum, found.median, found.maximum) == (parted[0], parted[(len(parted) - 1) // 2], parted[-1])
    buckets = Counter(0 if at == 0 else at.bit_length() for at in parted)
    assert [rows for *_, rows in found.histogram] == [buckets[i] for i in range(len(found.histogram))]


def test_a_run_that_does_not_hold(make: Make) -> None:
    a, b = make("a"), make("b", {"row-7": "token"})
    with (b / part_name(2)).open("r+b") as file:
        file.truncate(900)
    with pytest.raises(VerifyError, match=r"does not verify: torn: rows/part-00002\.parquet") as caught:
        diff_runs(a, b)
    assert f"batchgen verify {b}" in caught.value.hint
    with pytest.raises(VerifyError):
        diff_runs(b, a)


def test_a_run_whose_root_is_not_that_of_its_rows(make: Make) -> None:
    a, b = make("a"), make("b")
    edit_manifest(b, root="0" * 64)
    with pytest.raises(VerifyError, match="its root is not that of the rows"):
        diff_runs(a, b)


def test_a_manifest_that_contradicts_itself(make: Make) -> None:
    a, b = make("a"), make("b", {"row-7": "token"})
    edit_manifest(b, spec={"seed": "1"})
    with pytest.raises(VerifyError, match="job_fingerprint is not that of its spec"):
        diff_runs(a, b)


def test_no_run_and_a_newer_one(make: Make, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    with pytest.raises(RunError, match="is not a run folder"):
        diff_runs(a, tmp_path)
    edit_manifest(b, schema_version=99)
    with pytest.raises(RunError, match="schema version 99"):
        diff_runs(a, b)


def test_a_diff_is_json(make: Make) -> None:
    diff = diff_runs(make("a"), make("b", {"row-7": "token"}))
    found = json.loads(json.dumps(asdict(diff)))
    assert found["categories"][1]["cause"] == {"verdict": "unexplained", "differences": []}


def test_bends_bend(make: Make) -> None:
    """What this file plants is what it says: one bit, once."""
    a, b = make("a"), make("b", {"row-7": "logprob"})
    left, right = (row_of(out, "row-7")[2]["logprobs"] for out in (a, b))
    [(one, other)] = [pair for pair in zip(left, right, strict=True) if pair[0] != pair[1]]
    assert other == next_float(one)
