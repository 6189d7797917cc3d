"""Runs that someone or something has been at: each fault has its own words, and nothing that was hashed gets past."""

import hashlib
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, run, write_input
from support.run_damage import Change, forge, put, rehash, rewrite, take

from batchgen.errors import RunError
from batchgen.io.manifest import part_name, read_manifest, write_manifest
from batchgen.io.schema import SCHEMA_VERSION
from batchgen.seeds import sample_seed
from batchgen.verify.integrity import Verdict, verify_run

PER_SHARD = 32


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    job = make_job(write_input(folder / "in", 100, bad=[5]), sampling={"logprobs": 1})
    run(job, folder / "run", rows_per_shard=PER_SHARD)
    return folder / "run"


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def texts(verdict: Verdict) -> list[str]:
    return [str(finding) for finding in verdict.findings]


def edit(out: Path, **changes: Any) -> None:
    document = json.loads((out / "manifest.json").read_text())
    for key, value in changes.items():
        document[key] = value(document[key]) if callable(value) else value
    (out / "manifest.json").write_text(json.dumps(document))


def error_of(out: Path) -> str:
    with pytest.raises(RunError) as caught:
        verify_run(out)
    return str(caught.value)


def test_manifests_that_cannot_be_read_each_say_why(out: Path) -> None:
    good = (out / "manifest.json").read_text()
    said = []
    for version in (SCHEMA_VERSION + 1, SCHEMA_VERSION - 1):
        edit(out, schema_version=version)
        said.append(error_of(out))
    for text in (good[: len(good) // 2], "[1]", good.replace('"plan"', '"plans"', 1)):
        (out / "manifest.json").write_text(text)
        said.append(error_of(out))
    (out / "manifest.json").unlink()
    said.append(error_of(out))
    for text, words in zip(
        said, ["newer than", "older than", "is not JSON", "no schema_version", "is damaged", "no manifest"], strict=True
    ):
        assert words in text
    assert len(set(said)) == len(said)


def test_an_edited_row_is_named(out: Path) -> None:
    rewrite(out, 0, put("text", 3, "forged"))
    [text] = texts(verify_run(out))
    assert text.startswith(f"changed: {part_name(0)} row 'row-1' sample 1: hashes to ")


def test_a_row_forged_with_its_hash(out: Path) -> None:
    rewrite(out, 0, lambda table: rehash(put("text", 3, "forged")(table)))
    assert texts(verify_run(out)) == [
        f"changed: {part_name(0)}: rows were edited together with their row_hash: which cannot be told"
    ]


def test_a_row_forged_with_its_hash_and_the_digest(out: Path) -> None:
    forge(out, 0, put("text", 3, "forged"), root=False)
    [text] = texts(verify_run(out))
    assert text.startswith("manifest: manifest.json: its root is ")


def test_a_run_that_is_forged_throughout_gives_itself_away_by_a_root_that_was_noted(out: Path) -> None:
    noted = read_manifest(out).root
    assert verify_run(out, root=noted).ok
    forge(out, 0, put("text", 3, "forged"), root=True)
    assert verify_run(out).ok, "files alone cannot show it"
    verdict = verify_run(out, root=noted)
    assert verdict.counts == {"manifest": 1}
    assert texts(verdict)[0].endswith(f"its root is {verdict.root}, and should be {noted}")


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("seed", 3, 7), "its seed is 7, and the job gives it "),
        (put("params_hash", 3, "0" * 32), "its params_hash is not that of the job's sampling"),
        (put("sample_index", 3, 0), "is where sample 1 of a row must be"),
        (put("row_key", 3, "row-9"), "is where sample 1 of a row must be"),
    ],
)
def test_a_forged_row_must_keep_to_the_job(out: Path, change: Change, said: str, root: bool) -> None:
    """Whether or not all hashes up to the root were made to match."""
    forge(out, 0, change, root=root)
    [finding] = verify_run(out).findings
    assert (finding.kind, finding.file) == ("changed", part_name(0))
    assert finding.detail.startswith(said)


def test_a_row_forged_with_its_hash_alone_is_named_when_it_breaks_a_rule(out: Path) -> None:
    rewrite(out, 0, lambda table: rehash(put("seed", 3, 7)(table)))
    [finding] = verify_run(out).findings
    assert (finding.row_key, finding.sample_index) == ("row-1", 1)


def test_keys_forged_with_their_seeds_do_not_have_the_keys_digest(out: Path) -> None:
    def rename(table: pa.Table) -> pa.Table:
        for index, row in enumerate((6, 7)):
            table = put("row_key", row, "other")(table)
            table = put("seed", row, sample_seed(0, "other", index))(table)
        return table

    forge(out, 0, rename, root=True)
    assert texts(verify_run(out)) == [
        f"manifest: manifest.json: keys_digest of shard 0 is not of the row keys of {part_name(0)}"
    ]


