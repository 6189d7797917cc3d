"""What the driver of a replica and its ranks say to each other, pickled, over one connection a rank."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, Self

from batchgen.engine.generation import EngineStats
from batchgen.errors import BatchgenError, EngineError
from batchgen.executor.run_config import RunConfig
from batchgen.loader import LoadedModel
from batchgen.spec import JobSpec

# To a rank, in a generation: "begin"; lists of Requests; "end", no more will come; "drop", nobody waits any more.
Order = Literal["begin", "end", "drop"]

_OURS = "this is a fault in batchgen's engine; what is committed is valid"


@dataclass(frozen=True, slots=True)
class Setup:
    """To a rank, first of all."""

    spec: JobSpec
    model: LoadedModel
    run_config: RunConfig
    rank: int
    address: str  # at which the ranks meet


@dataclass(frozen=True, slots=True)
class Ready:
    """From a rank, once its engine has started. Lists of Completions follow."""

    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Beat:
    """From a rank, now and then while it goes on and has nothing else to say."""


@dataclass(frozen=True, slots=True)
class Ended:
    """From a rank, when a generation is over on all ranks."""

    stats: EngineStats  # since its start


@dataclass(frozen=True, slots=True)
class Failed:
    """From a rank, last of all."""

    error: type[BatchgenError]
    message: str
    where: str
    hint: str
    trace: str
    at: float  # time.monotonic(), one clock for all processes of a host

    @classmethod
    def of(cls, error: BaseException) -> Self:
        trace, at = "".join(traceback.format_exception(error)), monotonic()
        if isinstance(error, BatchgenError):
            return cls(type(error), error.message, error.where, error.hint, trace, at)
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(EngineError, message, "", _OURS, trace, at)

    def as_error(self, rank: int) -> BatchgenError:
        """The error as the driver raises it, with the trace of the rank as its cause."""
        message = self.message if self.message.startswith(f"rank {rank} ") else f"rank {rank}: {self.message}"
        error = self.error(message, where=self.where, hint=self.hint)
        error.__cause__ = RankTrace(f"\n{self.trace}")
        return error


class RankTrace(Exception):
    """What a rank's Python said, for the log of a driver."""
