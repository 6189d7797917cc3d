"""A replica of a real model, without Ray: what it needs to know, and what it refuses."""

import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.tiny_jobs import make, write_tiny_jobs

from batchgen.errors import ModelError
from batchgen.executor.actor import Replica, ReplicaSetup
from batchgen.executor.run_config import RunConfig
from batchgen.executor.work import Failure, Made, ShardReader, Started
from batchgen.io.manifest import read_manifest
from batchgen.loader import load_job
from batchgen.plan import make_plan
from batchgen.verify.integrity import verify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_jobs(tmp_path_factory.mktemp("tiny"))


def test_a_replica_makes_what_a_run_makes(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "run", rows_per_shard=12)
    assert verify_run(tmp_path / "run").ok
    job, _ = load_job(folder / "job.yaml", lambda done, total: None)
    config = RunConfig(Path("unused"), device="cpu", threads=1, max_num_seqs=4)
    setup = ReplicaSetup(job.spec, folder, config, job.digests["limits"])
    replica = Replica(pickle.loads(pickle.dumps(setup)))
    started = replica.start()
    assert isinstance(started, Started)
    assert started.host["pid"] == os.getpid()
    assert job.fingerprint(started) == dict(read_manifest(tmp_path / "run").fingerprint)
    expected = [pq.read_table(path) for path in sorted((tmp_path / "run" / "rows").iterdir())]
    plan, reader = make_plan(job.spec, job.inputs, 12), ShardReader(job.inputs, expected[0].schema)
    for index in (1, 0):
        replica.give(pickle.loads(pickle.dumps(reader.read(plan.shard(index)))))
    made: list[Made] = []
    limit = time.monotonic() + 60
    while len(made) < 2 and time.monotonic() < limit:
        news = replica.news(0.5)
        assert news.failure is None
        made += news.made
    for each in made:
        assert each.table.equals(expected[each.shard.index])
    replica.give(None)


def test_a_replica_that_cannot_start(folder: Path) -> None:
    job, _ = load_job(folder / "job.yaml", lambda done, total: None)
    config = RunConfig(Path("unused"), device="cpu")
    found = Replica(ReplicaSetup(job.spec, folder / "elsewhere", config)).start()
    assert isinstance(found, Failure)
    assert found.is_loss, "another machine may have the model"
    assert isinstance(found.error, ModelError)
    found = Replica(replace(ReplicaSetup(job.spec, folder, config), limits="other")).start()
    assert isinstance(found, Failure)
    assert found.error.message.startswith('the limits of the model are {"max_model_len": 200, ')
    assert found.error.message.endswith(" here, and other where the driver is")
