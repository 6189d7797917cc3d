"""How ranks meet: rank 0 opens a store of keys, each rank says in it what it is, and all read what all have said.

A rank that cannot take part says so before it gives up, so that the others need not wait for it.
"""

import ipaddress
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.distributed_c10d import Store

from batchgen.errors import EngineError

_POLL = 0.05  # seconds
_GRACE = 5.0  # seconds, for the others to hear what rank 0 has decided


@dataclass(frozen=True, slots=True)
class Guest:
    """What a rank says of itself."""

    rank: int
    device: str  # the name of the kind
    unit: str  # which GPU it is; "" for a CPU, which ranks may share
    obstacle: str  # why the rank cannot take part; "" when it can

    @classmethod
    def of(cls, rank: int, size: int, device: torch.device) -> Self:
        """This process, as rank `rank` of `size`."""
        if device.type != "cuda":
            return cls(rank, device.type, "", "")
        if not (dist.is_available() and dist.is_nccl_available()):
            return cls(rank, "", "", f"torch {torch.__version__} has no NCCL, over which GPUs exchange rows")
        there = torch.cuda.device_count()
        if (device.index or 0) >= there:
            return cls(rank, "", "", f"{size} ranks need a GPU each, and this machine shows {there}")
        properties = torch.cuda.get_device_properties(device)
        return cls(rank, properties.name, str(properties.uuid), "")


def split_address(address: str) -> tuple[str, int]:
    """ "host:port" as its parts. Raises EngineError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EngineError(f"{address!r} is not an address", hint="it is host:port, as in 127.0.0.1:29500")
    return host, int(port)


def free_address(host: str = "127.0.0.1") -> str:
    """An address at which nothing listens now."""
    with socket.create_server((host, 0)) as server:
        return f"{host}:{server.getsockname()[1]}"


def open_store(rank: int, address: str, deadline: float) -> Store:
    """Rank 0's store of keys, opened there and reached from the others. Raises EngineError.

    `deadline` is a time of time.monotonic(). Port and connection are tried by hand first: their errors say more.
    """
    host, port = split_address(address)
    try:
        if rank == 0:
            server = socket.create_server((host, port))
            return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        _until_listening(host, port, deadline)
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_left(deadline)))
    except OSError as error:
        reason = error.strerror or str(error)
        if rank == 0:
            hint = "another program may use the port; choose another"
            raise EngineError(f"rank 0 cannot listen at {address}: {reason}", hint=hint) from error
        hint = "rank 0 has not started, or cannot be reached from here; its own message says more"
        raise EngineError(f"rank {rank} finds no rank 0 at {address}: {reason}", hint=hint) from error
    except RuntimeError as error:
        raise EngineError(f"rank {rank} cannot use {address}: {str(error).splitlines()[0]}") from error


def _until_listening(host: str, port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((host, port), timeout=_left(deadline)):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL)


def meet(store: Store, me: Guest, size: int, deadline: float) -> None:
    """Tell rank 0 what this rank is, and hear whether all fit together. Raises EngineError on every rank if not."""
    try:
        store.set(f"guest/{me.rank}", json.dumps(asdict(me)))
        if me.rank == 0:
            come = _wait_for_guests(store, size, deadline)
            store.set("verdict", json.dumps(verdict(come, size)))
        store.wait(["verdict"], timedelta(seconds=_left(deadline) + _GRACE))
        message, hint = json.loads(store.get("verdict"))
        store.set(f"heard/{me.rank}", "")
        if me.rank == 0:  # the store goes when rank 0 does, and some may come only now to hear that one cannot
            audience = range(size) if time.monotonic() < deadline else [guest.rank for guest in come]
            with suppress(RuntimeError):
                store.wait([f"heard/{rank}" for rank in audience], timedelta(seconds=_GRACE))
    except RuntimeError as error:
        raise EngineError(
            f"rank {me.rank} lost rank 0 while the ranks met: {str(error).splitlines()[0]}",
            hint="rank 0's own message says why",
        ) from error
    if message:
        raise EngineError(message, hint=hint)


def _wait_for_guests(store: Store, size: int, deadline: float) -> list[Guest]:
    """Those who have come: all, or some when one of them cannot take part, or when the time is over."""
    while True:
        there = [rank for rank in range(size) if store.check([f"guest/{rank}"])]
        guests = [Guest(**json.loads(store.get(f"guest/{rank}"))) for rank in there]
        if len(guests) == size or any(guest.obstacle for guest in guests) or time.monotonic() > deadline:
            return guests
        time.sleep(_POLL)


def verdict(guests: list[Guest], size: int) -> tuple[str, str]:
    """Why these cannot be the ranks of a replica, and what to do; two empty texts when they can."""
    for guest in guests:
        if guest.obstacle:
            hint = "ask for as many ranks as there are GPUs, or for a CPU"
            return f"rank {guest.rank} cannot take part: {guest.obstacle}", hint
    if missing := sorted(set(range(size)) - {guest.rank for guest in guests}):
        hint = "each rank is a process; what the missing one wrote may say why it did not start"
        return f"{_ranks(missing)} of {size} did not come in time", hint
    first = guests[0]
    for guest in guests:
        if guest.device != first.device:
            message = f"rank {first.rank} is on {first.device} and rank {guest.rank} on {guest.device}"
            return message, "the ranks of a replica need devices of one kind"
        shared = [other.rank for other in guests if other.unit and other.unit == guest.unit]
        if len(shared) > 1:
            return f"{_ranks(shared)} of {size} are on one GPU", "give each a GPU of its own, or ask for fewer ranks"
    return "", ""


def prefer_loopback(address: str) -> None:
    """Ranks that meet on the loopback are on one host: their data stays there, whatever the host is called."""
    host, _ = split_address(address)
    if not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback:
        return
    for _, name in socket.if_nameindex():
        if name.startswith("lo"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            return


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
