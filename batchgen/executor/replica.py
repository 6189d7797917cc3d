"""A replica: one engine, or N ranks that share the experts of a model and are one engine to whoever asks."""

import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from batchgen.engine.admission import check_request
from batchgen.engine.generation import EngineStats
from batchgen.errors import BatchgenError, EngineError
from batchgen.executor.base import Engine
from batchgen.executor.guarded import GuardedEngine
from batchgen.executor.messages import Beat, Ended, Ready, Setup
from batchgen.executor.rank_process import RankProcesses
from batchgen.executor.run_config import RunConfig
from batchgen.executor.spread import Spread
from batchgen.executor.start import Weights, start_engine, threads_of
from batchgen.kernels.device import TENSOR_CORES, choose, num_gpus
from batchgen.loader import LoadedModel
from batchgen.parallel.meeting import free_address
from batchgen.records import Completion, Request
from batchgen.spec import JobSpec

RANK = "batchgen.executor.rank:main"
STARTING = 3600.0  # seconds in which a rank must be ready, unless the watchdog has more patience


def start_replica(spec: JobSpec, model: LoadedModel, run_config: RunConfig, weights: Weights | None = None) -> Engine:
    """The engine that `run_config` asks for. `weights`: see start_engine; ranks open their own.

    Raises as start_engine and DepEngine.start do, and EngineError for settings of ranks where there is one.
    """
    if run_config.expert_parallel_size > 1:
        return _guarded(spec, model, run_config) if run_config.guard else DepEngine.start(spec, model, run_config)
    _check_alone(run_config)
    return _guarded(spec, model, run_config) if run_config.guard else start_engine(spec, model, run_config, weights)


def _guarded(spec: JobSpec, model: LoadedModel, run_config: RunConfig) -> GuardedEngine:
    return GuardedEngine(lambda: DepEngine.start(spec, model, run_config))


def only_ranks_open_weights(numerics: str, size: int) -> bool:
    """Whether each of `size` ranks takes the weights to a GPU. Else they are packed once, whoever comes first."""
    return size > 1 and numerics == TENSOR_CORES


@contextmanager
def ending(engine: Engine) -> Iterator[None]:
    """A block after which the processes of `engine`, if it has any, are ended."""
    try:
        yield
    finally:
        if isinstance(engine, DepEngine | GuardedEngine):
            engine.close()


