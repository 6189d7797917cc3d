"""Replicas on a Ray cluster: an actor each, in a placement group, whose rank processes are its children."""

import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from threading import current_thread, main_thread
from time import monotonic, sleep
from types import ModuleType
from typing import Any, TextIO

from batchgen.errors import EngineError
from batchgen.executor.actor import Opening, Replica, ReplicaSetup, open_replica
from batchgen.executor.fleet import Heard, Lost
from batchgen.executor.needs import Needs, Node
from batchgen.executor.work import Failure, Work

_NEWS = 2.0  # seconds after which a replica tells how far it is, though nothing has happened
_REACHED = 5.0  # seconds in which the head of a cluster must answer
_FETCHED = 120.0  # seconds in which what a replica has said must come over the network
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and no settings; an answer has some
_LOOK = 10.0  # seconds after which a driver that hears nothing looks whether its machine is still of the cluster
_STORE_BYTES = 256 << 20  # of a cluster on this machine alone: shards on their way; more go to its disk
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


@contextmanager
def cluster(address: str | None, cores: int) -> Iterator[list[Node]]:
    """Join the cluster at `address`, HOST:PORT or auto, or start one on this machine; its nodes.

    None starts one, with so many cores in the books. Raises EngineError: Ray is not installed, no cluster there.
    """
    ray = _ray()
    if ray.is_initialized():  # someone's who uses batchgen as a library
        yield _nodes(ray)
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        quiet |= {
            "address": "local",
            "num_cpus": cores,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",  # a machine without a network will do
        }
    else:
        _check_address(address)
        quiet["address"] = address
    try:
        # Ray puts the present folder into the path of its workers, and a clone of the source is no installed package.
        # They also stand in it, and it must stay: MKL loads no kernel in a folder that is gone.
        with _trying(once=address is not None), chdir(os.sep):
            ray.init(**quiet)
    except Exception as error:  # Ray raises many kinds, also plain ones
        ray.shutdown()  # what it has started until then
        place = "this machine" if address is None else address
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise EngineError(
            f"cannot use Ray at {place}: {lines[0].strip()}",
            where="ray",
            hint="batchgen must run on a machine of the cluster, with the same Ray and Python as its others",
        ) from error
    try:
        with redirect_stdout(_WithoutRay(sys.stdout)):
            yield _nodes(ray)
    finally:
        with redirect_stdout(io.StringIO()):  # it prints what it had kept
            ray.shutdown()


