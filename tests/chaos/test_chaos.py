"""Chaos in short, and the counter-tests: products that are broken on purpose do not come through it.

The long form is the script: python tests/chaos/chaos.py --kills 300
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.campaign import Campaign
from chaos.checks import ChaosError
from chaos.faults import FAULTS
from chaos.plants import PLANTS
from chaos.server import Server
from chaos.setting import Setting, small_disk
from chaos.tally import WAYS, Tally


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("fake") as server:
        yield server


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting("fake", tmp_path_factory.mktemp("chaos") / "fake", None)


def test_a_fake_engine_in_short(tmp_path: Path, server: Server) -> None:
    """Every way of stopping at work, and several kinds of damage."""
    with small_disk(tmp_path / "disk") as disk:
        ways = [way for way in WAYS if way != "full" or disk]
        setting, tally = Setting("fake", tmp_path / "fake", disk), Tally("fake")
        for number, way in enumerate(ways):
            Campaign(setting, server, random.Random(number), tally, ways=(way,)).run(2 * number + 2)
    assert set(tally.stopped) == set(ways), tally
    assert tally.stops == 2 * len(ways)
    assert len(tally.planted) > 2, tally


def test_a_real_model_in_short(tmp_path: Path) -> None:
    setting = Setting("tiny", tmp_path / "tiny", None)
    ways = ("kill", "before", "interrupt", "enospc")
    with Server("tiny", setting.environment) as server:
        tally = Campaign(setting, server, random.Random(5), Tally("tiny"), ways=ways).run(4)
    assert tally.finished


# What brings each fault to light: (damage, ways of stopping).
REVEALED_BY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "write_in_place": ((), ("inside", "enospc")),
    "trust_every_file": (("stray",), ("before",)),
    "skip_the_hashes": (("edited", "deleted"), ("before",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_counter_a_broken_product_is_caught(setting: Setting, server: Server, fault: str) -> None:
    plants, ways = REVEALED_BY[fault]
    broken = Campaign(setting, server, random.Random(1), Tally("fake"), fault, plants=plants, ways=ways)
    with pytest.raises(ChaosError) as caught:
        broken.run(30)
    assert "traceback" not in str(caught.value), "the fault itself does not fit the product any more"


def test_the_sound_product_comes_through_the_same(setting: Setting, server: Server) -> None:
    plants = tuple(plant for plants, _ in REVEALED_BY.values() for plant in plants)
    ways = tuple(sorted({way for _, ways in REVEALED_BY.values() for way in ways}))
    sound = Campaign(setting, server, random.Random(1), Tally("fake"), plants=plants, ways=ways)
    assert sound.run(4).stops == 4


def test_every_damage_is_named_once() -> None:
    assert set(PLANTS) >= {plant for plants, _ in REVEALED_BY.values() for plant in plants}


def test_the_tally_in_the_documentation_is_the_recorded_one() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/chaos.md").read_text(encoding="utf-8")
    campaigns = json.loads((root / "benchmarks/results/chaos.json").read_text(encoding="utf-8"))["campaigns"]
    assert [campaign["engine"] for campaign in campaigns] == ["fake", "tiny"]
    assert f"{sum(campaign['stops'] for campaign in campaigns)} stops of" in text
    for way, name in WAYS.items():
        stopped = [str(campaign["ways"][way]["stopped"]) for campaign in campaigns]
        assert f"| {name} | {' | '.join(stopped)} |" in text


def test_the_tally_of_kills_on_a_cluster_is_the_recorded_one() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/cluster.md").read_text(encoding="utf-8")
    campaigns = json.loads((root / "benchmarks/results/chaos-cluster.json").read_text(encoding="utf-8"))["campaigns"]
    kills, runs = sum(sum(c["kills"].values()) for c in campaigns), sum(c["runs_with_the_same_root"] for c in campaigns)
    assert f"{kills} kills of {runs} runs" in text
    names = {"replica": "replicas", "rank": "rank processes", "machine": "machines", "driver": "drivers, SIGKILL"}
    for what, name in names.items():
        assert f"| {name} | {' | '.join(str(c['kills'][what]) for c in campaigns)} |" in text
