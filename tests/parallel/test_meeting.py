"""Why ranks cannot meet: each reason is told in words."""

import socket
import time

import pytest
import torch
import torch.distributed as dist

from batchgen.errors import EngineError
from batchgen.parallel.meeting import Guest, free_address, open_store, split_address, verdict

NO_NCCL = not (dist.is_available() and dist.is_nccl_available())


@pytest.mark.parametrize("address", ["", "127.0.0.1", "host:", ":29500", "host:port", "host:0", "host:65536", "h:-1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(EngineError, match="is not an address"):
        split_address(address)


def test_an_address() -> None:
    assert split_address("10.0.0.1:29500") == ("10.0.0.1", 29500)


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"rank 0 cannot listen at {address}: Address already in use"):
            open_store(0, address, time.monotonic() + 1)


def test_a_host_that_is_not_this_one_is_told() -> None:
    with pytest.raises(EngineError, match=r"rank 0 cannot listen at 192\.0\.2\.1:29500"):
        open_store(0, "192.0.2.1:29500", time.monotonic() + 1)


def test_no_rank_0_is_told_in_time() -> None:
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 3 finds no rank 0 at 127\.0\.0\.1"):
        open_store(3, free_address(), begun + 0.5)
    assert time.monotonic() - begun < 5


def guests(*devices: str) -> list[Guest]:
    return [Guest(rank, device, f"{device} {rank}", "") for rank, device in enumerate(devices)]


def test_equal_guests_fit() -> None:
    assert verdict(guests("NVIDIA H200", "NVIDIA H200"), 2) == ("", "")
    cpus = [Guest(rank, "cpu", "", "") for rank in range(8)]
    assert verdict(cpus, 8) == ("", "")


def test_mixed_kinds_are_refused() -> None:
    message, hint = verdict(guests("NVIDIA H200", "NVIDIA H200", "NVIDIA H100"), 3)
    assert message == "rank 0 is on NVIDIA H200 and rank 2 on NVIDIA H100"
    assert hint == "the ranks of a replica need devices of one kind"


def test_two_ranks_on_one_gpu_are_refused() -> None:
    first, second = guests("NVIDIA H200", "NVIDIA H200")
    same = Guest(2, "NVIDIA H200", first.unit, "")
    assert verdict([first, second, same], 3)[0] == "ranks 0, 2 of 3 are on one GPU"


def test_an_obstacle_is_told_before_who_is_missing() -> None:
    message, _ = verdict([Guest(2, "", "", "torch has no NCCL")], 4)
    assert message == "rank 2 cannot take part: torch has no NCCL"


@pytest.mark.skipif(not NO_NCCL, reason="this torch has NCCL")
def test_nccl_missing_is_told() -> None:
    assert "has no NCCL" in Guest.of(1, 2, torch.device("cuda", 1)).obstacle


@pytest.mark.skipif(NO_NCCL, reason="this torch has no NCCL")
def test_more_ranks_than_gpus_is_told() -> None:
    there = torch.cuda.device_count()
    told = Guest.of(there, there + 1, torch.device("cuda", there)).obstacle
    assert told == f"{there + 1} ranks need a GPU each, and this machine shows {there}"