@contextmanager
def _trying(once: bool) -> Iterator[None]:
    """A block in which Ray may try `once` to reach a head, for 40 seconds, and leaves SIGTERM as it is."""
    before, name = signal.getsignal(signal.SIGTERM), "RAY_gcs_server_port_wait_time_s"
    ours = {name: "1"} if once and name not in os.environ else {}
    os.environ |= ours
    try:
        yield
    finally:
        for each in ours:
            del os.environ[each]
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _WithoutRay(io.TextIOBase):
    """The standard output without what Ray's own threads print there, such as the end of the log of a lost machine."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if current_thread().name.startswith("ray_") else self._stream.write(text)

    def flush(self) -> None:  # the base class has one, which does nothing
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(slots=True)
class _Actor:
    handle: Any
    group: Any
    ref: Any  # of what it will say next


class RayFleet:
    """An executor.fleet.Fleet, in a block of `cluster`."""

    def __init__(self, setup: ReplicaSetup, needs: Needs, opening: Opening = open_replica) -> None:
        self._setup, self._needs, self._opening = setup, needs, opening
        self._ray = _ray()
        self._actors: dict[str, _Actor] = {}
        self._number = 0
        self._look_at = 0.0

    def start(self) -> str:
        """See Fleet. A replica waits until some machine has room for all of it."""
        name, ray, needs = f"r{self._number}", self._ray, self._needs
        self._number += 1
        group = ray.util.placement_group([needs.bundle], strategy="STRICT_PACK")
        handle = (
            ray.remote(Replica)
            .options(
                num_cpus=needs.cpus,
                num_gpus=needs.gpus,
                max_concurrency=3,
                max_restarts=0,
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group),
            )
            .remote(self._setup, self._opening)
        )
        self._actors[name] = _Actor(handle, group, handle.start.remote())
        return name

    def give(self, name: str, work: Work) -> None:
        """See Fleet."""
        self._actors[name].handle.give.remote(work)

    def hear(self, seconds: float) -> list[tuple[str, Heard]]:
        """See Fleet."""
        refs = {actor.ref: name for name, actor in self._actors.items()}
        waited = list(refs)
        if not waited:
            sleep(seconds)
            return []
        ready, _ = self._ray.wait(waited, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0, fetch_local=False)
        elif monotonic() > self._look_at:
            self._look()
        return [(refs[ref], self._said(refs[ref])) for ref in ready]

    def end(self, name: str) -> None:
        """See Fleet."""
        if actor := self._actors.pop(name, None):
            with suppress(Exception):  # it, or the whole cluster, may be gone
                self._ray.kill(actor.handle)
                self._ray.util.remove_placement_group(actor.group)

    def close(self) -> None:
        """See Fleet."""
        for name in list(self._actors):
            self.end(name)

    def _look(self) -> None:
        """Raise EngineError when this machine is no longer of the cluster: then nobody would be heard any more."""
        here = self._ray.get_runtime_context().get_node_id()
        try:
            nodes = self._ray.nodes()
        except Exception:  # the head does not answer; if that lasts Ray ends this process
            return
        if not any(node["Alive"] and node["NodeID"] == here for node in nodes):
            hint = "what is committed is valid; `ray start` lets it join again"
            raise EngineError("the Ray of this machine has ended", where="ray", hint=hint)
        self._look_at = monotonic() + _LOOK

    def _said(self, name: str) -> Heard:
        actor = self._actors[name]
        try:
            said = self._ray.get(actor.ref, timeout=_FETCHED)
        except self._ray.exceptions.RayError as error:
            self.end(name)
            return _lost(error)
        if isinstance(said, Failure):  # of its start
            self.end(name)
            return Lost(said.error, is_told=True)
        actor.ref = actor.handle.news.remote(_NEWS)
        heard: Heard = said
        return heard


def _lost(error: Exception) -> Lost:
    """In one line: Ray tells a story, with paths and numbers of processes."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    hint = "what is committed is valid"
    if "creation task" in text:
        why, hint = str(error).splitlines()[-1].strip(), "all machines need the same batchgen, Python and Ray"
        return Lost(EngineError(f"it cannot be made there: {why}", hint=hint), is_told=True)
    if "ode died" in text or "node was terminated" in text or "worker's node" in text:
        what = f"its machine is gone ({kind})"
    elif kind in ("ActorDiedError", "RayActorError"):
        what = f"its process has ended ({kind})"
    else:
        what = f"it cannot be reached ({kind}: {text[:200]})"
    return Lost(EngineError(what, hint=hint))


def _check_address(address: str) -> None:
    """Raise EngineError soon for an address at which nothing listens: Ray itself tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EngineError(
            f"{address!r} is not the address of a Ray cluster",
            where="ray",
            hint="it is HOST:PORT, as `ray start --head` prints it, or auto on a machine of the cluster",
        )
    reason = "what listens there is no Ray"
    try:
        with socket.create_connection((host, int(port)), _REACHED) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            there.sendall(_PREFACE)
            if there.recv(9)[3:4] == _PREFACE[-6:-5]:
                return
    except OSError as error:
        reason = error.strerror or str(error)
    raise EngineError(
        f"no cluster answers at {address}: {reason}",
        where="ray",
        hint="`ray start --head` prints the address, and `ray status` says whether the cluster is up",
    )


def _nodes(ray: ModuleType) -> list[Node]:
    return [
        Node(node["NodeManagerHostname"], int(there.get("CPU", 0)), int(there.get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
        for there in (node["Resources"],)
    ]


def _ray() -> Any:
    """Ray itself, which says nothing of its own accord. Raises EngineError where it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError:
        raise EngineError(
            "Ray is not installed", where="ray", hint="pip install 'batchgen[cluster]'; one replica needs no Ray"
        ) from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray
