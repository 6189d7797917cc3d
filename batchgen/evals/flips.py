"""Which items are right in one run and wrong in another, and at which token do their answers part?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchgen.evals.items import Item, names_in, read_items
from batchgen.io.manifest import read_manifest
from batchgen.io.row_batches import row_batches
from batchgen.places import Place

Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Flip:
    """One item that has another score in B."""

    row_key: str
    sample_index: int
    a: float  # the scores; 0 where there is none
    b: float
    value_a: str | None
    value_b: str | None
    token: int | None  # the first that differs in the answers; None: they are the same, or the choice was another


@dataclass(frozen=True, slots=True)
class Flips:
    """Of one evaluation that both runs hold. Items that only one of them has are counted and not compared."""

    name: str
    compared: int
    better: int  # in B
    worse: int
    alone: int  # items of one run alone
    flips: tuple[Flip, ...]


def flips_between(a: Place, b: Place, names: Sequence[str] | None = None) -> list[Flips]:
    """For each evaluation of `names`, or that both runs hold. Raises RunError."""
    shared = sorted(set(names_in(a)) & set(names_in(b))) if names is None else names
    return [_flips(a, b, name) for name in shared]


def _flips(a: Place, b: Place, name: str) -> Flips:
    left, right = _by_name(read_items(a, name)), _by_name(read_items(b, name))
    both = [key for key in left if key in right]
    changed = [key for key in both if _score(left[key]) != _score(right[key])]
    tokens_a, tokens_b = _tokens(a, set(changed)), _tokens(b, set(changed))
    flips = [_flip(left[key], right[key], tokens_a.get(key), tokens_b.get(key)) for key in changed]
    return Flips(
        name=name,
        compared=len(both),
        better=sum(flip.b > flip.a for flip in flips),
        worse=sum(flip.b < flip.a for flip in flips),
        alone=len(left) + len(right) - 2 * len(both),
        flips=tuple(flips),
    )


def _by_name(items: list[Item]) -> dict[Name, Item]:
    return {(item.row_key, item.sample_index): item for item in items}


def _score(item: Item) -> float:
    return 0.0 if item.score is None else item.score


def _flip(a: Item, b: Item, tokens_a: list[int] | None, tokens_b: list[int] | None) -> Flip:
    is_choice = a.choice is not None or b.choice is not None
    token = None if is_choice or tokens_a is None or tokens_b is None else _first_difference(tokens_a, tokens_b)
    return Flip(a.row_key, a.sample_index, _score(a), _score(b), a.value, b.value, token)


def _first_difference(a: list[int], b: list[int]) -> int | None:
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _tokens(run: Place, wanted: set[Name]) -> dict[Name, list[int]]:
    """The answers of the rows that are wanted and have one."""
    if not wanted:
        return {}
    found: dict[Name, list[int]] = {}
    for shard in read_manifest(run).shards:
        for batch in row_batches(run, shard, 4096, ["row_key", "sample_index", "token_ids"]):
            rows: list[dict[str, Any]] = batch.to_pylist()
            for row in rows:
                name = row["row_key"], row["sample_index"]
                if name in wanted and row["token_ids"] is not None:
                    found[name] = row["token_ids"]
    return found
