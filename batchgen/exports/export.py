"""A finished run -> one Parquet file in the shape that a trainer reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import InputError, RunError
from batchgen.exports.extras import experts_of
from batchgen.exports.rewards import Rewards
from batchgen.exports.sample import Sample
from batchgen.exports.shapes import SHAPES, Policy, Shape
from batchgen.io.draft import draft_of
from batchgen.io.manifest import FILE_NAME, read_manifest
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.row_rules import job_of
from batchgen.io.schema import OUTPUT_COLUMNS, as_written
from batchgen.io.source_run import SourceFile, source_files
from batchgen.places import Place
from batchgen.records import SamplingParams
from batchgen.spec import JobSpec

MARK = "batchgen.export"
_ASKED = ("row_key", "sample_index", "status", "error_code", "prompt_token_ids")
_ANSWER = ("token_ids", "logprobs", "text", "finish_reason")
_EXTRA = ("kept_tokens", "routed_experts", "routed_experts_shape", "routed_experts_dtype")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. All of it stands in the file's metadata under `batchgen.export`."""

    to: str
    rows: int
    left_out: int  # samples of prompts with a failed sample
    n: int  # samples of a prompt, next to each other
    source_root: str
    job_fingerprint: str
    weights_digest: str
    logprobs_mode: str
    temperature: float


def export_run(run: Place, out: Path, to: str, rewards: Path | None = None, *, skip_errors: bool = False) -> Exported:
    """Write the samples of the finished run at `run` to `out`, in the shape `to`, a key of SHAPES.

    Every hash of the run is checked first. `rewards`: a Parquet file of row_key, sample_index and reward. A failed
    sample is refused; with `skip_errors` all samples of its prompt are left out. Raises InputError for a run that is
    not what it was and for `rewards`, RunError for rows that the trainer could not use, and when `out` cannot be
    written.
    """
    _check_out(out)
    root, files = source_files(run, None, str(run))
    manifest = read_manifest(run)
    spec, counts = job_of(manifest), manifest.counts
    _check_logprobs(run, spec)
    if SHAPES[to].reads_text and spec.sampling.reasoning is not None:
        hint = "make the run without sampling.reasoning; its tokens are the same"
        raise RunError(f"{to} reads whole texts, and the reasoning is split off here", where=str(run), hint=hint)
    _check_rewards(to, rewards)
    reader = _Reader(
        run,
        Policy(spec.name, manifest.fingerprint["weights_digest"], spec.sampling.temperature, manifest.plan.n),
        Rewards.read(rewards) if rewards else None,
        skip_errors,
    )
    written = 0
    with draft_of(out) as draft:
        for carried, samples in map(reader.samples, files):
            table = _table(SHAPES[to], reader.policy, carried, samples, spec.sampling)
            draft.write(table)
            written += table.num_rows
        found = Exported(
            to=to,
            rows=written,
            left_out=counts.rows - written,
            n=reader.policy.n,
            source_root=root,
            job_fingerprint=manifest.fingerprint["job_fingerprint"],
            weights_digest=reader.policy.weights_digest,
            logprobs_mode=spec.logprobs_mode,
            temperature=reader.policy.temperature,
        )
        draft.finish({MARK: json.dumps(asdict(found))})
    return found


def _table(shape: Shape, policy: Policy, carried: pa.Schema, samples: list[Sample], params: SamplingParams) -> pa.Table:
    rows = [shape.row(sample, policy) for sample in samples]
    table = pa.Table.from_pylist(rows, pa.schema(shape.columns(carried)))
    for extra in shape.extras:
        if getattr(params, extra.source):
            table = table.append_column(extra.name, extra.of(samples))
    return table


@dataclass(frozen=True, slots=True)
class _Reader:
    run: Place
    policy: Policy
    rewards: Rewards | None
    skip_errors: bool

    def samples(self, file: SourceFile) -> tuple[pa.Schema, list[Sample]]:
        """The passthrough columns, and the samples of one shard, which has all those of a prompt."""
        with open_parquet_file(file.path) as parquet:
            table = as_written(parquet.read())
        carried = [name for name in table.column_names if name not in OUTPUT_COLUMNS]
        there = [name for name in _EXTRA if name in table.column_names]
        rows, n = table.select([*_ASKED, *_ANSWER, *there, *carried]).to_pylist(), self.policy.n
        found: list[Sample] = []
        for start in range(0, len(rows), n):
            group = rows[start : start + n]
            if failed := next((row for row in group if row["status"] == "error"), None):
                if not self.skip_errors:
                    message = f"{failed['row_key']!r}, sample {failed['sample_index']} failed: {failed['error_code']}"
                    hint = "with --skip-errors all samples of its prompt are left out"
                    raise RunError(message, where=str(self.run), hint=hint)
                continue
            number = (file.first + start) // n
            found += [self._sample(row, number, {name: row[name] for name in carried}) for row in group]
        return table.select(carried).schema, found

    def _sample(self, row: dict[str, Any], group: int, carried: dict[str, Any]) -> Sample:
        key, index = row["row_key"], row["sample_index"]
        return Sample(
            row_key=key,
            sample_index=index,
            group=group,
            prompt=row["prompt_token_ids"],
            answer=row["token_ids"],
            logprobs=row["logprobs"],
            text=row["text"],
            finish_reason=row["finish_reason"],
            reward=self.rewards.take(key, index) if self.rewards else None,
            carried=carried,
            kept=row.get("kept_tokens"),
            experts=experts_of(row),
        )


def _check_logprobs(run: Place, spec: JobSpec) -> None:
    """Trainers compare these logprobs with their own, so they must be there, and at the temperature of the draws.

    Filters are left to the trainer: what its model gives is a logprob before them, too.
    """
    if spec.sampling.logprobs is None:
        hint = "trainers need the logprob of each token: set sampling.logprobs to 0 in the job"
        raise RunError("the run has no logprobs", where=str(run), hint=hint)
    if "temperature" in spec.own_sampling:
        hint = "select the rows of one temperature into a job of their own"
        raise RunError("its rows have temperatures of their own, and a trainer is told one", where=str(run), hint=hint)
    if spec.logprobs_mode == "raw" and spec.sampling.temperature != 1:
        message = f"its logprobs are raw, of temperature 1, and it was drawn at {spec.sampling.temperature}"
        hint = "a ratio of policies would be wrong: set logprobs_mode to processed in the job, or temperature to 1"
        raise RunError(message, where=str(run), hint=hint)


def _check_rewards(to: str, rewards: Path | None) -> None:
    rule = SHAPES[to].rewards
    if rewards is None and rule == "must":
        hint = "give --rewards FILE, a Parquet file of row_key, sample_index and reward"
        raise InputError(f"{to} reads a reward of each sample", where="--rewards", hint=hint)
    if rewards is not None and rule == "no":
        raise InputError(f"{to} has no place for rewards: it takes advantages later", where="--rewards")


def _check_out(out: Path) -> None:
    """A run folder holds its own files alone, and only an export is written over."""
    folder = out.absolute().parent
    if any((place / FILE_NAME).exists() for place in (folder, folder.parent)):
        raise RunError("lies in a run folder, which holds its own files alone", where=str(out))
    if out.exists():
        try:
            ours = MARK.encode() in (pq.read_metadata(out).metadata or {})
        except (OSError, pa.ArrowException):
            ours = False
        if not ours:
            raise RunError("is there already, and is no export", where=str(out), hint="choose another name")
