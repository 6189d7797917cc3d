"""ObjectPath against a real server, and against fsspec's store in memory, which knows no conditions."""

import copy
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3 import client, credentials, new_bucket, objects, s3_server

from batchgen.errors import RunError
from batchgen.object_path import Changed, ObjectFile, ObjectPath, StoreError
from batchgen.places import stamp


@pytest.fixture(params=["s3", "memory"])
def folder(request: pytest.FixtureRequest) -> ObjectPath:
    if request.param == "s3":
        found: ObjectPath = request.getfixturevalue("bucket")
        return found / "a"
    return ObjectPath(f"memory://{request.node.name.replace('[', '-').strip(']')}/a")


def test_names() -> None:
    path = ObjectPath("s3://b/runs/a")
    assert (path.name, str(path / "rows/x"), path.store, path.key) == ("a", "s3://b/runs/a/rows/x", "s3://b", "runs/a")
    assert str(path.parent.parent.parent) == str(path / "../../../..") == "s3://b"
    assert path.with_name("c") == ObjectPath("s3://b/runs/c")
    assert copy.deepcopy(path) == pickle.loads(pickle.dumps(path)) == path
    assert {path} == {ObjectPath("s3://b/runs/a")}


def test_what_is_written_is_there(folder: ObjectPath) -> None:
    file = folder / "b" / "c [1].txt"
    assert [file.exists(), file.is_file(), file.is_dir(), folder.is_dir()] == [False] * 4
    assert list(folder.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    with pytest.raises(FileNotFoundError):
        stamp(file)
    file.write(b"one\n")
    (folder / "d").write("é".encode())
    assert file.exists()
    assert file.is_file()
    assert not file.is_dir()
    assert folder.is_dir()
    assert not folder.is_file()
    assert list(folder.iterdir()) == [folder / "b", folder / "d"]
    assert (file.read_bytes(), (folder / "d").read_text()) == (b"one\n", "é")
    file.rename(folder / "b" / ".hidden")
    assert [path.name for path in (folder / "b").iterdir()] == [".hidden"]
    (folder / "d").unlink()
    (folder / "d").unlink(missing_ok=True)
    assert list(folder.iterdir()) == [folder / "b"]


def test_a_pattern_finds_files(folder: ObjectPath) -> None:
    for name in ("part-1.parquet", ".part-2.parquet", "x/part-3.parquet", "x/.y/part-4.parquet"):
        (folder / name).write(b"")
    assert folder.matching("*.parquet") == ["part-1.parquet"]
    assert sorted(folder.matching("**/*.parquet")) == ["part-1.parquet", "x/part-3.parquet"]
    assert folder.matching(".part*") == [".part-2.parquet"]
    assert folder.matching("x*") == []
    assert (folder / "gone").matching("*") == []


def test_a_file_is_read_in_pieces(folder: ObjectPath) -> None:
    data = bytes(range(256)) * 40
    (folder / "b").write(data)
    with (folder / "b").open() as file:
        assert file.size == len(data)
        assert file.seek(-300, 2) == len(data) - 300
        assert file.read(10) == data[-300:-290]
        file.seek(5)
        assert (file.read(3), file.tell()) == (data[5:8], 8)
        file.seek(0)
        assert hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(data).digest()


def test_a_stamp_tells_versions_apart(folder: ObjectPath) -> None:
    (folder / "b").write(b"one")
    before = stamp(folder / "b")
    assert stamp(folder / "b") == before
    (folder / "b").write(b"two")
    assert stamp(folder / "b") != before


def test_an_open_file_stays_one_version(bucket: ObjectPath) -> None:
    (bucket / "b").write(b"one")
    with (bucket / "b").open() as file:
        (bucket / "b").write(b"two")
        with pytest.raises(Changed, match="has changed while it was read"):
            file.read()


def test_a_version_goes_with_its_bytes(bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another is written between the two requests of a read; not for ever."""
    (bucket / "b").write(b"0")
    writes = iter([b"1", b"2"])

    def read(file: ObjectFile) -> bytes:
        if (data := next(writes, None)) is not None:
            (bucket / "b").write(data)
        return file.read()

    monkeypatch.setattr(ObjectFile, "readall", read)
    data, version = (bucket / "b").read_version()
    assert data == b"2"
    (bucket / "b").write_over(b"3", version)
    writes = iter([b"%d" % number for number in range(99)])
    with pytest.raises(Changed, match="changes all the time"):
        (bucket / "b").read_version()


def test_a_new_object_replaces_none(folder: ObjectPath) -> None:
    version = (folder / "b").write_new(b"one")
    assert (folder / "b").read_version() == (b"one", version)
    with pytest.raises(FileExistsError):
        (folder / "b").write_new(b"two")
    assert (folder / "b").write_new(b"one") == version  # as when the answer to a first try was lost
    assert (folder / "b").read_bytes() == b"one"


def test_only_the_version_that_was_read_is_replaced(folder: ObjectPath) -> None:
    first = (folder / "b").write_new(b"one")
    second = (folder / "b").write_over(b"two", first)
    assert (folder / "b").read_version() == (b"two", second)
    with pytest.raises(FileExistsError):
        (folder / "b").write_over(b"three", first)
    assert (folder / "b").read_bytes() == b"two"
    (folder / "b").unlink()
    with pytest.raises((FileExistsError, FileNotFoundError)):
        (folder / "b").write_over(b"three", second)


def test_a_large_object_is_written_under_the_same_condition(bucket: ObjectPath, s3: str) -> None:
    """It goes in parts, which s3fs does from 100 MiB on."""
    (bucket / "b").write(b"one")
    with pytest.raises(FileExistsError):
        (bucket / "b").write_new(bytes(101 << 20))
    assert objects(bucket, s3) == {"b": b"one"}
    assert bucket.abort_uploads() == 0


def test_uploads_that_were_never_completed_are_dropped(bucket: ObjectPath, s3: str) -> None:
    boto, name = client("s3", s3), bucket.store.removeprefix("s3://")
    for key in ("runs/a/rows/part-00000.parquet", "runs/ab/rows/part-00000.parquet"):
        upload = boto.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        boto.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 100)
    assert not (bucket / "runs").exists()
    assert (bucket / "runs/a").abort_uploads() == 1
    [left] = boto.list_multipart_uploads(Bucket=name)["Uploads"]
    assert left["Key"].startswith("runs/ab/")


def test_no_bucket(s3: str) -> None:
    path = ObjectPath("s3://there-is-no-such-bucket/a")
    assert not path.exists()
    for act in (path.read_bytes, lambda: path.write(b""), lambda: path.write_new(b""), lambda: list(path.iterdir())):
        with pytest.raises(StoreError, match=r"s3://there-is-no-such-bucket: there is no such bucket"):
            act()


def test_a_store_error_is_both() -> None:
    error = StoreError("no", where="s3://b", hint="do")
    assert isinstance(error, OSError)
    assert isinstance(error, RunError)
    assert (str(error), error.strerror, error.exit_code) == ("s3://b: no\n  do", "no", 7)


@pytest.mark.parametrize(
    ("url", "fault"),
    [("zz://b/a", "Protocol not known: zz"), ("gs://b/a", "needs a package that is not installed: .*gcsfs")],
)
def test_no_such_store(url: str, fault: str) -> None:
    with pytest.raises(StoreError, match=fault):
        ObjectPath(url).read_bytes()


def test_a_fault_of_our_own_is_no_fault_of_the_store(bucket: ObjectPath) -> None:
    with pytest.raises(TypeError):
        bucket._ask(lambda fs, path: fs.exists())


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server that checks rights, with a bucket and a user who may do nothing but list and get what is in it."""
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="4") as url:
        bucket = new_bucket(url)
        iam = client("iam", url)
        iam.create_user(UserName="reader")
        may = '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":["s3:Get*","s3:List*"],"Resource":"*"}}'
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=may)
        made = iam.create_access_key(UserName="reader")["AccessKey"]
        yield f"{url} {bucket} {made['AccessKeyId']} {made['SecretAccessKey']}"


