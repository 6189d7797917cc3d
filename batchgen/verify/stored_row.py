"""The row that is to be explained, and who was beside it: as a run holds it, or as its probe failed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Self

import pyarrow as pa

from batchgen.errors import InputError, RowError
from batchgen.executor.compare import from_bits
from batchgen.io.manifest import ShardRecord
from batchgen.io.run_folder import EVIDENCE, evidence_files
from batchgen.io.schema import Row, output_schema, rows_to_table
from batchgen.records import Request
from batchgen.verify.choice import named_rows
from batchgen.verify.ledger import Ledger, edited
from batchgen.verify.prompts import InputPrompts, Prompt


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it lies in a run, and the requests of those that were made beside it."""

    ledger: Ledger
    table: pa.Table  # of the one row
    request: Request | None  # None: it has no prompt
    before: tuple[Request, ...]  # in the order of the input, as many as ran at once, less one
    after: tuple[Request, ...]  # those of its file and, if they are fewer than ran at once, of the next ones
    second: pa.Table | None = None  # what its probe gave, when that failed; `table` is the first answer then

    @classmethod
    def find(cls, ledger: Ledger, row_key: str, sample_index: int) -> Self:
        """In the committed files, else in the evidence of a probe.

        Raises InputError for a row that is in neither, VerifyError for files that are not as they were written.
        """
        try:
            [(index, [at])] = named_rows(ledger, [row_key], sample_index).positions.items()
        except InputError:
            if (evidence := _evidence(ledger, row_key, sample_index)) is None:
                raise
            return cls._of_probe(ledger, evidence)
        shards = ledger.manifest.shards
        here = next(i for i, shard in enumerate(shards) if shard.index == index)
        table = ledger.table(shards[here])
        asked = _requests(ledger, table)
        beside = _beside(ledger)
        earlier = (_of_shard(ledger, shard) for shard in shards[:here][::-1])
        before = _last_first(chain([asked[:at]], earlier), beside - 1)
        own = [request for request in asked[at + 1 :] if request]
        later = chain.from_iterable(_of_shard(ledger, shard) for shard in shards[here + 1 :])
        after = [*own, *islice(filter(None, later), max(0, beside - len(own)))]
        return cls(ledger, table.slice(at, 1), asked[at], tuple(before), tuple(after))

    @classmethod
    def _of_probe(cls, ledger: Ledger, evidence: dict[str, Any]) -> Self:
        """Its neighbours are those of the input."""
        key, index = evidence["row_key"], evidence["sample_index"]
        request = ledger.ask(key, index, evidence["prompt_token_ids"], evidence.get("sampling"))
        beside, n = _beside(ledger), ledger.manifest.plan.n
        before, own, after = InputPrompts(ledger).around(key, -(-beside // n))
        samples = [(own, i) for i in range(n) if i != index]
        return cls(
            ledger,
            _table(ledger, request, evidence["first"]),
            request,
            (*_ask(ledger, [(p, i) for p in before for i in range(n)]), *_ask(ledger, samples[:index])),
            (*_ask(ledger, samples[index:]), *_ask(ledger, [(p, i) for p in after for i in range(n)])),
            _table(ledger, request, evidence["second"]),
        )


def _beside(ledger: Ledger) -> int:
    """How many ran at once."""
    return ledger.config.max_num_seqs


def _requests(ledger: Ledger, table: pa.Table) -> list[Request | None]:
    own = ["sampling"] if ledger.spec.own_sampling else []
    rows = table.select(["row_key", "sample_index", "prompt_token_ids", *own]).to_pylist()
    return [None if row["prompt_token_ids"] is None else ledger.request(row) for row in rows]


def _of_shard(ledger: Ledger, shard: ShardRecord) -> list[Request | None]:
    return _requests(ledger, ledger.table(shard))


def _last_first(groups: Iterable[list[Request | None]], most: int) -> list[Request]:
    """The last `most` requests of groups that come last first, in order. Takes no more groups than it needs."""
    found = (request for group in groups for request in reversed(group) if request)
    return list(islice(found, max(0, most)))[::-1]


def _ask(ledger: Ledger, samples: Iterable[tuple[Prompt, int]]) -> Iterator[Request]:
    for prompt, index in samples:
        if not isinstance(prompt.ids, RowError):
            yield ledger.ask(prompt.row_key, index, prompt.ids, prompt.sampling)


def _evidence(ledger: Ledger, row_key: str, sample_index: int) -> dict[str, Any] | None:
    """The latest of this sample and of this job."""
    for path in reversed(evidence_files(ledger.run)):
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            if (found["row_key"], found["sample_index"]) != (row_key, sample_index):
                continue
            [from_bits(found[answer]) for answer in ("first", "second")]
            found["prompt_token_ids"] = [int(token_id) for token_id in found["prompt_token_ids"]]
            fingerprint = found["fingerprint"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise edited(ledger.run, f"{EVIDENCE}/{path.name}: {type(error).__name__}: {error}") from None
        if fingerprint == ledger.manifest.fingerprint:
            return found
    return None


def _table(ledger: Ledger, request: Request, answer: dict[str, Any]) -> pa.Table:
    """Without what is carried from the input."""
    schema = output_schema(pa.schema([]), params=ledger.params, own_sampling=ledger.spec.own_sampling, metadata={})
    row = Row(request.seed, request.prompt_token_ids, from_bits(answer), sampling=request.sampling)
    return rows_to_table([row], pa.table({}), ledger.params, schema)
