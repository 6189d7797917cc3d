"""A run in its folder: begun anew, or taken up where an earlier process left it."""

import hashlib
import logging
from importlib.metadata import version

import pyarrow as pa

from batchgen.executor.base import Job, Proven
from batchgen.executor.run_config import RunConfig
from batchgen.io.canonical import columns_json
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import InputRecord, Manifest, PlanRecord
from batchgen.io.run_folder import RunFolder
from batchgen.io.same_job import refuse_other_job
from batchgen.io.schema import SCHEMA_VERSION, output_schema
from batchgen.io.shard_check import check_shards
from batchgen.plan import Plan, Shard, make_plan

_log = logging.getLogger(__name__)


def open_run(folder: RunFolder, job: Job, engine: Proven, config: RunConfig) -> tuple[Plan, pa.Schema]:
    """Start the run, or make sure that the one in the folder is of this job. A run of no row yet gives way to any.

    Raises RunError when it is of another job.
    """
    there = folder.manifest if folder.manifest and (folder.manifest.shards or folder.manifest.root) else None
    rows_per_shard = there.plan.rows_per_shard if there else config.rows_per_shard
    if config.rows_per_shard not in (None, rows_per_shard):
        _log.info("%s has %d rows per shard, and keeps them", folder.path, rows_per_shard)
    plan = make_plan(job.spec, job.inputs, rows_per_shard)
    fingerprint = job.fingerprint(engine)
    metadata = {f"batchgen.{part}": value for part, value in fingerprint.items()}
    metadata |= {"batchgen.schema_version": str(SCHEMA_VERSION), "batchgen.logprobs_mode": job.spec.logprobs_mode}
    schema = output_schema(
        job.inputs.passthrough, params=job.params, own_sampling=job.spec.own_sampling, metadata=metadata
    )
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        batchgen_version=version("batchgen"),
        fingerprint=fingerprint,
        spec=job.spec.resolved(),
        job_yaml_sha256=hashlib.sha256(job.job_yaml).hexdigest(),
        inputs=tuple(
            InputRecord(file.label, file.sha256, file.count, file.source.root if file.source else None)
            for file in job.inputs.files
        ),
        plan=PlanRecord(plan.num_rows, plan.n, plan.rows_per_shard, plan.digest),
        columns=tuple((name, type_) for name, type_ in columns_json(schema)),
        run_config=config.recorded(),
        engine=engine.about,
    )
    if there is None:
        folder.start(manifest, job.job_yaml)
    else:
        refuse_other_job(folder.path, there, manifest)
        folder.record(manifest.run_config, manifest.engine)
    return plan, schema


def trusted_shards(folder: RunFolder, plan: Plan, tree: MerkleTree) -> set[int]:
    """The shards that are as they were committed, their leaves added to `tree`; all else is put out of the way."""
    manifest = folder.started
    planned = {shard.index: shard for shard in plan.shards}
    trusted: set[int] = set()
    for shard, leaves, wrong in check_shards(folder.path, manifest, manifest.shards):
        if wrong:
            _log.warning("%s: %s; its shard is made again", folder.path, wrong[0])
        elif planned.pop(shard.index, None) == Shard(shard.index, shard.start, shard.stop):
            trusted.add(shard.index)
            tree.add(shard.start * plan.n, leaves)
    folder.keep(trusted)
    return trusted
