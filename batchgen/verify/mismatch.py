"""What is different in a row that was made again: the first token and why it was drawn, or the first other value."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from batchgen.engine.admission import ModelLimits
from batchgen.engine.scores import Scores, scores_after
from batchgen.executor.start import make_decoder
from batchgen.io.hashing import ROW_HASH, leaves
from batchgen.kernels.device import choose
from batchgen.records import Request
from batchgen.verify.ledger import Ledger

# What others follow from comes first. Columns that are not here come last, in their order.
_ORDER = ["row_key", "sample_index", "sampling", "params_hash", "prompt_token_ids", "seed", "status"]
_ORDER += ["error_code", "error_message", "token_ids", "logprobs", "top_logprobs_ids", "top_logprobs_values", "text"]
_ORDER += [
    "reasoning",
    "finish_reason",
    "stop_reason",
    "kept_tokens",
    "routed_experts_shape",
    "routed_experts",
    "prompt_logprobs",
    "prompt_top_logprobs_ids",
    "prompt_top_logprobs_values",
]
_FLOATS = ("logprobs", "top_logprobs_values", "prompt_logprobs", "prompt_top_logprobs_values")
_MOST = 200  # characters of a value


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token at the place of a draw: what the sampler compared, computed for this row alone."""

    token_id: int
    text: str
    logit: float | None  # raw; None: no such token
    score: float | None  # after penalties, temperature and noise; None: banned
    is_filtered: bool  # out by top-k, top-p or min-p, so that its score did not count


@dataclass(frozen=True, slots=True)
class Draw:
    """The first draw that went another way. A side is None where its row had ended."""

    stored: Candidate | None
    made: Candidate | None
    margin: float | None  # score of `made` less that of `stored`, float32; None when one of them has none
    drawn: int  # the token that is drawn now, with nobody beside; -1: none, the logits are not finite


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A row that is not bit-exact: the first column that differs, by importance, and where in it."""

    row_key: str
    sample_index: int
    column: str
    columns: tuple[str, ...]  # all that differ
    position: int | None  # in a list, or in bytes
    stored: Any
    made: Any
    draw: Draw | None = None  # when `column` is token_ids

    @property
    def place(self) -> str:
        """token_ids[4]"""
        return self.column if self.position is None else f"{self.column}[{self.position}]"

    @property
    def others(self) -> str:
        """logprobs, text"""
        return ", ".join(name for name in self.columns if name != self.column)


def find_mismatch(stored: pa.Table, made: pa.Table, request: Request | None, scorer: "Scorer | None") -> Mismatch:
    """Compare two versions of one row whose hashes differ, as tables of that row. No draw without `scorer`."""
    different = [name for name in stored.column_names if name != ROW_HASH and _leaf(stored, name) != _leaf(made, name)]
    columns = sorted(different, key=_rank)
    column = columns[0]
    left, right = _value(stored, column), _value(made, column)
    position = _first(left, right)
    if position is not None:
        left, right = (values[position] if position < len(values) else None for values in (left, right))
    draw = None
    if column == "token_ids" and position is not None and request and scorer:
        draw = scorer.draw(request, _value(made, column)[:position], left, right)
    return Mismatch(
        row_key=_value(stored, "row_key"),
        sample_index=_value(stored, "sample_index"),
        column=column,
        columns=tuple(columns),
        position=position,
        stored=_readable(left, column),
        made=_readable(right, column),
        draw=draw,
    )


class Scorer:
    """Runs the model over the beginning of one row."""

    def __init__(self, ledger: Ledger) -> None:
        model = ledger.model
        numerics = ledger.spec.numerics
        self._decoder = make_decoder(numerics, ledger.weights, model.max_model_len, choose("auto", numerics))
        self._limits = ModelLimits(model.config.vocab_size, model.max_model_len, model.eos_token_ids)
        self._tokenizer = model.tokenizer

    def draw(self, request: Request, output: Sequence[int], stored: int | None, made: int | None) -> Draw:
        """The draw after `output`, with the two tokens that came of it."""
        outputs = request.params.structured_outputs
        matcher = None if outputs is None else self._tokenizer.matcher(outputs, self._limits.vocab_size)
        scores = scores_after(self._decoder, self._limits, request, output, matcher)
        old, new = (None if token is None else self._candidate(scores, token) for token in (stored, made))
        margin = None
        if old and new and old.score is not None and new.score is not None:
            margin = float(np.float32(new.score) - np.float32(old.score))
        return Draw(old, new, margin, scores.drawn)

    def _candidate(self, scores: Scores, token_id: int) -> Candidate:
        if not 0 <= token_id < self._limits.vocab_size:
            return Candidate(token_id, "", None, None, False)
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        score = float(scores.scores[token_id])
        is_banned = not isfinite(score)
        is_filtered = not is_banned and not scores.is_candidate[token_id]
        return Candidate(token_id, text, float(scores.logits[token_id]), None if is_banned else score, is_filtered)


def _rank(column: str) -> int:
    return _ORDER.index(column) if column in _ORDER else len(_ORDER)


def _leaf(row: pa.Table, column: str) -> bytes:
    """Equal for equal bits of any type."""
    return leaves(row.select([column]))[0]


def _value(row: pa.Table, column: str) -> Any:
    try:
        return row[column][0].as_py()
    except ValueError:  # Python's times have no nanoseconds
        return str(row[column].cast(pa.string())[0])


def _first(stored: Any, made: Any) -> int | None:
    """The first place where two lists, or bytes, differ, or where one of them ends."""
    if not isinstance(stored, list | bytes) or not isinstance(made, list | bytes):
        return None
    pairs = zip_longest(map(_bits, stored), map(_bits, made))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def _bits(value: Any) -> Any:
    """-0.0 is not 0.0 here."""
    if isinstance(value, list):
        return [_bits(part) for part in value]
    return value.hex() if isinstance(value, float) else value


def _readable(value: Any, column: str) -> Any:
    """JSON: float32 with their bits, long text cut, what JSON does not know as text."""
    if isinstance(value, list):
        return [_readable(part, column) for part in value]
    if isinstance(value, float) and column in _FLOATS:
        return f"{value:.9g} (0x{np.float32(value).view(np.uint32):08x})"
    return value if isinstance(value, int | float | None) else str(value)[:_MOST]
