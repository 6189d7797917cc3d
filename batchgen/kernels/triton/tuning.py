"""Which implementation multiplies which shape: tuned tables, one file a kind of GPU, each with a digest.

A table is written by benchmarks/tune_linears.py and only read here. It may name three implementations: a tile of plain
Triton, the library (cuBLASLt, split-K refused), and, for the gated linear, the product of wide.py. All run K in order
through one float32 accumulator, which `proof.prove` checks on the device at hand; where a byte differs it takes the
range away from whoever made it.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from batchgen.errors import EngineError
from batchgen.kernels.triton.tile import Tile
from batchgen.kernels.triton.wide import Wide

OPS = ("linear", "logits", "linear_silu_mul")


class Library(NamedTuple):
    """cuBLASLt; for linear_silu_mul: the linear by its own rule, then silu_mul."""

    rows: int = 0  # x is lengthened to so many rows, where more rows take less time


LIBRARY = Library()
Choice = Tile | Library | Wide
Shape = tuple[str, int, int]  # op, N, K of the weight

# The plain tile for up to so many rows, and for any more: of shapes without a rule, and where the library was refused.
PLAIN = (
    (16, Tile(16, 32, 256, 4, 3)),
    (32, Tile(32, 32, 128, 4, 3)),
    (64, Tile(64, 32, 128, 4, 3)),
    (None, Tile(128, 128, 64, 8, 3)),
)


class Rule(NamedTuple):
    """What multiplies up to `rows` rows of x (None: any number)."""

    rows: int | None
    choice: Choice


class Table:
    """The rules of one device; those that a proof refused are replaced by the plain tiles."""

    def __init__(self, rules: dict[Shape, list[Rule]], other: dict[str, list[Rule]], digest: str) -> None:
        """`other`: the rules of an op for shapes that have none of their own."""
        self._rules, self._other, self.digest = rules, other, digest

    def choose(self, op: str, N: int, K: int, M: int) -> Choice:
        """What multiplies M rows by a weight [N, K]."""
        for rule in self.rules(op, N, K):
            if rule.rows is None or rule.rows >= M:
                return rule.choice
        return plain(M)

    def rules(self, op: str, N: int, K: int) -> list[Rule]:
        """Ascending in rows; the last one has no bound."""
        return self._rules.get((op, N, K)) or self._other[op]

    def refuse(self, op: str, N: int, K: int, M: int) -> None:
        """From now on plain tiles multiply this shape wherever the rule for M rows held."""
        rules, low = [], 0
        for rule in self.rules(op, N, K):
            holds = low < M and (rule.rows is None or rule.rows >= M)
            rules += [Rule(*piece) for piece in _between(low, rule.rows)] if holds else [rule]
            low = rule.rows or low
        self._rules[op, N, K] = rules


def plain(M: int) -> Tile:
    """The plain tile for M rows."""
    return next(tile for rows, tile in PLAIN if rows is None or rows >= M)


def _between(low: int, high: int | None) -> list[tuple[int | None, Tile]]:
    """The plain tiles of more than `low` and up to `high` rows."""
    inner = [(rows, tile) for rows, tile in PLAIN if rows is not None and rows > low and (high is None or rows < high)]
    return [*inner, (high, plain(high or 1 << 62))]


def digest_of(content: dict[str, Any]) -> str:
    """SHA-256 of the table's canonical JSON without its digest."""
    body = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(path: Path) -> Table:
    """A table file.  Raises EngineError where it is torn, changed or names what this version does not know."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["digest"] != digest_of(content):
            raise EngineError("the tuned table does not have the digest that it names", where=path.name, hint=_RESTORE)
        rules = {(op, N, K): _rules(given) for op, N, K, given in content["rules"]}
        other = {op: _rules(content["other"][op]) for op in OPS}
        for (op, *_), given in [*rules.items(), *(((op,), other[op]) for op in OPS)]:
            if op != "linear_silu_mul" and any(isinstance(rule.choice, Wide) for rule in given):
                raise ValueError(f"{op} has no wide product")
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the tuned table cannot be read: {error!r}", where=path.name, hint=_RESTORE) from error
    return Table(rules, other, content["digest"])


_RESTORE = "install batchgen again, or tune anew with benchmarks/tune_linears.py"


def _choice(given: list[Any]) -> Choice:
    name, *numbers = given
    kinds: dict[str, type[Tile] | type[Library] | type[Wide]] = {"tile": Tile, "library": Library, "wide": Wide}
    return kinds[name](*numbers)


def written(choice: Choice) -> list[Any]:
    """A choice as it stands in a table file."""
    return [type(choice).__name__.lower(), *choice]


def _rules(given: list[list[Any]]) -> list[Rule]:
    rules = [Rule(rows, _choice(choice)) for rows, choice in given]
    bounds = [rule.rows for rule in rules]
    if bounds[-1] is not None or None in bounds[:-1] or bounds[:-1] != sorted(set(bounds[:-1])):  # type: ignore[type-var]
        raise ValueError(f"rows {bounds} do not ascend to null")
    return rules


@cache
def table_of(device: torch.device) -> Table:
    """The table of the device's kind; plain tiles alone where there is none.

    Also forbids the library to split K, for the whole process.
    """
    if device.type != "cuda":
        return _plain_table()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    name = torch.cuda.get_device_name(device).lower().replace(" ", "-")
    path = Path(__file__).with_name(f"{name}.json")
    return read(path) if path.exists() else _plain_table()


def _plain_table() -> Table:
    return Table({}, {op: [Rule(*rule) for rule in PLAIN] for op in OPS}, "plain")
