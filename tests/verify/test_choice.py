"""Which rows are chosen: as many as asked, the same for the same run, none twice."""

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.fake_jobs import make_job, run, write_input

from batchgen.errors import InputError
from batchgen.io.manifest import Manifest, ShardRecord, Tally, read_manifest
from batchgen.places import Place
from batchgen.verify.choice import Rows, all_rows, drawn_rows, named_rows, parse_size


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """25 rows, two samples each, in shards of 8 rows."""
    folder = write_input(tmp_path_factory.mktemp("choice"), rows=25)
    run(make_job(folder), folder / "run")
    return read_manifest(folder / "run")


@dataclass
class Keys:
    """The part of a ledger that choosing needs: keys k0, k1, … with two samples each."""

    manifest: Manifest
    run: Place = Path("RUN")
    looked: int = 0

    def samples(self, shard: ShardRecord) -> list[tuple[str, int]]:
        self.looked += 1
        return [(f"k{row}", index) for row in range(shard.start, shard.stop) for index in range(2)]


def large(small: Manifest, shards: int) -> Manifest:
    """A thousand samples a shard."""
    records = [replace(small.shards[0], index=i, tally=Tally(rows=1000), digest=f"{i:064x}") for i in range(shards)]
    return replace(small, shards=tuple(records))


def flat(rows: Rows) -> list[tuple[int, int]]:
    return [(shard, at) for shard, positions in rows.positions.items() for at in positions]


def test_all(small: Manifest) -> None:
    rows = all_rows(small)
    assert flat(rows) == [(at // 16, at % 16) for at in range(50)]
    assert len(rows) == 50


@pytest.mark.parametrize(
    ("size", "count"),
    [(None, 16), (1, 1), (20, 20), (50, 50), (51, 50), (Fraction(1, 100), 1), (Fraction(1, 3), 17), (Fraction(1), 50)],
)
def test_a_draw_has_the_size_that_is_asked_for(small: Manifest, size: Any, count: int) -> None:
    rows = drawn_rows(small, size)
    assert len(rows) == len(set(flat(rows))) == count
    assert set(flat(rows)) <= set(flat(all_rows(small)))
    assert all(list(positions) == sorted(positions) for positions in rows.positions.values())


def test_one_in_a_hundred_unless_told(small: Manifest) -> None:
    assert len(drawn_rows(large(small, 7))) == 70


def test_a_draw_is_even(small: Manifest) -> None:
    chosen = Counter(shard for shard, _ in flat(drawn_rows(large(small, 10), 2000)))
    assert len(chosen) == 10
    assert all(150 < count < 250 for count in chosen.values()), chosen


def test_a_draw_hangs_on_the_root_and_the_seed(small: Manifest) -> None:
    first = drawn_rows(small)
    assert flat(drawn_rows(small)) == flat(first)
    assert list(drawn_rows(small).shuffled()) == list(first.shuffled())
    for other in (drawn_rows(small, seed=1), drawn_rows(replace(small, root="0" * 64))):
        assert flat(other) != flat(first)
        assert list(other.shuffled()) != list(first.shuffled())


def test_an_unfinished_run_has_draws_too(small: Manifest) -> None:
    part = replace(small.with_shards(small.shards[1:3]), root=None)
    rows = drawn_rows(part, 20)
    assert len(rows) == 20
    assert {shard for shard, _ in flat(rows)} == {1, 2}
    assert len(drawn_rows(part.with_shards(()))) == 0


def test_the_order_is_shuffled_and_whole(small: Manifest) -> None:
    made = list(all_rows(small).shuffled())
    assert sorted((shard, at) for shard, positions in made for at in positions) == flat(all_rows(small))
    assert [shard for shard, _ in made] != sorted(shard for shard, _ in made) or made[0][1] != sorted(made[0][1])
    assert any(positions != sorted(positions) for _, positions in made)


def test_rows_by_key(small: Manifest) -> None:
    keys = Keys(small)
    assert flat(named_rows(keys, ["k3", "k24"])) == [(0, 6), (0, 7), (3, 0), (3, 1)]
    assert flat(named_rows(keys, ["k3", "k24"], 1)) == [(0, 7), (3, 1)]


def test_no_more_is_read_than_needed(small: Manifest) -> None:
    keys = Keys(small)
    named_rows(keys, ["k9"])
    assert keys.looked == 2


def test_a_key_that_is_not_there(small: Manifest) -> None:
    with pytest.raises(InputError, match=r"RUN: there is no row 'k200'\n.*did you mean 'k20'\?"):
        named_rows(Keys(small), ["k1", "k200"])
    with pytest.raises(InputError, match="its rows are named like 'k"):
        named_rows(Keys(small), ["summary"])
    with pytest.raises(InputError, match="there is no row 'k25' yet"):
        named_rows(Keys(replace(small, root=None)), ["k25"])
    with pytest.raises(InputError, match="it has no row"):
        named_rows(Keys(small.with_shards(())), ["k25"])


def test_a_sample_that_is_not_there(small: Manifest) -> None:
    with pytest.raises(InputError, match=r"there is no sample 2\n.*each row has 2, from 0"):
        named_rows(Keys(small), ["k1"], 2)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20", 20),
        ("1%", Fraction(1, 100)),
        ("0.5%", Fraction(1, 200)),
        ("100%", Fraction(1)),
        ("1/3%", Fraction(1, 300)),
    ],
)
def test_sizes(text: str, size: Any) -> None:
    assert parse_size(text) == size
    assert type(parse_size(text)) is type(size)


@pytest.mark.parametrize("text", ["", "0", "-1", "0%", "101%", "1.5", "many", "%", "nan%", "1/0%"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a count"):
        parse_size(text)
