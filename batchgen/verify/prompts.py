"""Where the prompts of a replay come from: the rows themselves, or the job's input once more."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.io.canonical import columns_json
from batchgen.io.inputs import entry_files, file_sha256, scan_inputs
from batchgen.io.manifest import ShardRecord
from batchgen.io.reader import InputRow, Inputs, read_passthrough, read_rows
from batchgen.io.schema import OUTPUT_COLUMNS, output_schema
from batchgen.loader import prompt_builder
from batchgen.text.asking import asked_by
from batchgen.verify.ledger import Ledger

_ASKED = "row_key", "prompt_token_ids", "sampling"


class Prompt(NamedTuple):
    """Of one sample: token ids, or why there are none, and what its row says of its own sampling."""

    row_key: str
    ids: tuple[int, ...] | RowError
    sampling: str | None = None


class Prompts(Protocol):
    """Gives the prompts of chosen samples, and their passthrough columns."""

    def known(self, stored: pa.Table, positions: Sequence[int]) -> list[int]:
        """Those of `positions` in a shard's table `stored` whose prompt, or why there is none, can be told."""

    def of(self, shard: ShardRecord, stored: pa.Table, positions: Sequence[int]) -> tuple[list[Prompt], pa.Table]:
        """(prompts, passthrough) of the samples at `positions`, which ascend and are known; a row for each."""


class StoredPrompts:
    """The ids that the rows hold. Why a prompt could not be made is not known from them."""

    def known(self, stored: pa.Table, positions: Sequence[int]) -> list[int]:
        """See Prompts."""
        is_there = stored["prompt_token_ids"].is_valid().to_pylist()
        return [position for position in positions if is_there[position]]

    def of(self, shard: ShardRecord, stored: pa.Table, positions: Sequence[int]) -> tuple[list[Prompt], pa.Table]:
        """See Prompts."""
        chosen = stored.take(pa.array(positions, pa.int64()))
        core = chosen.column_names[: chosen.column_names.index("params_hash")]
        rows = chosen.select([name for name in _ASKED if name in core]).to_pylist()
        names = [name for name in stored.column_names if name not in OUTPUT_COLUMNS]
        prompts = [Prompt(row["row_key"], tuple(row["prompt_token_ids"]), row.get("sampling")) for row in rows]
        return prompts, chosen.select(names)


class InputPrompts:
    """Prompts, keys and passthrough columns from the job's input, built as the run built them."""

    def __init__(self, ledger: Ledger) -> None:
        """Raise InputError for input that is gone or has changed since, or what reading and templates raise."""
        self._n = ledger.manifest.plan.n
        _check_files(ledger)
        self._inputs = _scan(ledger)
        self._build, self._params = prompt_builder(ledger.spec, ledger.model).build, ledger.own_params

    def known(self, stored: pa.Table, positions: Sequence[int]) -> list[int]:
        """See Prompts."""
        return list(positions)

    def of(self, shard: ShardRecord, stored: pa.Table, positions: Sequence[int]) -> tuple[list[Prompt], pa.Table]:
        """See Prompts."""
        rows = [position // self._n for position in positions]
        wanted, made = set(rows), {}
        for offset, row in enumerate(read_rows(self._inputs, shard.start, shard.start + rows[-1] + 1)):
            if offset in wanted:
                made[offset] = self._prompt(row)
        passthrough = read_passthrough(self._inputs, shard.start, shard.stop)
        if passthrough.num_columns:
            passthrough = passthrough.take(pa.array(rows, pa.int64()))
        return [made[row] for row in rows], passthrough

    def around(self, row_key: str, reach: int) -> tuple[list[Prompt], Prompt, list[Prompt]]:
        """The row with this key, and at most `reach` rows before and after it. Raises InputError if it is not there."""
        rows = read_rows(self._inputs, 0, self._inputs.num_rows)
        before = deque[InputRow](maxlen=reach)
        for row in rows:
            if row.row_key == row_key:
                found = [*before, row, *islice(rows, reach)]
                made = [self._prompt(one) for one in found]
                return made[: len(before)], made[len(before)], made[len(before) + 1 :]
            before.append(row)
        raise InputError(f"the input has no row {row_key!r}")

    def _prompt(self, row: InputRow) -> Prompt:
        asked = asked_by(row, self._params, self._build)
        return Prompt(row.row_key, asked.ids, asked.sampling)


def _check_files(ledger: Ledger) -> None:
    """Raise InputError for a file that is gone or holds other bytes, before anything is read from it."""
    then = {(record.path, record.sha256) for record in ledger.manifest.inputs}
    known = dict(then)
    for index, entry in enumerate(ledger.spec.inputs):
        try:
            files = entry_files(entry, ledger.job_dir, f"inputs[{index}]")
        except InputError as error:
            named, seen_from = entry.path or entry.run, ledger.job_dir.resolve()
            hint = f"the job names it {named!r}, seen from {seen_from}; --job-dir names another folder"
            raise InputError(f"the input is gone: {error.message}", where=error.where, hint=hint) from None
        for path, label, digest, _ in files:
            if label in known and (label, now := digest or file_sha256(path)) not in then:
                message = f"has changed since the run: SHA-256 {now} now, {known[label]} then"
                raise InputError(message, where=str(path), hint="put it back as it was; replay can do without it")


def _scan(ledger: Ledger) -> Inputs:
    inputs = scan_inputs(ledger.spec, ledger.job_dir)
    names = {file.label for file in inputs.files} ^ {record.path for record in ledger.manifest.inputs}
    if inputs.digest != ledger.manifest.fingerprint.get("inputs_digest"):
        what = f"other files: {', '.join(sorted(names))}" if names else "other rows of its files"
        raise InputError(f"the job now takes {what}", where=str(ledger.job_dir), hint="put the input back as it was")
    schema = output_schema(inputs.passthrough, params=ledger.params, own_sampling=ledger.spec.own_sampling, metadata={})
    if columns_json(schema) != [list(column) for column in ledger.manifest.columns]:
        raise InputError("the passthrough columns are not those of the run", where=str(ledger.job_dir))
    return inputs
