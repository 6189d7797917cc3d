"""A finished run -> the output and error files of an OpenAI batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from batchgen.errors import ModelError, RunError
from batchgen.io.manifest import Manifest, read_manifest
from batchgen.io.row_batches import row_batches
from batchgen.io.row_rules import job_of
from batchgen.pipelines.openai_import import MODEL_COLUMN
from batchgen.pipelines.openai_lines import Decode, chat_line, completion_line, error_line
from batchgen.pipelines.whole_files import whole_files
from batchgen.places import Place

_BATCH_ROWS = 512
_OURS = {"non_finite_logits", "replica_died"}  # failures of the engine, not of the request
_UNUSED = {"prompt_token_ids", "seed", "params_hash"}


@dataclass(frozen=True, slots=True)
class Exported:
    """How many lines each file has."""

    answers: int
    errors: int


def export_batch(run: Place, out: Path, errors: Path, decode: Decode | None) -> Exported:
    """Write a line for each input row of the finished run at `run`, in order: to `out`, or if it failed to `errors`.

    A row of whose samples some failed is an error line that says how many. `decode` gives the text of tokens, and is
    needed where the run has logprobs. No hash is checked. Raises RunError, and ModelError for a missing tokenizer.
    """
    manifest = read_manifest(run)
    if not manifest.finished:
        raise RunError("is not finished", where=str(run), hint="batchgen run goes on with it")
    spec = job_of(manifest)
    if spec.sampling.logprobs is not None and decode is None:
        raise ModelError("the texts of its tokens need the model's tokenizer", where=str(run))
    is_chat = any(e.messages_template or (e.columns and e.columns.messages) for e in spec.inputs)
    make = chat_line if is_chat else completion_line
    counts = [0, 0]
    with whole_files(out, errors) as files:
        for rows in _requests(run, manifest):
            failed = [row for row in rows if row["status"] == "error"]
            if failed:
                line = _failure(rows, failed)
            else:
                model = rows[0].get(MODEL_COLUMN) or spec.model.path
                line = make(rows, str(model), manifest.fingerprint["job_fingerprint"], decode)
            files[bool(failed)].write(line.encode())
            counts[bool(failed)] += 1
    return Exported(*counts)


def _requests(run: Place, manifest: Manifest) -> Iterator[list[dict[str, Any]]]:
    """The samples of each input row."""
    columns = [name for name, _ in manifest.columns if name not in _UNUSED]
    rows = (
        row
        for shard in manifest.shards
        for batch in row_batches(run, shard, _BATCH_ROWS, columns)
        for row in batch.to_pylist()
    )
    return (list(samples) for _, samples in groupby(rows, lambda row: row["row_key"]))


def _failure(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    first = failed[0]
    message = first["error_message"]
    if len(failed) < len(rows):
        message += f" ({len(failed)} of {len(rows)} samples failed)"
    status = 500 if first["error_code"] in _OURS else 400
    return error_line(first["row_key"], first["row_hash"], status, first["error_code"], message)
