"""explain: why is a row different? Its two versions are made again, and every op of every position is compared."""

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from batchgen import places
from batchgen.engine.bits import same_bits
from batchgen.engine.trace import Place, common_length, first_difference
from batchgen.executor.start import Weights
from batchgen.io.hashing import ROW_HASH, leaves
from batchgen.io.same_job import differences
from batchgen.io.schema import OUTPUT_COLUMNS
from batchgen.loader import Progress
from batchgen.models.op_names import OpName, op_names
from batchgen.records import Request
from batchgen.verify.causes import Difference, suspects
from batchgen.verify.elements import Elements, compare_elements
from batchgen.verify.ledger import Ledger
from batchgen.verify.mismatch import Mismatch, Scorer, find_mismatch
from batchgen.verify.side import Made, Side, lone_config
from batchgen.verify.stored_row import StoredRow

_INPUTS = {"prompt_token_ids": "prompt ids", "params_hash": "sampling parameters", "seed": "seed"}


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side, made again here."""

    name: str  # "A", "B", "recorded", "alone"
    run: str
    how: dict[str, Any]
    company: int  # requests beside the row
    reproduced: bool  # the stored row, bit for bit
    is_second: bool  # what the probe gave, bit for bit, where that failed
    mismatch: Mismatch | None  # stored against made, if it is not


@dataclass(frozen=True, slots=True)
class Culprit:
    """Where the two computations part. All that the op reads there is equal bit for bit; what it gives is not.

    The op "prefix_cache" is no kernel: one side went on from a position that it never computed for these tokens.
    """

    position: int
    token_id: int  # at that position
    text: str
    output_token: int | None  # which output token stands there; None: one of the prompt
    label: str  # "layer 7, attention output linear"
    layer: int | None
    role: str
    op: str
    sides: tuple[str, ...]  # their names; twice the same when one side gave two values for one position; one: a cache's
    elements: tuple[Elements, ...]  # empty: the difference was not there when both were made once more


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a row differs. Sides are A and B, or without run_b "recorded" and "alone".

    "alone" follows A and B when those agree: then this machine itself is tried.
    """

    row_key: str
    sample_index: int
    run_a: str
    run_b: str | None
    # A's row ("stored" in it) against B's ("made"); without run_b, the first answer against what a failed probe gave
    stored: Mismatch | None
    facts: tuple[Difference, ...]  # in which the manifests differ, if it can act on rows
    machine: dict[str, str]  # canary and kernel set of this machine
    weights: str | None  # the first tensor that differs
    sides: tuple[SideReport, ...]  # none: nothing was computed
    made: Mismatch | None  # the two sides that differ, both made here
    culprit: Culprit | None
    conclusion: str
    differs: bool


def explain(
    run: places.Place,
    row_key: str,
    sample_index: int = 0,
    against: places.Place | None = None,
    on_fetch: Progress = lambda *_: None,
    job_dir: places.Place | None = None,
) -> Explanation:
    """`explain_runs` with the run `against`, `explain_run` without. Raises what they do, and what Ledger.open does.

    `job_dir` replaces the recorded folder of the job file, of both runs.
    """
    a = Ledger.open(run, on_fetch, job_dir)
    if against is None:
        return explain_run(a, row_key, sample_index)
    return explain_runs(a, Ledger.open(against, on_fetch, job_dir), row_key, sample_index)


def explain_runs(a: Ledger, b: Ledger, row_key: str, sample_index: int = 0) -> Explanation:
    """One row of two runs. Raises InputError when one of them has no such row, VerifyError for edited files."""
    rows = [StoredRow.find(ledger, row_key, sample_index) for ledger in (a, b)]
    facts = tuple(difference for difference, _ in suspects(a.manifest, b.manifest).acting)
    stored = _mismatch(rows[0].table, rows[1].table)
    blank = _blank(rows[0], str(b.run), facts, stored)
    if rows[0].table[ROW_HASH].equals(rows[1].table[ROW_HASH]):
        return replace(blank, conclusion="the row is the same in both runs, bit for bit", differs=False)
    if reason := _not_comparable(rows, stored):
        return replace(blank, conclusion=reason)
    shared = a.manifest.fingerprint.get("weights_digest") == b.manifest.fingerprint.get("weights_digest")
    weights = (a.weights, a.weights if shared else b.weights)
    sides = [
        Side(name, row, row.ledger.config, held, alone=False)
        for name, row, held in zip("AB", rows, weights, strict=True)
    ]
    if stored and stored.column == "token_ids":
        stored = _mismatch(rows[0].table, rows[1].table, rows[0].request, Scorer(a))
    found = _compare(replace(blank, stored=stored, weights=None if shared else _first_tensor(*weights)), sides)
    if found.culprit or found.made:
        return found
    # Equal bits on both sides prove nothing yet: the same fault may have acted on both.
    lone = Side("alone", rows[0], lone_config(a), a.weights, alone=True)
    checked = _compare(found, [sides[0], lone])
    return checked if checked.culprit or checked.made else found


