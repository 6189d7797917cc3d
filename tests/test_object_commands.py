"""Every command on a job, its input and its run in a bucket."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.jobs import write_parquet
from support.s3 import objects

from batchgen.cli import cli
from batchgen.object_path import ObjectPath

JOB = """\
version: 1
name: small
model: {{path: {model}}}
numerics: portable/1
inputs: [{{path: data/in-*.parquet, columns: {{prompt: prompt}}}}]
row_key: {{column: id}}
sampling: {{n: 2, max_tokens: 4}}
"""


def batchgen(*args: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture
def jobs(tmp_path: Path, tiny_llama: Path, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A folder in a bucket with job.yaml and its input; the same on disk, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data/in-1.parquet", id=["a", "b", "c"], prompt=["One.", "Two, three.", "Four"])
    (tmp_path / "job.yaml").write_text(JOB.format(model=tiny_llama))
    for name in ("job.yaml", "data/in-1.parquet"):
        (bucket / "jobs" / name).write((tmp_path / name).read_bytes())
    return bucket / "jobs"


def test_all_of_it_in_a_bucket(jobs: ObjectPath, bucket: ObjectPath, s3: str, tmp_path: Path) -> None:
    job, out = jobs / "job.yaml", bucket / "runs/a"
    assert batchgen("plan", job).stdout == batchgen("plan", "job.yaml").stdout
    made = json.loads(batchgen("run", job, "--out", out, "--json").stdout)
    disk = json.loads(batchgen("run", "job.yaml", "--out", "run", "--json").stdout)
    assert (made["root"], made["out"]) == (disk["root"], str(out))
    assert json.loads(objects(out, s3)["manifest.json"])["run_config"]["job_dir"] == "../../jobs"
    assert batchgen("run", job, "--out", out).stdout.splitlines()[-1] == f"root {made['root']}"

    assert json.loads(batchgen("verify", out, "--json").stdout)["root"] == made["root"]
    assert json.loads(batchgen("status", out, "--json").stdout)["state"] == "finished"
    assert [row["row_key"] for row in json.loads(batchgen("show", out, "--json").stdout)["rows"]] == [*"aabb"]
    assert json.loads(batchgen("diff", out, "run", "--json").stdout)["identical"] is True
    replayed = json.loads(batchgen("replay", out, "--all", "--from-input", "--json").stdout)
    assert (replayed["ok"], replayed["exact"]) == (True, 6)
    assert json.loads(batchgen("explain", out, "b", "--json").stdout)["differs"] is False
    again = json.loads(batchgen("run", "job.yaml", "--out", "again", "--reuse", out, "--json").stdout)
    assert (again["root"], again["reused"], again["sources"][0]["path"]) == (made["root"], 6, str(out))

    page = batchgen("report", out, "--against", "run").stdout.strip()
    assert page == f"{out}/report.html"
    assert b"</html>" in objects(out, s3)["report.html"]
    batchgen("report", "run", "--out", bucket / "pages/run.html")
    assert list(objects(bucket / "pages", s3)) == ["run.html"]

    part = out / "rows/part-00000.parquet"
    part.write(part.read_bytes()[:-9])
    assert "rows/part-00000.parquet" in batchgen("verify", out, exit_code=8).output


def test_a_job_on_disk_is_found_from_a_bucket(jobs: ObjectPath, bucket: ObjectPath, s3: str, tmp_path: Path) -> None:
    out = bucket / "runs/b"
    batchgen("run", "job.yaml", "--out", out)
    assert json.loads(objects(out, s3)["manifest.json"])["run_config"]["job_dir"] == str(tmp_path)
    assert json.loads(batchgen("replay", out, "--all", "--from-input", "--json").stdout)["exact"] == 6
    assert json.loads(batchgen("replay", out, "--from-input", "--job-dir", jobs, "--json").stdout)["ok"] is True


def test_what_must_be_on_disk(jobs: ObjectPath, bucket: ObjectPath, tmp_path: Path) -> None:
    said = batchgen("diff", "run", "run", "--out", bucket / "diff.parquet", exit_code=2).output
    assert "must be a file of this machine" in said
    (jobs / "job.yaml").write(JOB.format(model="model").encode())
    said = batchgen("run", jobs / "job.yaml", exit_code=6).output
    assert f"model: is seen from {jobs}, and a model must be on disk" in said


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["verify", "s3://no-such-bucket-here/run"], 7, "s3://no-such-bucket-here: there is no such bucket"),
        (["run", "job.yaml", "--out", "s3://no-such-bucket-here/run"], 7, "there is no such bucket"),
        (["run", "s3://no-such-bucket-here/job.yaml"], 4, "there is no such bucket"),
        (["run", "job.yaml", "--out", "gs://bucket/run"], 7, "needs a package that is not installed"),
        (["verify", "s3://"], 2, "names no bucket: write s3://BUCKET/KEY"),
    ],
)
def test_a_place_that_cannot_be_used(jobs: ObjectPath, args: list[str], exit_code: int, message: str) -> None:
    assert message in " ".join(batchgen(*args, exit_code=exit_code).output.split())


def test_a_second_process_is_refused(jobs: ObjectPath, bucket: ObjectPath) -> None:
    (bucket / "runs/c/lease.json").write(
        b'{"owner": "process 7 on h", "id": "x", "expires": "2999-01-01T00:00:00+00:00"}'
    )
    said = " ".join(batchgen("run", "job.yaml", "--out", bucket / "runs/c", exit_code=7).output.split())
    assert "runs/c: another process is writing to this run process 7 on h holds it" in said
