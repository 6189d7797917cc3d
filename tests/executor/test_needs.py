"""What a replica is given of a cluster."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import EngineError
from batchgen.executor.needs import Needs, Node, needs_of
from batchgen.executor.run_config import RunConfig

CPUS = [Node("a", 16, 0), Node("b", 16, 0), Node("c", 4, 0)]
GPUS = [Node("a", 32, 8), Node("b", 32, 4)]


def needs(nodes: list[Node], numerics: str = "portable/1", **how: Any) -> Needs:
    return needs_of(RunConfig(Path("unused"), executor="ray", **how), numerics, nodes)


@pytest.mark.parametrize(
    ("nodes", "how", "expected", "room"),
    [
        (CPUS, {"replicas": 1}, Needs("cpu", 16, 0, 16), 2),
        (CPUS, {"replicas": 4}, Needs("cpu", 9, 0, 9), 2),
        (CPUS, {"replicas": 9}, Needs("cpu", 4, 0, 4), 9),
        (CPUS, {"replicas": 99}, Needs("cpu", 1, 0, 1), 36),
        (CPUS, {"replicas": 2, "threads": 3}, Needs("cpu", 3, 0, 3), 11),
        (CPUS, {"replicas": 4, "expert_parallel_size": 2}, Needs("cpu", 9, 0, 4), 2),
        (CPUS, {"replicas": 2, "expert_parallel_size": 2, "threads": 4}, Needs("cpu", 8, 0, 4), 4),
        (GPUS, {"replicas": 3}, Needs("cuda", 1, 1, 1), 12),
        (GPUS, {"replicas": 3, "expert_parallel_size": 4}, Needs("cuda", 1, 4, 1), 3),
        (GPUS, {"replicas": 2, "device": "cpu"}, Needs("cpu", 32, 0, 32), 2),
    ],
)
def test_a_share_for_each(nodes: list[Node], how: dict[str, Any], expected: Needs, room: int) -> None:
    found = needs(nodes, **how)
    assert (found, found.room(nodes)) == (expected, room)


def test_bundles() -> None:
    assert Needs("cuda", 1, 4, 1).bundle == {"CPU": 1.0, "GPU": 4.0}
    assert Needs("cpu", 8, 0, 4).bundle == {"CPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "numerics", "how", "message"),
    [
        (GPUS, "portable/1", {"expert_parallel_size": 8, "device": "cuda"}, None),
        (GPUS[1:], "portable/1", {"expert_parallel_size": 8}, "needs 8 GPUs on one machine, and .* cluster has 4"),
        (
            CPUS,
            "portable/1",
            {"device": "cuda"},
            "a replica needs 1 GPU on one machine, and .* has 0(.|\n)*--device cpu",
        ),
        (CPUS, "native-sm90/1", {}, "a replica needs 1 GPU on one machine, and the largest of the cluster has 0"),
        (CPUS, "portable/1", {"threads": 17}, "a replica needs 17 cores on one machine, and .* has 16"),
        (CPUS, "portable/1", {"expert_parallel_size": 8, "threads": 4}, "a replica needs 32 cores on one machine"),
        ([Node("a", 0, 4)], "portable/1", {}, "no machine of the cluster has both 1 GPU and a core"),
        ([], "portable/1", {}, "a replica needs 1 core on one machine, and the largest of the cluster has 0"),
    ],
)
def test_where_there_is_no_room(nodes: list[Node], numerics: str, how: dict[str, Any], message: str | None) -> None:
    if message is None:
        needs(nodes, numerics, **how)
        return
    with pytest.raises(EngineError, match=message):
        needs(nodes, numerics, **how)
