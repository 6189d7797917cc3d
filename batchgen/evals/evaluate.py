"""Score the rows of a finished run, from its files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from batchgen.errors import RunError, SpecError, VerifyError, nearest
from batchgen.evals.items import Item, write_beside, write_items
from batchgen.evals.scorers import scorer_of
from batchgen.evals.statistics import Summary, summarise
from batchgen.io.manifest import Manifest, read_manifest
from batchgen.io.row_batches import row_batches
from batchgen.places import Place, join
from batchgen.spec import load_spec
from batchgen.spec_evals import EvalSpec
from batchgen.verify.integrity import verify_run

_AT_ONCE = 4096  # rows of a file that are read together
_LEFT_OUT = {"prompt_token_ids", "token_ids", "logprobs", "top_logprobs_ids", "top_logprobs_values", "kept_tokens"}
_LEFT_OUT |= {"routed_experts"}  # hundreds of bytes a token


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of one spec, and where its items are."""

    name: str
    scorer: str
    summary: Summary
    items: str


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A finished run whose files hold what they should, and how its rows are to be scored."""

    run: Place
    manifest: Manifest
    specs: tuple[EvalSpec, ...]
    job_dir: Path | None  # where paths of the job begin, if that is on this machine

    @classmethod
    def open(
        cls, run: Place, *, evals: Place | None = None, only: Sequence[str] = (), job_dir: Place | None = None
    ) -> Self:
        """The run at `run` with the evals of its own job file, or of the job file `evals`; of them those named `only`.

        Raises RunError for a run that is not finished, VerifyError for one whose files were changed, SpecError for
        evals that do not go with it.
        """
        manifest = read_manifest(run)
        if not manifest.finished:
            raise RunError("is not finished", where=str(run), hint="the job's own command goes on with it")
        if findings := verify_run(run).findings:
            raise VerifyError(str(findings[0]), where=str(run), hint=f"batchgen verify {run} names all of them")
        source = evals or run / "job.yaml"
        specs = load_spec(source).evals
        if not specs:
            raise SpecError("has no evals", where=str(source), hint="say under evals how the rows are scored")
        if unknown := sorted(set(only) - {spec.name for spec in specs}):
            hint = nearest(unknown[0], [spec.name for spec in specs])
            raise SpecError(f"there is no evaluation {unknown[0]!r}", where=str(source), hint=hint)
        there = job_dir or join(run, str(manifest.run_config.get("job_dir") or "."))
        found = tuple(spec for spec in specs if not only or spec.name in only)
        scored = cls(run, manifest, found, there if isinstance(there, Path) else None)
        scored._check_columns(str(source))
        return scored

    def _check_columns(self, source: str) -> None:
        """Evals of another file, or rows that were made before evals were written, may name what is not there."""
        names = [name for name, _ in self.manifest.columns]
        for spec in self.specs:
            for key, column in spec.columns.items():
                if column not in names:
                    message = f"the run has no column {column!r}"
                    raise SpecError(message, where=f"{source}: evals.{spec.name}.{key}", hint=nearest(column, names))
            if too_many := [k for k in spec.pass_at if k > self.manifest.plan.n]:
                message = f"{too_many[0]} is more than the samples of a row, {self.manifest.plan.n}"
                raise SpecError(message, where=f"{source}: evals.{spec.name}.pass_at")

    def rows(self, *more: str) -> Iterator[dict[str, Any]]:
        """Every row in input order, by column, without its tokens, but with the columns `more`."""
        names = [name for name, _ in self.manifest.columns if name not in _LEFT_OUT or name in more]
        for shard in self.manifest.shards:
            for batch in row_batches(self.run, shard, _AT_ONCE, [*names, "row_hash"]):
                yield from batch.to_pylist()

    def finish(self, spec: EvalSpec, items: Sequence[Item]) -> Evaluation:
        """Sum up, and write items and summary into the run folder."""
        by_row = [[item.score for item in found] for _, found in groupby(items, key=lambda item: item.row_key)]
        summary = summarise(by_row, spec.pass_at)
        about = {"spec": spec.model_dump(mode="json", exclude_none=True), "root": self.manifest.root}
        path = write_items(self.run, spec.name, items, about)
        text = json.dumps(about | {"summary": asdict(summary)}, indent=1, sort_keys=True)
        write_beside(self.run, f"{spec.name}.json", f"{text}\n".encode())
        return Evaluation(spec.name, spec.scorer, summary, str(path))


def score_texts(scored: ScoredRun, spec: EvalSpec) -> Evaluation:
    """By a scorer that looks at texts. Raises SpecError for a Python function that cannot be loaded, RunError."""
    if scored.job_dir is None:
        raise SpecError("the job's folder is not on this machine", where="evals.function", hint="give --job-dir")
    score = scorer_of(spec, scored.job_dir)
    items = []
    for row in scored.rows():
        verdict = score(row)
        name = row["row_key"], row["sample_index"], row["row_hash"]
        items.append(Item(*name, verdict.score, verdict.value, verdict.error))
    return scored.finish(spec, items)
