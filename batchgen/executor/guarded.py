"""An engine whose processes may die: they are started again, and asked again what they had not answered.

A row that was in hand at a death is a suspect and runs alone. With two deaths of its own it is given up: it becomes a
completion with the error `replica_died`, as soon as the engine has answered some other row since, or no other is left.
So a machine that fails with every row stops the job, and makes no error rows.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any, Protocol

from batchgen.errors import BatchgenError, EngineError, RowError
from batchgen.records import Completion, Request

MOST_DEATHS = 6  # in a row, without an answer between them
LONE_DEATHS = 2  # of a row: one may be a kill from outside

_Name = tuple[str, int]  # row_key, sample_index
_log = logging.getLogger(__name__)


class Mortal(Protocol):
    """An engine that can be lost: executor.replica.DepEngine."""

    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        """See executor.base.Engine; None: no request now, and more may come."""

    def close(self) -> None:
        """End its processes."""


class GuardedEngine:
    """An executor.base.Engine that outlives its processes."""

    def __init__(self, start: Callable[[], Mortal], on_death: Callable[[str], None] = lambda text: None) -> None:
        """`start` starts the processes, now and after each death. `on_death` hears what became of them.

        Raises what `start` raises.
        """
        self._start, self._on_death = start, on_death
        self._engine = start()
        self.fingerprint: Mapping[str, str] = self._engine.fingerprint
        self.about: Mapping[str, Any] = self._engine.about
        self.deaths = 0
        self._in_a_row = 0  # deaths without an answer
        self._suspects: deque[Request] = deque()
        self._alone = Counter[_Name]()  # deaths of a row of its own
        self._given_up: dict[_Name, Completion] = {}

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        """See executor.base.Engine. Raises EngineError when the processes die again and again without an answer.

        None among the requests: there is none now, and more may come.
        """
        source = _Source(requests, self._given_up)
        held_back: list[Completion] = []  # of rows that were given up
        self._suspects.clear()
        while True:
            while self._suspects:
                yield from self._attempt([self._suspects[0]], source, held_back)
            yield from self._attempt(source, source, held_back)
            if not self._suspects:
                yield from _emptied(held_back)
                yield from _emptied(source.known)
                if source.is_over:
                    return

    def close(self) -> None:
        """End the processes."""
        self._engine.close()

    def _attempt(
        self, requests: Iterable[Request | None], source: "_Source", held_back: list[Completion]
    ) -> Generator[Completion, None, None]:
        """Ask until all is answered or the processes die; what is then unanswered is suspect."""
        in_hand = _InHand(requests, held_back)
        is_alone = requests is not source
        engine = self._living()
        try:
            with closing(engine.generate(in_hand)) as answers:
                for completion in answers:
                    in_hand.answered(completion)
                    if is_alone:
                        self._suspects.popleft()
                    self._in_a_row = 0
                    yield from _emptied(held_back)  # it was those rows and not the engine
                    yield completion
        except BatchgenError as error:
            if source.error is error or engine.is_alive:
                raise
            left = in_hand.requests()
            self._died(error, left)
            if not is_alone:
                self._suspects.extend(left)
            elif left:
                self._blame(left[0], held_back)

    def _living(self) -> Mortal:
        while not self._engine.is_alive:
            try:
                engine = self._start()
            except EngineError as error:
                self._died(error, [])
                continue
            if engine.fingerprint != self.fingerprint:
                engine.close()
                raise EngineError(
                    "after a death the engine came back as another", hint="the model or the machine was changed"
                )
            self._engine = engine
        return self._engine

    def _died(self, error: BatchgenError, left: list[Request]) -> None:
        self.deaths += 1
        self._in_a_row += 1
        rows = ", ".join(f"row {request.row_key!r} sample {request.sample_index}" for request in left[:3])
        text = f"{error.message}; in hand: {rows or 'nothing'}" + (f" and {len(left) - 3} more" if left[3:] else "")
        self._on_death(text)
        if self._in_a_row > MOST_DEATHS:
            raise EngineError(
                f"the engine died {self._in_a_row} times in a row; at last: {text}", where=error.where, hint=error.hint
            ) from error
        _log.warning("the engine died and is started again: %s", text)

    def _blame(self, suspect: Request, held_back: list[Completion]) -> None:
        """The message is of the row and says nothing of a process: it is hashed."""
        name = suspect.row_key, suspect.sample_index
        self._alone[name] += 1
        if self._alone[name] < LONE_DEATHS:
            return
        self._suspects.popleft()
        error = RowError("replica_died", "the engine died with this row each time, also with this row alone")
        _log.warning("row %r sample %d is given up: %s", *name, error)
        self._given_up[name] = Completion(*name, (), "", "error", error_code=error.code, error_message=str(error))
        held_back.append(self._given_up[name])


def _emptied(completions: list[Completion]) -> Iterator[Completion]:
    while completions:
        yield completions.pop(0)


class _Source:
    """The requests of a caller. It pauses after one whose answer is known: its row was given up earlier."""

    def __init__(self, requests: Iterable[Request | None], given_up: Mapping[_Name, Completion]) -> None:
        self._requests, self._given_up = iter(requests), given_up
        self.error: BaseException | None = None  # the caller's own
        self.known: list[Completion] = []
        self.is_over = False

    def __iter__(self) -> Iterator[Request | None]:
        while True:
            try:
                request = next(self._requests)
            except StopIteration:
                self.is_over = True
                return
            except BaseException as error:
                self.error = error
                raise
            if request and (known := self._given_up.get((request.row_key, request.sample_index))):
                self.known.append(known)
                return
            yield request


class _InHand:
    """Requests as they are taken, and those without an answer."""

    def __init__(self, requests: Iterable[Request | None], held_back: list[Completion]) -> None:
        self._requests, self._held_back = requests, held_back
        self._asked: dict[_Name, list[Request]] = {}

    def __iter__(self) -> Iterator[Request | None]:
        for request in self._requests:
            if request is not None:
                self._asked.setdefault((request.row_key, request.sample_index), []).append(request)
            elif self._held_back and not self._asked:
                return  # whoever gives no more may wait for what is held back
            yield request

    def answered(self, completion: Completion) -> None:
        name = completion.row_key, completion.sample_index
        self._asked[name].pop(0)
        if not self._asked[name]:
            del self._asked[name]

    def requests(self) -> list[Request]:
        return list(chain.from_iterable(self._asked.values()))
