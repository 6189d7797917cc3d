"""Which rank gets the next request: by the work that is expected of each. No bit of an answer depends on it."""

from collections import Counter, deque

from batchgen.records import Completion, Request

_Id = tuple[int, str, int]  # rank, row_key, sample_index


class Spread:
    """The requests that are with the ranks. Work is counted in tokens: of prompts, and at most of answers."""

    def __init__(self, size: int, room: int) -> None:
        """A rank has at most `room` requests at once."""
        self.work = [0] * size  # that each rank has before it
        self._room = room
        self._held = Counter[int]()
        self._asked: dict[_Id, deque[int]] = {}  # the work of each request of that name
        self._last: tuple[tuple[int, ...], int] = (), 0  # the prompt that was given out last, and to whom

    @property
    def num_held(self) -> int:
        """Requests that are not answered."""
        return self._held.total()

    @property
    def names(self) -> list[tuple[str, int]]:
        """(row_key, sample_index) of the requests that are not answered."""
        return [(key, index) for (_, key, index), works in self._asked.items() for _ in works]

    def has_room(self) -> bool:
        """Whether some rank can have another request."""
        return any(self._held[rank] < self._room for rank in range(len(self.work)))

    def give(self, request: Request) -> int:
        """The rank for `request`: the one with the least work before it, the lowest of several.

        Samples of a prompt stay together, for the prefix cache then has their prompt, as long as their rank is not
        ahead of the least by more than that saves, or by a quarter of what a rank has on the average.
        """
        prompt, most = request.prompt_token_ids, request.params.max_tokens
        ranks = [rank for rank in range(len(self.work)) if self._held[rank] < self._room]
        rank = min(ranks, key=lambda rank: self.work[rank])
        known, last = self._last
        slack = max(len(prompt), sum(self.work) // (4 * len(self.work)))
        if known == prompt and last in ranks and self.work[last] + most <= self.work[rank] + slack:
            rank = last
        work = len(prompt) + most
        self.work[rank] += work
        self._held[rank] += 1
        self._asked.setdefault((rank, request.row_key, request.sample_index), deque()).append(work)
        self._last = prompt, rank
        return rank

    def answered(self, rank: int, completion: Completion) -> None:
        """A rank has answered one of its requests."""
        name = rank, completion.row_key, completion.sample_index
        works = self._asked[name]
        self.work[rank] -= works.popleft()
        self._held[rank] -= 1
        if not works:
            del self._asked[name]