@pytest.mark.parametrize("keys", [b"", b"{", b"\xff", b"5", b"[5]"])
def test_a_keys_digest_of_what_are_no_keys(out: Path, keys: bytes) -> None:
    """Forged in the file and in the manifest: then which rows belong there is not known, and that is said."""
    rewrite(out, 0, lambda table: table.slice(0, 5).replace_schema_metadata({"batchgen.row_keys": keys}))
    manifest = read_manifest(out)
    first = replace(manifest.shards[0], keys_digest=hashlib.sha256(keys).hexdigest())
    write_manifest(out, manifest.with_shards([first, *manifest.shards[1:]]))
    [text] = texts(verify_run(out))
    assert "holds 5 rows of 64, and which is known from the input alone" in text


def test_rows_left_out_throughout(out: Path) -> None:
    """Digest, counts and all: the plan knows how many there must be."""
    rewrite(out, 3, take(range(6)))
    manifest = read_manifest(out)
    forge(out, 3, lambda table: table, root=False)
    found = texts(verify_run(out))
    assert any(f"{part_name(3)} and its digest are of 6 rows, and shard 3 is of 8" in text for text in found)
    assert manifest.root == read_manifest(out).root


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        ({"plan": lambda plan: plan | {"digest": "0" * 64}}, "the digest of its plan is not that of its job"),
        ({"plan": lambda plan: plan | {"rows": 101}}, "its plan has 101 rows, and its inputs 100"),
        ({"plan": lambda plan: plan | {"n": 1}}, "n is 1 in its plan and 2 in its spec"),
        ({"fingerprint": lambda parts: parts | {"params_hash": "0" * 32}}, "params_hash is not that of the sampling"),
        ({"fingerprint": lambda parts: parts | {"inputs_digest": "0" * 64}}, "the digest of its plan is not"),
        (
            {"fingerprint": lambda parts: parts | {"numerics": "x"}},
            "rows/part-00000.parquet: its numerics is not that of",
        ),
        ({"spec": {}}, "its spec is not that of a job"),
        ({"columns": lambda columns: columns[1:]}, "its columns are not those of its spec"),
    ],
)
def test_a_manifest_that_is_not_of_its_job_and_plan(out: Path, edited: dict[str, Any], said: str) -> None:
    edit(out, **edited)
    verdict = verify_run(out)
    assert not verdict.ok
    assert any(said in text for text in texts(verdict))


def test_exchanged_files_and_files_of_another_run(out: Path, finished: Path, tmp_path: Path) -> None:
    first, second = out / part_name(0), out / part_name(1)
    shutil.copy(finished / part_name(1), first)
    shutil.copy(finished / part_name(0), second)
    other = make_job(write_input(tmp_path / "in", 100), seed=8, sampling={"logprobs": 1})
    run(other, tmp_path / "other", rows_per_shard=PER_SHARD)
    shutil.copy(tmp_path / "other" / part_name(2), out / part_name(2))
    assert texts(verify_run(out)) == [
        f"foreign: {part_name(0)}: holds the rows of {part_name(1)}",
        f"foreign: {part_name(1)}: holds the rows of {part_name(0)}",
        f"foreign: {part_name(2)}: is a file of another run: its job_fingerprint is another",
    ]


def test_a_file_that_is_gone_doubled_rows_and_moved_ones(out: Path) -> None:
    (out / part_name(3)).unlink()
    rewrite(out, 0, take(range(64), 7))
    extra = pq.read_table(out / part_name(2)).slice(6, 1)
    rewrite(out, 1, lambda table: pa.concat_tables([table, extra]))
    rewrite(out, 2, take(range(6), range(7, 64)))
    assert texts(verify_run(out)) == [
        f"doubled: {part_name(0)} row 'row-3' sample 1: is there 2 times",
        f"moved: {part_name(1)} row 'row-67' sample 0: belongs in {part_name(2)}",
        f"torn: {part_name(3)}: there is no such file; it held input rows 96 to 99, 2 samples each",
    ]


