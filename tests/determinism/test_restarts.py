"""A process that is killed at random instants, with other options and an empty cache each time, makes the same run.

Guards against resume by position, state that lives in a process, and work lost or doubled by a kill (UniRL #208,
distilabel #648). tests/chaos does this hundreds of times; here each restart differs from the last in every option.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.campaign import Campaign
from chaos.checks import check_finished
from chaos.child import Order
from chaos.server import Server, text_of
from chaos.setting import Setting
from chaos.tally import Tally

from batchgen.io.manifest import read_manifest


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting("tiny", tmp_path_factory.mktemp("restarts") / "tiny", None)


@pytest.fixture(scope="module")
def server(setting: Setting) -> Iterator[Server]:
    with Server("tiny", setting.environment) as server:
        yield server


HOW: list[dict[str, Any]] = [  # no two alike in any option
    {"threads": 1, "max_num_seqs": 64, "max_num_batched_tokens": 256, "prefix_cache": True, "probe": 0},
    {"threads": 2, "max_num_seqs": 1, "max_num_batched_tokens": 7, "prefix_cache": False, "probe": 1},
    {"threads": 3, "max_num_seqs": 5, "max_num_batched_tokens": 33, "prefix_cache": True, "probe": 0.005},
    {"threads": 4, "max_num_seqs": 3, "max_num_batched_tokens": 64, "prefix_cache": False, "probe": 0.3},
]


def test_every_restart_with_other_options_and_an_empty_cache(setting: Setting, server: Server) -> None:
    """SIGKILL before a file operation that is a little later each time; the rows committed never become fewer."""
    whole, root = setting.undisturbed(server)
    out, log = setting.new_run(), setting.folder / "child.log"
    kept: list[int] = []
    for turn in range(6):
        shutil.rmtree(setting.environment["BATCHGEN_CACHE"], ignore_errors=True)
        how = HOW[turn % len(HOW)] | {"rows_per_shard": 1}
        server.start(Order("tiny", str(setting.folder), str(out), str(log), how, instrument="before", count=40 + turn))
        status = server.wait()
        assert status == -9, text_of(log)
        kept.append(read_manifest(out).counts.rows)
    assert kept == sorted(kept)
    assert len(set(kept)) > 3, kept
    assert kept[-1] < len(whole)
    server.start(Order("tiny", str(setting.folder), str(out), str(log), HOW[2]))
    assert server.wait() == 0, text_of(log)
    check_finished(out, whole, root)


def test_at_random_instants(setting: Setting, server: Server) -> None:
    campaign = Campaign(setting, server, random.Random(3), Tally("tiny"), plants=(), ways=("kill",))
    assert campaign.run(3).stops == 3


def test_counter_a_run_that_was_not_killed_is_no_proof(setting: Setting, server: Server, tmp_path: Path) -> None:
    """The instruments kill: without them the same order finishes, and with them it does not."""
    out = setting.new_run()
    for instrument, status in (("before", -9), ("", 0)):
        order = Order(
            "tiny", str(setting.folder), str(out), str(tmp_path / "log"), HOW[0], instrument=instrument, count=20
        )
        server.start(order)
        assert server.wait() == status
