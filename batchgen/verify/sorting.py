"""Rows that differ -> what kind of difference it is, which is always exactly one, and a table of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchgen.io.hashing import ROW_HASH
from batchgen.io.manifest import Manifest
from batchgen.io.schema import OUTPUT_COLUMNS
from batchgen.verify.alignment import Places, RunRows
from batchgen.verify.causes import Effect
from batchgen.verify.row_pairs import CORE, Compared, Mask, Positions, at, compare, differing_columns

Kind = Literal[
    "identical",  # every column
    "logprobs",  # same tokens, other bits in a logprob
    "diverged",  # same prompt and parameters, other tokens
    "prompt",  # other prompt ids
    "parameters",  # other seed or params_hash
    "error",  # an error in one run alone
    "other_error",  # an error in both, another one
    "columns",  # same tokens and logprobs, something else in the row
    "only_in_a",
    "only_in_b",
    "not_made_in_a",  # only in B, since A is not finished
    "not_made_in_b",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
AT_A_DRAW = {"non_finite_logits", "grammar", "kept_tokens"}  # error codes that hang on the logits

SCHEMA = pa.schema(
    [
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("position", pa.int32()),  # of the first output token that differs, in itself or in its logprobs
        pa.field("token_a", pa.int32()),
        pa.field("token_b", pa.int32()),
        pa.field("logprob_a", pa.float32()),
        pa.field("logprob_b", pa.float32()),
        pa.field("text_a", pa.string()),
        pa.field("text_b", pa.string()),
        pa.field("row_hash_a", pa.string()),
        pa.field("row_hash_b", pa.string()),
    ]
)
NOT_IN_JOB, STILL_TO_MAKE = "not in that job", "still to be made"
UNKNOWN = f"{NOT_IN_JOB}, or {STILL_TO_MAKE}"

AROUND = 4  # tokens on each side of one that differs


class Seen(NamedTuple):
    """What is seen in rows of a kind, and what must have been acted on for it."""

    kind: Kind
    name: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Sorted:
    """Some rows that differ, as SCHEMA has them, and as each run has them: None on the side without them."""

    table: pa.Table
    evidence: Counter[Seen]
    answers: Counter[tuple[Kind, str]]  # how the answers of rows compare whose prompts or parameters differ
    seen_at: Positions  # the token to show, of the prompt for kind "prompt", else of the answer; -1: none
    a: pa.Table | None
    b: pa.Table | None

    def example(self, row: int) -> dict[str, Any]:
        """One row of `table`, with the token ids around the place where it differs, and their logprobs."""
        found: dict[str, Any] = self.table.slice(row, 1).to_pylist()[0]
        center = int(self.seen_at[row])
        prompt = found["kind"] == "prompt"
        first, column = max(0, center - AROUND), "prompt_token_ids" if prompt else "token_ids"
        around: dict[str, Any] = {"of": column, "position": center, "first": first}
        for letter, table in (("a", self.a), ("b", self.b)):
            ids = None if table is None else table[column][row].as_py()
            around[letter] = None if ids is None else ids[first : center + AROUND + 1]
        return {**found, "around": around if center >= 0 else None}


def sort_pairs(a: RunRows, b: RunRows, pairs: NDArray[np.int64]) -> Sorted:
    """`pairs` [n, 2] are places of rows of the same key and sample, with other leaves."""
    left, right = a.take(pairs[:, 0], CORE), b.take(pairs[:, 1], CORE)
    compared = compare(left, right)
    kinds = _kinds(compared)
    details = np.full(len(pairs), None, object)
    evidence: Counter[Seen] = Counter()
    for seen, mask in (*_evidence(left, right, compared), *_columns(a, b, pairs, kinds == "columns")):
        here = mask & (kinds == seen.kind)
        evidence[seen] += int(here.sum())
        details[here] = [seen.name if known is None else f"{known}, {seen.name}" for known in details[here]]
    at_prompt = kinds == "prompt"
    details[at_prompt] = [f"prompt token {index}" for index in compared.prompt[at_prompt]]
    position = np.where(kinds == "logprobs", compared.logprobs, compared.tokens)
    answers: Counter[tuple[Kind, str]] = Counter()
    failed = compared.failed_a | compared.failed_b
    for kind in ("prompt", "parameters"):
        here = kinds == kind
        answers[kind, "error"] += int((here & failed).sum())
        answers[kind, "same tokens"] += int((here & ~failed & (compared.tokens < 0)).sum())
        answers[kind, "other tokens"] += int((here & ~failed & (compared.tokens >= 0)).sum())
    table = _table(left, kinds, details, position, (left, right))
    return Sorted(table, +evidence, +answers, np.where(at_prompt, compared.prompt, position), left, right)


def sort_alone(run: RunRows, other: RunRows, places: Places, side: Literal["a", "b"]) -> Sorted:
    """Rows at `places` of `run`, which is A or B, that the other run does not have."""
    rows = run.take(places, CORE)
    unmade, unknown = _still_to_make(run.manifest, other, places)
    only: Kind = "only_in_a" if side == "a" else "only_in_b"
    not_yet: Kind = "not_made_in_b" if side == "a" else "not_made_in_a"
    kinds = np.where(unmade, not_yet, only).astype(object)
    details = np.where(unknown, UNKNOWN, np.where(unmade, STILL_TO_MAKE, NOT_IN_JOB)).astype(object)
    evidence = Counter(Seen(*pair, "rows") for pair in zip(kinds.tolist(), details.tolist(), strict=True))
    nowhere = np.full(len(places), -1)
    sides = (rows, None) if side == "a" else (None, rows)
    return Sorted(_table(rows, kinds, details, nowhere, sides), evidence, Counter(), nowhere, *sides)


def _kinds(compared: Compared) -> NDArray[Any]:
    failed = compared.failed_a, compared.failed_b
    tests: list[tuple[Kind, Mask]] = [  # the first that holds
        ("prompt", compared.prompt >= 0),
        ("parameters", compared.seed | compared.params),
        ("error", failed[0] ^ failed[1]),
        ("other_error", failed[0] & failed[1] & compared.error),
        ("diverged", compared.tokens >= 0),
        ("logprobs", compared.logprobs >= 0),
    ]
    return np.select([mask for _, mask in tests], [kind for kind, _ in tests], "columns").astype(object)


def _evidence(a: pa.Table, b: pa.Table, compared: Compared) -> Iterator[tuple[Seen, Mask]]:
    """Where it is seen, among the rows of its kind."""
    yield Seen("parameters", "seed", "seed"), compared.seed
    yield Seen("parameters", "params_hash", "params"), compared.params
    codes_a, codes_b = (np.asarray(table["error_code"].to_pylist(), object) for table in (a, b))
    for side, failed, codes in (("A", compared.failed_a, codes_a), ("B", compared.failed_b, codes_b)):
        for code in sorted(set(codes[failed].tolist())):
            yield Seen("error", f"{code} in {side}", _effect_of(code)), codes == code
    both = compared.failed_a & compared.failed_b
    for one, other in sorted(set(zip(codes_a[both].tolist(), codes_b[both].tolist(), strict=True))):
        name = f"{one} in A and {other} in B" if one != other else f"{one} with another message"
        yield Seen("other_error", name, _effect_of(one)), both & (codes_a == one) & (codes_b == other)


def _effect_of(code: str) -> Effect:
    return "engine_error" if code in AT_A_DRAW else "prompt_error"


def _columns(a: RunRows, b: RunRows, pairs: NDArray[np.int64], where: Mask) -> Iterator[tuple[Seen, Mask]]:
    """Which columns differ in the rows `where`, whose tokens and logprobs are the same."""
    rows = np.flatnonzero(where)
    if not len(rows):
        return
    left, right = (dict(run.manifest.columns) for run in (a, b))
    names = [name for name in left if name in right and name != ROW_HASH]
    shapes = [f"{name} in A alone" for name in left if name not in right]
    shapes += [f"{name} in B alone" for name in right if name not in left]
    if not shapes and list(left) != list(right):
        shapes = ["columns in another order"]
    for shape in shapes:
        yield Seen("columns", shape, "columns"), where
    for name in names:
        if left[name] != right[name]:
            yield Seen("columns", f"{name} of another type", "carried"), where
    names = [name for name in names if left[name] == right[name]]
    for name, odd in differing_columns(a.take(pairs[rows, 0], names), b.take(pairs[rows, 1], names)):
        mask = np.zeros_like(where)
        mask[rows] = odd
        if odd.any():
            effect: Effect = "answer" if name in OUTPUT_COLUMNS else "carried"
            yield Seen("columns", name, "params" if name == "sampling" else effect), mask


def _still_to_make(there: Manifest, other: RunRows, places: Places) -> tuple[Mask, Mask]:
    """(still to be made, not known) of samples that `other` does not hold.

    Which rows a job will make is known from its input alone; but if both jobs read the same rows, a place in the one
    is a place in the other.
    """
    nothing = np.zeros(len(places), np.bool_)
    missing = other.manifest
    if missing.finished:
        return nothing, nothing
    row, sample = np.divmod(places, there.plan.n)
    wanted = sample < missing.plan.n
    if not _same_rows(there, missing):
        return nothing, wanted
    return wanted & ~other.has(row * missing.plan.n + np.minimum(sample, missing.plan.n - 1)), nothing


def _same_rows(a: Manifest, b: Manifest) -> bool:
    """Whether both jobs give the same keys to the same rows in the same order."""
    if a.fingerprint.get("inputs_digest") != b.fingerprint.get("inputs_digest") or a.plan.rows != b.plan.rows:
        return False
    keys = a.spec.get("row_key")
    derived = isinstance(keys, dict) and keys.get("derive") == "content_hash"
    return keys == b.spec.get("row_key") and (not derived or a.spec.get("inputs") == b.spec.get("inputs"))


def _table(
    named: pa.Table,
    kinds: NDArray[Any],
    details: NDArray[Any],
    position: Positions,
    sides: tuple[pa.Table | None, pa.Table | None],
) -> pa.Table:
    """The rows as SCHEMA has them."""
    columns: dict[str, Any] = {
        "row_key": named["row_key"],
        "sample_index": named["sample_index"],
        "kind": pa.array(kinds, pa.string()),
        "detail": pa.array(details, pa.string()),
        "position": pa.array(position, pa.int32(), mask=position < 0),
    }
    for letter, table in zip("ab", sides, strict=True):
        for name, column in (("token", "token_ids"), ("logprob", "logprobs")):
            nothing = pa.nulls(len(kinds), SCHEMA.field(f"{name}_{letter}").type)
            there = table[column] if table is not None and column in table.column_names else None
            columns[f"{name}_{letter}"] = nothing if there is None else at(there, position)
        for name in ("text", "row_hash"):
            columns[f"{name}_{letter}"] = table[name] if table is not None else pa.nulls(len(kinds), pa.string())
    return pa.table([columns[field.name] for field in SCHEMA], schema=SCHEMA)
