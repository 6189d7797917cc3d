"""Probes: some samples are made a second time while a job runs, in other company, and must be equal bit for bit."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from batchgen.errors import VerifyError
from batchgen.executor.compare import bits, differences
from batchgen.records import Completion, Request
from batchgen.seeds import lot

AT_LEAST = 2  # of each process that makes samples
_REMEMBERED = 1024  # samples that ended last, for the evidence

SampleId = tuple[str, int]  # row_key, sample_index


@dataclass(frozen=True, slots=True)
class Probe:
    """A sample on its way to be made twice."""

    request: Request
    first: Completion
    shard: int  # index
    ended: int  # samples that had ended when `first` came, this one included
    is_reused: bool = False  # `first` is of an earlier run, but for logprobs that were scored


_DISTRUST = (
    "no row of this machine can be trusted until the cause is known: `batchgen explain` looks for it. "
    "The rows of its file are not kept; the same command makes and probes them again"
)
_REUSED = "was taken from an earlier run, made again"
_DISTRUST_REUSE = (
    "either that run or this machine cannot be trusted: `batchgen replay` of it says more. "
    "The rows of its file are not kept; without --reuse all of them are made"
)


class ProbeFailed(VerifyError):
    """A sample was made twice, and the two differ."""

    def __init__(self, probe: Probe, second: Completion, between: list[SampleId], agreed: int) -> None:
        request = probe.request
        found = differences(probe.first, second)
        what, hint = (_REUSED, _DISTRUST_REUSE) if probe.is_reused else ("was made twice", _DISTRUST)
        super().__init__(
            f"row {request.row_key!r} sample {request.sample_index} {what} and differs: {found[0]}; "
            f"probes that agreed before: {agreed}",
            hint=hint,
        )
        self.request = request
        self.evidence: dict[str, Any] = {
            "row_key": request.row_key,
            "sample_index": request.sample_index,
            "differences": [asdict(difference) for difference in found],
            "seed": str(request.seed),
            "prompt_token_ids": request.prompt_token_ids,
            "params": asdict(request.params),
            **({} if request.sampling is None else {"sampling": request.sampling}),
            "bad_words_token_ids": request.bad_words_token_ids,
            "first": bits(probe.first),
            "second": bits(second),
            "ended_between": between,
            "probes_agreed": agreed,
        }


class Probes:
    """Chooses samples, holds them back after their first answer, and compares it with the second.

    Chosen are those whose lot is below `share`, which hangs on the job alone, and the first two of the process. One is
    held back until `apart` other samples have ended, so that its second company is not its first.
    """

    def __init__(
        self, share: float, apart: int = 0, on_probe: Callable[[Request], None] = lambda request: None
    ) -> None:
        """`share` is in [0, 1], and 0 is no probe at all. `on_probe` hears of each that agreed."""
        self._share, self._apart, self._on_probe = share, apart, on_probe
        self._asked = self._ended = 0
        self._last_ended: deque[SampleId] = deque(maxlen=_REMEMBERED)
        self._waiting: deque[Probe] = deque()  # by the time of their first answer
        self._running: dict[SampleId, Probe] = {}
        self.agreed = 0

    def chooses(self, request: Request) -> bool:
        """Is this sample, the next that is asked of the engine, to be made twice?"""
        self._asked += 1
        return self._share > 0 and (self._asked <= AT_LEAST or lot(request.seed, "probe") < self._share)

    def sample_ended(self, completion: Completion) -> None:
        """Hear of every first answer."""
        self._ended += 1
        self._last_ended.append((completion.row_key, completion.sample_index))

    def hold(self, request: Request, first: Completion, shard: int, is_reused: bool = False) -> None:
        """The first answer of a chosen sample has come."""
        self._waiting.append(Probe(request, first, shard, self._ended, is_reused))

    def again(self, request: Request, first: Completion, shard: int) -> Request:
        """To be asked now: a chosen sample whose first answer is of an earlier run, and so had other company."""
        return self._ask(Probe(request, first, shard, self._ended, is_reused=True))

    def due(self) -> list[Request]:
        """Those that have waited long enough, to be asked again now."""
        found = []
        while self._waiting and self._ended - self._waiting[0].ended >= self._apart:
            found.append(self._ask(self._waiting.popleft()))
        return found

    def rest(self) -> Iterator[Request]:
        """When nothing else can be asked: half of those that wait, the last first.

        So samples that ran together the first time do not do so again, even in a job that is smaller than a batch.
        """
        for _ in range((len(self._waiting) + 1) // 2):
            yield self._ask(self._waiting.pop())

    def running(self) -> list[SampleId]:
        """Those that the engine is to answer a second time."""
        return list(self._running)

    def answer(self, second: Completion) -> int | None:
        """The shard of the probe that this answers, and agrees with; None when it answers no probe.

        Raises ProbeFailed when the two answers differ in any field or bit.
        """
        probe = self._running.pop((second.row_key, second.sample_index), None)
        if probe is None:
            return None
        if bits(probe.first) != bits(second):
            since = max(0, len(self._last_ended) - (self._ended - probe.ended))
            raise ProbeFailed(probe, second, list(self._last_ended)[since:], self.agreed)
        self.agreed += 1
        self._on_probe(probe.request)
        return probe.shard

    def _ask(self, probe: Probe) -> Request:
        """All of it is computed anew: what the first pass left in the prefix cache is what is to be proven."""
        self._running[probe.request.row_key, probe.request.sample_index] = probe
        return replace(probe.request, fresh=True)
