import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import RunError
from batchgen.io.run_folder import RunFolder
from batchgen.verify.integrity import verify_run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished run of 50 rows in 7 shards."""
    run(make_job(write_input(tmp_path / "in")), tmp_path / "run")
    return tmp_path / "run"


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "a" / "b") as folder:
        assert folder.manifest is None
    assert (tmp_path / "a" / "b").is_dir()


def test_a_run_is_known_again(out: Path) -> None:
    with RunFolder.open(out) as folder:
        assert len(folder.started.shards) == 7


def test_a_folder_of_other_things_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"is not a run and not empty: it holds thesis\.tex"):
        RunFolder.open(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_rows_whose_manifest_is_gone_are_refused_and_kept(out: Path) -> None:
    (out / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"rows/part-00000\.parquet, rows/part-00001\.parquet"):
        RunFolder.open(out)
    assert len(list((out / "rows").iterdir())) == 7


def test_what_a_kill_before_the_first_manifest_leaves_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "job.yaml").touch()
    (tmp_path / ".manifest.json.tmp").touch()
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "evidence").mkdir()
    with RunFolder.open(tmp_path) as folder:
        assert folder.manifest is None
    assert not (tmp_path / ".manifest.json.tmp").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(RunError, match="x: is a file, and a run is a folder"):
        RunFolder.open(tmp_path / "x")
    with pytest.raises(RunError, match="cannot write: Not a directory"):
        RunFolder.open(tmp_path / "x" / "y")


def test_two_writers_do_not_meet(out: Path) -> None:
    code = f"from pathlib import Path; from batchgen.io.run_folder import RunFolder; RunFolder.open(Path({str(out)!r}))"
    with RunFolder.open(out):
        with pytest.raises(RunError, match="another process is writing to this run"):
            RunFolder.open(out)
        other = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
        assert "another process is writing to this run" in other.stderr
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_only_our_own_leftovers_are_removed(out: Path) -> None:
    for name in (".part-00002.parquet.tmp", ".part-00002.parquet.untrusted", "notes.tmp"):
        (out / "rows" / name).touch()
    RunFolder.open(out).close()
    assert {path.name for path in (out / "rows").iterdir() if path.suffix != ".parquet"} == {
        ".part-00002.parquet.untrusted",
        "notes.tmp",
    }


def test_evidence_is_numbered_and_kept(out: Path) -> None:
    with RunFolder.open(out) as folder:
        assert folder.num_evidence == 0
        assert folder.keep_evidence({"a": "é", "b": [1]}) == out / "evidence" / "probe-001.json"
    (out / "evidence" / "notes.txt").touch()
    (out / "evidence" / ".probe-002.json.tmp").touch()
    with RunFolder.open(out) as folder:
        assert folder.keep_evidence({}) == out / "evidence" / "probe-002.json"
        assert folder.num_evidence == 2
    assert json.loads((out / "evidence" / "probe-001.json").read_text()) == {"a": "é", "b": [1]}
    names = {path.name for path in (out / "evidence").iterdir()}
    assert names == {"probe-001.json", "probe-002.json", "notes.txt"}
    assert verify_run(out).ok


def test_what_is_not_trusted_is_hidden_and_forgotten(out: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), out / "rows" / "part-00099.parquet")
    with RunFolder.open(out) as folder:
        folder.keep({0, 1, 2, 3, 4, 5})
    with RunFolder.open(out) as folder:
        assert [shard.index for shard in folder.started.shards] == [0, 1, 2, 3, 4, 5]
    assert sorted(path.name for path in (out / "rows").iterdir() if path.name.startswith(".")) == [
        ".part-00006.parquet.untrusted",
        ".part-00099.parquet.untrusted",
    ]