def test_a_file_that_is_cut_anywhere(out: Path) -> None:
    path = out / part_name(1)
    whole = path.read_bytes()
    for part in range(20):
        path.write_bytes(whole[: len(whole) * part // 20])
        verdict = verify_run(out)
        assert verdict.counts == {"torn": 1}, part
        assert f"torn: {part_name(1)}: cannot be read: " in texts(verdict)[0]


@pytest.mark.parametrize("seed", range(4))
def test_any_flipped_bit_is_caught_or_changes_no_value(out: Path, seed: int) -> None:
    """What is not caught lies outside of what is hashed, as statistics do: then the values are the same."""
    path = out / part_name(3)
    whole, content = path.read_bytes(), pq.read_table(path)
    chance = random.Random(seed)
    caught = 0
    for _ in range(50):
        bit = chance.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        verdict = verify_run(out)
        if verdict.ok:
            assert pq.read_table(path).equals(content), bit
        else:
            caught += 1
            assert all(finding.file == part_name(3) for finding in verdict.findings)
    assert caught > 10


def test_what_is_no_file(out: Path, tmp_path: Path) -> None:
    (out / part_name(0)).rename(tmp_path / "elsewhere.parquet")
    (out / part_name(0)).symlink_to(tmp_path / "elsewhere.parquet")
    (out / part_name(1)).unlink()
    os.mkfifo(out / part_name(1))
    (out / part_name(2)).unlink()
    (out / part_name(2)).mkdir()
    (out / part_name(3)).write_bytes(b"")
    verdict = verify_run(out)
    assert verdict.counts == {"torn": 4}
    assert sum("is no file of its own but a link, a folder or a device" in text for text in texts(verdict)) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(out: Path) -> None:
    (out / part_name(0)).chmod(0)
    (out / "job.yaml").chmod(0)
    verdict = verify_run(out)
    assert "Permission denied" in "".join(texts(verdict))
    assert verdict.counts == {"torn": 1, "changed": 1}


@pytest.mark.parametrize("folder_too", [True, False])
def test_no_rows_at_all(out: Path, folder_too: bool) -> None:
    shutil.rmtree(out / "rows")
    if not folder_too:
        (out / "rows").mkdir()
    verdict = verify_run(out)
    assert verdict.counts == {"torn": 4}
    assert verdict.rows == 0
    assert all("there is no such file" in text for text in texts(verdict))


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns([name.replace("label", "target") for name in table.column_names])


def widened(table: pa.Table) -> pa.Table:
    return table.set_column(1, "sample_index", table["sample_index"].cast(pa.int64()))


@pytest.mark.parametrize(
    "change",
    [
        renamed,
        widened,
        lambda table: table.select([*table.column_names[1:], "row_key"]),
        lambda table: table.append_column("extra", pa.nulls(table.num_rows)),
        lambda table: table.drop_columns(["text"]),
    ],
)
def test_a_part_with_other_columns(out: Path, change: Change) -> None:
    rewrite(out, 1, change)
    verdict = verify_run(out)
    assert verdict.counts == {"torn": 1}
    assert "has other columns than the manifest says" in texts(verdict)[0]


@pytest.mark.parametrize("name", ["row_key", "seed", "sample_index", "finish_reason", "params_hash", "row_hash"])
def test_a_null_where_none_can_be(out: Path, name: str) -> None:
    def nulled(table: pa.Table) -> pa.Table:
        column = table[name].to_pylist()
        column[5] = None
        at = table.column_names.index(name)
        return table.set_column(at, name, pa.array(column, table.schema.field(name).type))

    rewrite(out, 1, nulled)
    verdict = verify_run(out)
    assert not verdict.ok
    assert {finding.file for finding in verdict.findings} == {part_name(1)}


def test_text_that_is_no_longer_utf8(out: Path) -> None:
    def broken(table: pa.Table) -> pa.Table:
        keys = table["row_key"].combine_chunks()
        data = bytearray(keys.buffers()[2].to_pybytes())
        data[0] = 0xFF
        index = [*keys.buffers()[:2], pa.py_buffer(bytes(data))]
        return table.set_column(0, "row_key", pa.Array.from_buffers(pa.string(), len(keys), index))

    rewrite(out, 1, broken)
    verdict = verify_run(out)
    assert any("\\xff" in str(finding.row_key) for finding in verdict.findings)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd"])
def test_another_codec_other_row_groups_and_encodings_change_nothing(out: Path, codec: str) -> None:
    for shard in range(4):
        table = pq.read_table(out / part_name(shard))
        pq.write_table(
            table, out / part_name(shard), compression=codec, row_group_size=5, use_dictionary=shard % 2 == 0
        )
    assert verify_run(out, root=read_manifest(out).root).ok


def test_types_that_count_as_equal_may_stand_side_by_side(out: Path) -> None:
    """Each of three writers has its own: large text, a dictionary, columns that may be null."""
    rewrite(out, 0, lambda table: table.set_column(7, "text", table["text"].cast(pa.large_string())))
    rewrite(out, 1, lambda table: table.set_column(3, "status", table["status"].dictionary_encode()))
    rewrite(out, 2, lambda table: pa.table(table.columns, names=table.column_names))
    assert pq.read_schema(out / part_name(0)).field("text").type == pa.large_string()
    assert verify_run(out).ok


def test_the_order_of_row_groups_is_the_order_of_rows(out: Path) -> None:
    """A row group put elsewhere in the file's bytes is the same content; rows in another order are not."""
    rewrite(out, 1, lambda table: pa.concat_tables([table.slice(32), table.slice(0, 32)]))
    assert verify_run(out).counts == {"moved": 64}


def test_a_suite_that_checked_nothing_would_be_noticed(out: Path) -> None:
    """The counter-test: with a digest on record that fits, a changed row is still not the root's."""
    forge(out, 2, put("token_ids", 9, [1, 2, 3]), root=False)
    assert not verify_run(out).ok
    manifest = read_manifest(out)
    write_manifest(out, replace(manifest, root=verify_root(out)))
    assert verify_run(out).ok


def verify_root(out: Path) -> str:
    """The root that the rows give now, as verify says it."""
    [finding] = verify_run(out).findings
    return finding.detail.rsplit(" ", 1)[-1]