def explain_run(a: Ledger, row_key: str, sample_index: int = 0) -> Explanation:
    """One row of one run, made as it was recorded, and alone under another RunConfig. Raises as `explain_runs`."""
    row = StoredRow.find(a, row_key, sample_index)
    blank = _blank(row, None, (), None)
    if row.request is None:
        return replace(blank, conclusion="the row has no prompt: nothing of it was computed", differs=False)
    sides = [
        Side("recorded", row, a.config, a.weights, alone=False),
        Side("alone", row, lone_config(a), a.weights, alone=True),
    ]
    if row.second is None:
        return _compare(blank, sides)
    stored = _mismatch(row.table, row.second, row.request, Scorer(a))
    return replace(_compare(replace(blank, stored=stored), sides), differs=True)


def _blank(row: StoredRow, run_b: str | None, facts: tuple[Difference, ...], stored: Mismatch | None) -> Explanation:
    names = row.table.select(["row_key", "sample_index"]).to_pylist()[0]
    return Explanation(
        **names,
        run_a=str(row.ledger.run),
        run_b=run_b,
        stored=stored,
        facts=facts,
        machine={},
        weights=None,
        sides=(),
        made=None,
        culprit=None,
        conclusion="",
        differs=True,
    )


def _not_comparable(rows: list[StoredRow], stored: Mismatch | None) -> str | None:
    """Why nothing is computed, if the two rows are not answers to one question."""
    a, b = (row.ledger for row in rows)
    if stored is None:
        return "the rows are equal in all columns that both runs have"
    if odd := [name for column, name in _INPUTS.items() if column in stored.columns]:
        return f"the rows are not answers to one question: their {' and '.join(odd)} differ"
    if not all(row.request for row in rows):
        return "the row has no prompt in either run: nothing of it was computed"
    if a.spec.numerics != b.spec.numerics:
        profiles = f"{a.spec.numerics} in A and {b.spec.numerics} in B"
        return f"the numerics profile is {profiles}: each has bits of its own"
    shapes = [key for key, *_ in differences(a.model.config.arithmetic(), b.model.config.arithmetic())]
    if shapes:
        return f"the models are not of one shape: their {', '.join(shapes)} differ"
    return None


def _compare(blank: Explanation, sides: list[Side]) -> Explanation:
    """Make the row on both sides, and find where they part. Sides that `blank` has already stay in it."""
    made = [side.make() for side in sides]
    reports = {side.name: side for side in blank.sides}
    reports |= {side.name: _report(side, done) for side, done in zip(sides, made, strict=True)}
    stop, gap = _common_positions(sides[0].request, made), None
    for side, done in zip(sides, made, strict=True):
        if (position := done.trace.gap()) is not None and position < stop:
            stop, gap = position, side.name
    place = first_difference(made[0].trace, made[1].trace, stop)
    culprit = _culprit(place, sides, made[0]) if place else _cache_culprit(stop, gap, sides, made[0]) if gap else None
    found = replace(
        blank,
        machine={part: sides[0].engine.fingerprint[part] for part in ("kernel_set", "canary")},
        sides=tuple(reports.values()),
        made=_mismatch(made[0].table, made[1].table),
        culprit=culprit,
    )
    differs = bool(found.run_b or found.culprit or found.made or not all(side.reproduced for side in found.sides))
    return replace(found, conclusion=_conclusion(found, sides), differs=differs)


def _report(side: Side, made: Made) -> SideReport:
    stored = side.row.table
    reproduced = stored[ROW_HASH].equals(made.table[ROW_HASH])
    mismatch = None if reproduced else _mismatch(stored, made.table)
    second = side.row.second
    return SideReport(
        name=side.name,
        run=str(side.row.ledger.run),
        how=side.how,
        company=len(side.requests) - 1,
        reproduced=reproduced,
        is_second=second is not None and second[ROW_HASH].equals(made.table[ROW_HASH]),
        mismatch=mismatch,
    )


