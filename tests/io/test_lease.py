"""One writer at a time, by a lease: who gets it, who keeps it, who has lost it."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from batchgen.errors import RunError
from batchgen.io import lease
from batchgen.io.held import is_held
from batchgen.io.lease import LEASE, Lease
from batchgen.object_path import ObjectPath


@pytest.fixture(params=["s3", "memory"])
def run(request: pytest.FixtureRequest) -> ObjectPath:
    if request.param == "s3":
        found: ObjectPath = request.getfixturevalue("bucket")
        return found / "run"
    return ObjectPath(f"memory://{request.node.name.replace('[', '-').strip(']')}/run")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> float:
    """Leases run out after a moment."""
    monkeypatch.setattr(lease, "SECONDS", 1.5)
    return 1.5


def put(run: ObjectPath, seconds: float) -> None:
    """The lease of a process that died, or did not."""
    expires = datetime.now(UTC) + timedelta(seconds=seconds)
    (run / LEASE).write(json.dumps({"owner": "process 7 on host", "id": "x", "expires": expires.isoformat()}).encode())


def test_one_at_a_time(run: ObjectPath) -> None:
    held = Lease.take(run)
    held.check()
    with pytest.raises(RunError, match=r"another process is writing to this run\n  process .* for [0-9]+ s more"):
        Lease.take(run)
    held.close()
    assert not (run / LEASE).exists()
    Lease.take(run).close()


def test_what_was_not_renewed_is_taken_over(run: ObjectPath) -> None:
    put(run, 20)
    assert is_held(run)
    with pytest.raises(RunError, match=r"process 7 on host holds it, and if that has died, for [0-9]+ s more"):
        Lease.take(run)
    put(run, -1)
    assert not is_held(run)
    held = Lease.take(run)
    held.check()
    assert is_held(run)
    held.close()
    assert not is_held(run)


def test_it_is_renewed(run: ObjectPath, brief: float) -> None:
    held = Lease.take(run)
    first = (run / LEASE).read_bytes()
    time.sleep(2 * brief)
    held.check()
    assert (run / LEASE).read_bytes() != first
    with pytest.raises(RunError, match="another process"):
        Lease.take(run)
    held.close()


def test_who_slept_has_lost_it(run: ObjectPath, brief: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Lease.take(run)
    monkeypatch.setattr(asleep, "_renew", lambda: None)
    time.sleep(brief * 1.1)
    monkeypatch.undo()
    other = Lease.take(run)
    with pytest.raises(RunError, match="another process is writing to this run\n  this process was not heard of"):
        asleep.check()
    asleep.close()
    other.check()
    assert (run / LEASE).exists(), "who has lost a lease must not remove it"
    other.close()


def test_who_slept_and_was_not_missed_goes_on(run: ObjectPath, brief: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Lease.take(run)
    with monkeypatch.context() as patch:
        patch.setattr(asleep, "_renew", lambda: None)
        time.sleep(brief * 1.1)
        with pytest.raises(RunError, match="the lease cannot be renewed"):
            asleep.check()
    asleep.check()
    asleep.close()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"expires": 3}', b'{"expires": "soon"}'])
def test_what_is_no_lease_is_left_alone(bucket: ObjectPath, data: bytes) -> None:
    (bucket / "run" / LEASE).write(data)
    assert not is_held(bucket / "run")
    with pytest.raises(RunError, match=r"run/lease\.json: is no lease\n  remove it once no process"):
        Lease.take(bucket / "run")
    assert (bucket / "run" / LEASE).read_bytes() == data


def test_a_store_that_keeps_no_conditions_is_told(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_new(path: ObjectPath, data: bytes) -> str:
        path.write(data)
        return path.read_version()[1]

    monkeypatch.setattr(ObjectPath, "write_new", write_new)
    held = Lease.take(bucket / "run")
    assert "this store keeps no conditions" in caplog.text
    held.check()
    held._renew()
    held.check()
    held.close()


def test_two_who_are_let_in_by_such_a_store(run: ObjectPath, monkeypatch: pytest.MonkeyPatch, brief: float) -> None:
    """The later of two writes stands: the earlier writer sees it, and leaves."""
    if run.is_conditional:
        pytest.skip("this one lets in one")
    monkeypatch.setattr(time, "sleep", lambda seconds: put(run, 20))
    with pytest.raises(RunError, match="another process is writing to this run\n  it has just begun"):
        Lease.take(run)
