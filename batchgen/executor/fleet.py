"""The replicas of a job, as its driver sees them. Start reading at `Fleet`."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from batchgen.errors import BatchgenError
from batchgen.executor.work import News, Started, Work

POLL = 0.25  # seconds for which a driver listens; a signal is heard that soon


@dataclass(frozen=True, slots=True)
class Lost:
    """Of a replica that is gone: its machine, its process, or its start. Nothing more is heard of it."""

    error: BatchgenError
    is_told: bool = False  # by itself, as why its start failed: another try there would end alike


Heard: TypeAlias = Started | News | Lost


class Fleet(Protocol):
    """Replicas: each is started, says `Started`, is given shards, tells news, and ends or is lost."""

    def start(self) -> str:
        """Begin to start another replica, when and where there is room for it. Its name, which no other has had."""

    def give(self, name: str, work: Work) -> None:
        """Another shard for a replica that has started. If it is lost by now, that will be heard."""

    def hear(self, seconds: float) -> list[tuple[str, Heard]]:
        """What replicas have said, in order; none when nobody says anything for so long."""

    def end(self, name: str) -> None:
        """End a replica at once. Nothing more is heard of it, also of what it had said already."""

    def close(self) -> None:
        """End all."""