def _common_positions(request: Request, made: list[Made]) -> int:
    """How many positions hold the same token on both sides. What comes after answers other questions."""
    return len(request.prompt_token_ids) + common_length(made[0].token_ids, made[1].token_ids)


def _culprit(place: Place, sides: list[Side], made: Made) -> Culprit:
    """Makes both sides once more, to see the values themselves."""
    kept = [(side.name, values) for side in sides for values in side.make(place).trace.kept]
    names, elements = tuple[str, ...](), tuple[Elements, ...]()
    for name, values in kept[1:]:
        if found := compare_elements(kept[0][1], values):
            names, elements = (kept[0][0], name), tuple(found)
            break
    return _culprit_at(
        place.position, op_names(sides[0].row.ledger.model.config)[place.op], names, elements, sides[0], made
    )


def _cache_culprit(position: int, name: str, sides: list[Side], made: Made) -> Culprit:
    """One side never computed this position for these tokens, and went on from it."""
    return _culprit_at(position, OpName(None, "the prefix cache", "prefix_cache"), (name,), (), sides[0], made)


def _culprit_at(
    position: int, op: OpName, names: tuple[str, ...], elements: tuple[Elements, ...], side: Side, made: Made
) -> Culprit:
    prompt, model = side.request.prompt_token_ids, side.row.ledger.model
    token_id = (*prompt, *made.token_ids)[position]
    return Culprit(
        position=position,
        token_id=token_id,
        text=model.tokenizer.decode([token_id], skip_special_tokens=False),
        output_token=position - len(prompt) if position >= len(prompt) else None,
        label=str(op),
        layer=op.layer,
        role=op.role,
        op=op.op,
        sides=names,
        elements=elements,
    )


def _conclusion(found: Explanation, sides: list[Side]) -> str:
    weights = f"the weights differ, first in {found.weights}; " if found.weights else ""
    if found.culprit:
        where = f"{found.culprit.label}, at position {found.culprit.position}"
        blame = "" if found.run_b is None or len(found.sides) == 2 else "this machine itself is at fault; "
        return f"{weights}{blame}the computations part in {where}: {_HOW.get(found.culprit.op, _HOW_OP)}"
    if found.made and not OUTPUT_COLUMNS & set(found.made.columns):
        return f"the answers are the same; what differs is carried from the input: {', '.join(found.made.columns)}"
    if found.made:
        return f"{weights}every op gives the same bits on both sides, and the rows differ in {found.made.column}"
    right = [side.name for side in found.sides if side.reproduced]
    company = (
        "in company and alone"
        if found.sides[0].company
        else "alone under two configurations, for the run has no company for it"
    )
    if found.run_b is None and found.stored:
        which = "the first" if right else "the second" if found.sides[0].is_second else "neither"
        return f"of the two answers, this machine now gives {which}, {company}: the fault did not come back"
    if found.run_b is None:
        if right:
            return f"this machine gives the stored row, bit for bit, {company}"
        return f"this machine gives one row {company}, and not the stored one: {_blame('the run', sides)}"
    if len(right) == 1:
        wrong = "B" if right == ["A"] else "A"
        blamed = [side for side in sides if side.name == wrong]
        return f"this machine gives {right[0]}'s row on both sides: {_blame(wrong, blamed)}"
    return f"this machine gives one row on both sides, neither A's nor B's: {_blame('each of them', sides)}"


_HOW_OP = "it reads equal bits and gives others"
_HOW = {
    "attention": "it reads keys and values that were written with equal bits, and gives others",
    "prefix_cache": "it gave the row a block that was computed from other tokens",
}


def _blame(whose: str, sides: list[Side]) -> str:
    """Only a machine whose canary is that of the run may say that the fault is not its own."""
    if all(side.engine.fingerprint["canary"] == side.row.ledger.manifest.fingerprint.get("canary") for side in sides):
        return f"{whose} was made by another build or a faulty machine"
    return f"the canary of this machine is not that of {whose}, so one of the two is at fault"


def _first_tensor(a: Weights, b: Weights) -> str | None:
    """Its name, as in models/fused.py."""
    return next((name for name in a.tensors if not same_bits(a.tensors[name], b.tensors[name])), None)


def _mismatch(
    a: pa.Table, b: pa.Table, request: Request | None = None, scorer: Scorer | None = None
) -> Mismatch | None:
    """Of two versions of a row, in the columns that both have; None when those are equal."""
    both = [name for name in a.column_names if name in b.column_names and name != ROW_HASH]
    a, b = a.select(both), b.select(both)
    return None if leaves(a) == leaves(b) else find_mismatch(a, b, request, scorer)