PROGRAM = """
import sys
from batchgen.io.run_folder import RunFolder
from batchgen.places import place
where = place(sys.argv[1])
print(where.exists(), flush=True)
try:
    RunFolder.open(where)
except Exception as error:
    print(type(error).__name__, error)
"""


def told(where: str, environment: dict[str, str]) -> str:
    """What a process of its own says of a run at `where`."""
    bare = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    command = [sys.executable, "-P", "-c", PROGRAM, where]
    done = subprocess.run(command, env=bare | environment, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


def test_no_right_to_write(guarded: str) -> None:
    url, bucket, key, secret = guarded.split()
    said = told(f"{bucket}/run", credentials(url, key, secret))
    assert said.startswith("False\nStoreError " + bucket)
    assert "access is denied (AccessDenied)" in said
    assert "the rights to list and get objects, and a run those to put and delete them too" in said


def test_a_wrong_key(guarded: str) -> None:
    url, bucket, _, _ = guarded.split()
    assert "access is denied" in told(f"{bucket}/run", credentials(url, "AKIANOBODY", "x"))


def test_no_credentials(s3: str) -> None:
    said = told("s3://bucket/run", {"AWS_ENDPOINT_URL": s3})
    assert "s3://bucket: there are no credentials for it\n  set AWS_ACCESS_KEY_ID" in said


def test_no_server(tmp_path: Path) -> None:
    said = told("s3://bucket/run", credentials("http://127.0.0.1:9"))
    assert 's3://bucket/run: the store failed: Could not connect to the endpoint URL: "http://127.0.0.1:9' in said


def test_no_s3fs(s3: str, tmp_path: Path) -> None:
    (tmp_path / "s3fs.py").write_text("raise ImportError('No module named s3fs')")
    said = told("s3://bucket/run", {**credentials(s3), "PYTHONPATH": str(tmp_path)})
    assert "s3://bucket/run: needs a package that is not installed: Install s3fs to access S3" in said
    assert "pip install 'batchgen[s3]'" in said