class DepEngine:
    """N processes in lockstep: each has its own requests and KV cache, and its part of the experts of every layer.

    One process alone may be of a model without experts. What a request is answered depends on none of it. When one of
    the ranks is lost, all are.
    """

    def __init__(self, ranks: RankProcesses, ready: list[Ready], vocab_size: int, run_config: RunConfig) -> None:
        """`ready`: what each rank has said of itself. Raises EngineError if they are not alike; use `start`."""
        _check_alike(ready)
        self.fingerprint: Mapping[str, str] = ready[0].fingerprint
        self.about: Mapping[str, Any] = {**ready[0].about, "ranks": len(ready)}
        self.stats = [EngineStats() for _ in ready]  # of each rank, as of the end of the last generation
        self._ranks = ranks
        self._vocab_size = vocab_size
        most = run_config.max_num_seqs
        self._room = most + max(1, most // 4)  # a few wait at their rank, to begin at once
        self._patience = run_config.watchdog_seconds
        self._busy = False
        weakref.finalize(self, ranks.close)

    @classmethod
    def start(cls, spec: JobSpec, model: LoadedModel, run_config: RunConfig, target: str = RANK) -> Self:
        """Start the ranks and wait until all have proven themselves. `target` is what a process runs.

        Raises EngineError when the ranks cannot be had or do not find each other, and what the start of an engine
        raises, naming the rank.
        """
        size = run_config.expert_parallel_size
        _check_size(size, spec, model, run_config)
        address = free_address()
        ranks = RankProcesses(size, target, threads_of(run_config))
        try:
            for rank in range(size):
                ranks.send(rank, Setup(spec, model, run_config, rank, address))
            ready: dict[int, Ready] = {}
            patience = max(STARTING, run_config.watchdog_seconds)
            while len(ready) < size:
                rank, ready[rank] = ranks.receive(patience)
            return cls(ranks, [ready[rank] for rank in range(size)], model.config.vocab_size, run_config)
        except TimeoutError:
            ranks.close(at_once=True)
            raise EngineError(f"no rank was ready within {patience:g} s", hint="is the model on a slow disk?") from None
        except BaseException:
            ranks.close(at_once=True)
            raise

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return self._ranks.pids

    @property
    def idle_share(self) -> float:
        """Of the steps of all ranks, those in which a rank had no token."""
        idle = sum(stats.idle_steps for stats in self.stats)
        return idle / max(1, idle + sum(stats.steps for stats in self.stats))

    @property
    def balance(self) -> float:
        """Tokens of all ranks, by those that there would be if in every step all had as many as the busiest: 1 is even.

        It bounds what N ranks can gain, for a step takes as long as its busiest rank.
        """
        most = sum(stats.busiest_tokens for stats in self.stats)
        return sum(stats.step_tokens for stats in self.stats) / max(1, most)

    @property
    def is_alive(self) -> bool:
        """Whether the ranks are there, as far as is known."""
        return self._ranks.is_alive

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        """See executor.base.Engine. Raises as an engine's `generate`, and the error of a rank that is lost.

        A request that is None says that there is none now and more may come: it is asked again when a rank speaks.
        Whoever gives it while no request is unanswered is asked without end.
        """
        if self._busy:
            raise EngineError("this engine is already generating", hint="finish or close the earlier iterator first")
        if not self._ranks.is_alive:
            raise EngineError("the ranks of this engine have ended", hint="start another one")
        self._busy = True
        size = len(self.stats)
        waiting, left = iter(requests), set(range(size))
        spread = Spread(size, self._room)
        try:
            self._ranks.send_all("begin")
            is_over = self._fill(waiting, spread)
            while left:
                rank, message = self._receive(spread)
                if isinstance(message, Ended):
                    self.stats[rank] = message.stats
                    left.discard(rank)
                    continue
                answered = [] if isinstance(message, Beat) else message
                for completion in answered:
                    spread.answered(rank, completion)
                is_over = is_over or self._fill(waiting, spread)
                yield from answered
        except KeyboardInterrupt:  # in the middle of a message, or before every rank has been told to begin
            self._ranks.close(at_once=True)
            raise
        finally:
            self._busy = False
            if left and self._ranks.is_alive:
                self._drop(left)

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _receive(self, spread: Spread) -> tuple[int, Any]:
        try:
            return self._ranks.receive(self._patience)
        except TimeoutError:
            self._ranks.close(at_once=True)
            names = spread.names
            listed = ", ".join(f"row {key!r} sample {index}" for key, index in names[:5]) or "no row"
            raise EngineError(
                f"no rank has made a step for {self._patience:g} s; in hand: {listed}"
                + (f" and {len(names) - 5} more" if len(names) > 5 else ""),
                hint="what is committed is valid; --watchdog gives a slow machine more time",
            ) from None

    def _fill(self, waiting: Iterator[Request | None], spread: Spread) -> bool:
        """Give out requests while a rank has room; True when there are no more, and the ranks know."""
        while spread.has_room():
            try:
                request = next(waiting)
            except StopIteration:
                self._ranks.send_all("end")
                return True
            if request is None:
                return False
            check_request(request, self._vocab_size)
            self._ranks.send(spread.give(request), [request])
        return False

    def _drop(self, left: set[int]) -> None:
        """Let the ranks leave what they are doing, and wait until they have."""
        try:
            self._ranks.send_all("drop")
            while left:
                rank, message = self._ranks.receive(self._patience)
                if isinstance(message, Ended):
                    self.stats[rank] = message.stats
                    left.discard(rank)
        except TimeoutError:
            self._ranks.close(at_once=True)
        except BatchgenError:
            pass  # what led here says more, and who comes next is told that they have ended
        except BaseException:  # nobody waits any longer
            self._ranks.close(at_once=True)
            raise


def _check_size(size: int, spec: JobSpec, model: LoadedModel, run_config: RunConfig) -> None:
    """Raise EngineError for ranks that cannot be had."""
    if size == 1:
        _check_alone(run_config)
        return
    moe = model.config.moe
    if moe is None:
        raise EngineError(
            f"{model.config.architecture} has no experts that {size} ranks could share",
            where="expert_parallel_size",
            hint="leave it at 1: ranks in lockstep would make a dense model no faster",
        )
    if size > moe.num_experts:
        raise EngineError(
            f"{size} ranks are more than the {moe.num_experts} experts of the model", where="expert_parallel_size"
        )
    device = choose(run_config.device, spec.numerics)
    if device.type == "cuda" and size > num_gpus():
        raise EngineError(
            f"{size} ranks need a GPU each, and this machine shows {num_gpus()}",
            where="expert_parallel_size",
            hint="ask for fewer ranks, or for --device cpu",
        )


def _check_alone(run_config: RunConfig) -> None:
    """Raise EngineError for settings of several ranks."""
    for name in ("redundant_experts", "eplb_interval"):
        if value := getattr(run_config, name):
            raise EngineError(
                f"is {value}, and there is one rank, which holds every expert",
                where=name,
                hint="it goes with an expert_parallel_size above 1",
            )


def _check_alike(ready: list[Ready]) -> None:
    """Raise EngineError unless all ranks compute the same thing alike."""
    first = ready[0].fingerprint
    for rank, other in enumerate(ready):
        for part in sorted(first.keys() | other.fingerprint.keys()):
            if other.fingerprint.get(part) != first.get(part):
                raise EngineError(
                    f"rank {rank} is not like rank 0: its {part} is {other.fingerprint.get(part)}, and that of rank 0 "
                    f"{first.get(part)}",
                    hint="the ranks of a replica run on devices of one kind, which compute alike",
                )
