"""A run as a ledger: everything that is needed to make its rows again, from its folder and its model alone."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from batchgen.errors import EngineError, ModelError, RowError, RunError, SpecError, VerifyError
from batchgen.executor.base import Engine
from batchgen.executor.replica import only_ranks_open_weights, start_replica
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import Weights, open_weights
from batchgen.io.manifest import FILE_NAME, Manifest, ShardRecord, part_name, read_manifest
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.row_rules import RowRules
from batchgen.io.shard_check import check_shard
from batchgen.io.shard_faults import expected_ids
from batchgen.loader import LoadedModel, Progress, bad_words_token_ids, limits_json, load_model, own_check
from batchgen.places import Place, join
from batchgen.records import Request, SamplingParams
from batchgen.seeds import sample_seed
from batchgen.spec import JobSpec
from batchgen.text.asking import RowParams
from batchgen.text.structured import grammar_digest
from batchgen.verify.integrity import off_plan

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes", "prefix_cache", "threads")  # of a RunConfig


@dataclass(eq=False)
class Ledger:
    """A run that can be made again. Made by `open`; everything in it is as it was when the run was made."""

    run: Place
    manifest: Manifest
    spec: JobSpec
    model: LoadedModel
    job_dir: Place  # where relative paths of the job begin
    bad_words_token_ids: tuple[tuple[int, ...], ...]

    @classmethod
    def open(cls, run: Place, on_fetch: Progress, job_dir: Place | None = None) -> Self:
        """Read the run at `run` and load its model, but for the weights.

        `job_dir` replaces the recorded folder of the job file. Raises RunError (no run, another version's), VerifyError
        (job.yaml or the manifest was edited), ModelError (the model is gone, or its tokenizer or limits changed).
        """
        manifest = read_manifest(run)
        _check_job(run, manifest)
        spec = _read_spec(run, manifest)
        _check_manifest(run, manifest)
        job_dir = job_dir or join(run, str(manifest.run_config.get("job_dir") or "."))
        model = _load_model(spec, job_dir, on_fetch)
        then = manifest.fingerprint
        _same(str(model.path), "tokenizer", then.get("tokenizer_digest"), model.tokenizer.digest)
        _same(str(model.path), "limits", then.get("limits"), limits_json(model))
        _same_grammars(run, then.get("grammars"), grammar_digest(spec.sampling, spec.own_sampling).get("grammars"))
        return cls(run, manifest, spec, model, job_dir, bad_words_token_ids(spec.sampling, model.tokenizer))

    @property
    def params(self) -> SamplingParams:
        """Of every row, but for what it says itself."""
        return self.spec.sampling

    @cached_property
    def own_params(self) -> RowParams:
        """Of rows that say some themselves."""
        return RowParams(self.params, own_check(self.model))

    @property
    def config(self) -> RunConfig:
        """How its rows were computed by the process that wrote last."""
        known = {name: value for name, value in self.manifest.run_config.items() if name in LIMITS}
        return RunConfig(self.run, probe=0, **known)  # type: ignore[arg-type]

    @cached_property
    def weights(self) -> Weights:
        """Raises ModelError when they are not the weights of the run."""
        weights = open_weights(self.model.path, self.spec.numerics, load_format=self.spec.model.load_format)
        _same(str(self.model.path), "weights", self.manifest.fingerprint.get("weights_digest"), weights.weights_digest)
        return weights

    def start_engine(self, config: RunConfig) -> Engine:
        """An engine, or as many ranks as `config` says, that is the one of the run in all that bits depend on.

        Raises ModelError for other weights, EngineError for other numerics, kernels or another canary.
        """
        is_theirs = only_ranks_open_weights(self.spec.numerics, config.expert_parallel_size)
        engine = start_replica(self.spec, self.model, config, None if is_theirs else self.weights)
        now, then = engine.fingerprint, self.manifest.fingerprint
        for part in sorted(now.keys() | then.keys() - _OF_THE_JOB):
            if now.get(part) != then.get(part):
                raise EngineError(
                    f"{_PARTS.get(part, part)} {now.get(part)} here, and {then.get(part)} in the run",
                    where=str(self.run / FILE_NAME),
                    hint="another build made it, or a processor that computes otherwise: replay it with that one",
                )
        return engine

    def table(self, shard: ShardRecord) -> pa.Table:
        """The rows of one shard. Raises VerifyError unless every value is as it was committed."""
        _, findings = check_shard(self.run, self.manifest, shard)
        if findings:
            raise edited(self.run, str(findings[0]))
        with open_parquet_file(self.run / part_name(shard.index)) as file:
            return file.read()

    def samples(self, shard: ShardRecord) -> list[tuple[str, int]]:
        """(row_key, sample_index) of each row of a shard, in order."""
        if found := expected_ids(self.run, self.manifest, shard):
            return found
        rows = self.table(shard)
        return list(zip(rows["row_key"].to_pylist(), rows["sample_index"].to_pylist(), strict=True))

    def request(self, row: Mapping[str, Any]) -> Request:
        """The request whose answer `row` is, a row of `table` with prompt ids."""
        own = row["sampling"] if self.spec.own_sampling else None
        return self.ask(row["row_key"], row["sample_index"], row["prompt_token_ids"], own)

    def ask(
        self, row_key: str, sample_index: int, prompt_token_ids: Sequence[int], sampling: str | None = None
    ) -> Request:
        """The request for a sample of this job, whose row says `sampling` itself."""
        seed, ids, words = self.seed(row_key, sample_index), tuple(prompt_token_ids), self.bad_words_token_ids
        try:
            params = self.own_params.of(sampling)
        except RowError as error:
            raise edited(self.run, f"row {row_key!r} sample {sample_index}: its sampling cannot be: {error}") from None
        return Request(row_key, sample_index, seed, ids, params, words, sampling=sampling)

    def seed(self, row_key: str, sample_index: int) -> int:
        """Derived anew: a seed that is stored may have been chosen for what it draws."""
        return sample_seed(self.spec.seed, row_key, sample_index)


_OF_THE_JOB = {"job_fingerprint", "inputs_digest", "params_hash", "limits", "grammars"}
_PARTS = {
    "numerics": "the numerics profile is",
    "kernel_set": "the kernels have the digest",
    "canary": "the answer to the canary prompt has the digest",
}


def edited(run: Place, finding: str) -> VerifyError:
    """For a run whose files are not as they were committed."""
    return VerifyError(finding, where=str(run), hint=f"batchgen verify {run} names everything that was changed")


def _check_job(run: Place, manifest: Manifest) -> None:
    path = run / "job.yaml"
    try:
        now = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise VerifyError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if now != manifest.job_yaml_sha256:
        message = f"was edited: it has SHA-256 {now}, and the run was started with {manifest.job_yaml_sha256}"
        raise VerifyError(message, where=str(path), hint="put the file back as it was")


def _read_spec(run: Place, manifest: Manifest) -> JobSpec:
    """Raise VerifyError for a manifest that contradicts itself, EngineError or RunError for a spec of another version.

    Only a batchgen can have written a spec that its fingerprint holds for.
    """
    path, made_by = run / FILE_NAME, f"use batchgen {manifest.batchgen_version}, which made the run"
    for contradiction in manifest.contradictions():
        raise edited(run, f"{FILE_NAME}: {contradiction}")
    try:
        return JobSpec.from_resolved(manifest.spec)
    except SpecError as error:
        if error.where == "numerics":
            message = f"the numerics profile {manifest.spec.get('numerics')!r} is not known here"
            raise EngineError(message, where=str(path), hint=made_by) from None
        raise RunError(error.message, where=f"{path}: spec.{error.where}", hint=made_by) from None


def _check_manifest(run: Place, manifest: Manifest) -> None:
    """Raise VerifyError unless the manifest agrees with its spec."""
    try:
        faults = list(off_plan(manifest, RowRules.of(manifest)))
    except RunError as error:
        faults = [error.message]
    if faults:
        raise edited(run, f"{FILE_NAME}: {faults[0]}")


def _load_model(spec: JobSpec, job_dir: Place, on_fetch: Progress) -> LoadedModel:
    try:
        return load_model(spec, job_dir, on_fetch)
    except ModelError as error:
        is_place = not spec.model.path.startswith(("pypi:", "hf:"))
        if is_place and not (job_dir / spec.model.path).exists():
            raise ModelError(
                "the model is gone",
                where=str(job_dir / spec.model.path),
                hint=f"the job names it {spec.model.path!r}; --job-dir says from which folder, if the run was moved",
            ) from error
        raise


def _same_grammars(run: Place, then: str | None, now: str | None) -> None:
    if now != then:
        message = f"grammars were compiled by {then}, and here by {now}"
        raise EngineError(message, where=str(run / FILE_NAME), hint=f"install {then}: another may allow other tokens")


def _same(where: str, what: str, then: str | None, now: str) -> None:
    if now != then:
        digest = "" if what == "limits" else "digest "
        message = f"the {what} changed since the run: {digest}{now} now, {then} then"
        raise ModelError(message, where=where, hint="only the model of that time can make these rows again")
