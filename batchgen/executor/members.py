"""The replicas at work on a job: which shards each has, how far it is, and whether it computes what the others do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from batchgen.errors import EngineError
from batchgen.executor.base import Progress
from batchgen.executor.work import Started, Told
from batchgen.plan import Shard

_MOST_APART = 2  # replicas whose agreement is enough to begin


@dataclass(slots=True)
class Member:
    """A replica that may be given shards."""

    name: str
    started: Started
    shards: dict[int, Shard] = field(default_factory=dict)  # that it has, by index, the oldest first
    is_twin: bool = False  # what it has, another one has too
    told: Told = field(default_factory=Told)
    handed_in: Told = field(default_factory=Told)  # of that, what is in shards that came
    since: float = field(default_factory=perf_counter)
    heard: float = field(default_factory=perf_counter)  # when it last said something

    @property
    def open(self) -> Told:
        """What it has made of shards that have not come yet."""
        return self.told - self.handed_in

    @property
    def tokens_per_second(self) -> float:
        """Output tokens since it has begun."""
        return self.told.output_tokens / max(perf_counter() - self.since, 1e-9)


@dataclass(slots=True)
class ClusterProgress(Progress):
    """Where a job of several replicas is. What a lost replica had begun is no longer counted."""

    replicas: Mapping[str, float] = field(default_factory=dict)  # at work: name -> output tokens a second
    starting: int = 0  # replicas
    lost: int = 0  # replicas, and processes of replicas
    twins: int = 0  # shards that were made twice, and were equal


def chosen(candidates: Sequence[tuple[str, Started]], expected: int) -> Started | None:
    """The replica that all others must equal: the first that another one equals, or the only one of a job of one.

    None: not known before more have started. Raises EngineError when all have, and no two are alike.
    """
    for at, (_, one) in enumerate(candidates):
        if expected == 1 or any(difference(one, other) is None for _, other in candidates[at + 1 :]):
            return one
    if len(candidates) < max(expected, _MOST_APART):
        return None
    (first, one), (second, other) = candidates[:2]
    raise EngineError(
        f"no two replicas compute alike, so none can be trusted; {second} is not like {first}: "
        f"{difference(one, other)}",
        hint="one of the machines is broken or has another build; start with --replicas 1 on each to see which",
    )


def difference(reference: Started, other: Started) -> str | None:
    """In words, why `other` may not work beside `reference`; None when it computes alike."""
    then, now = reference.fingerprint, other.fingerprint
    for part in sorted(then.keys() | now.keys()):
        if then.get(part) != now.get(part):
            return f"its {part} is {now.get(part)}, and not {then.get(part)}"
    kind, device = reference.about.get("device"), other.about.get("device")
    if kind != device and not str(then.get("numerics", "")).startswith("portable/"):
        return f"it runs on {device}, and not on {kind}; {then.get('numerics')} wants devices of one kind"
    return None
