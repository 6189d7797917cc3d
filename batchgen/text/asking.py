"""What a row asks: its own sampling parameters, and its prompt with room for them."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from batchgen.errors import RowError
from batchgen.records import SamplingParams
from batchgen.row_sampling import with_own

_MOST = 128  # settings that are remembered: each may hold a schema


class AskingRow(Protocol):
    """What a row has beside its prompt."""

    @property
    def error(self) -> RowError | None: ...

    @property
    def sampling(self) -> str | None: ...


class RowParams:
    """From what rows say to their parameters. `check` is what the model has to say: see `text.structured`."""

    def __init__(self, job: SamplingParams, check: Callable[[SamplingParams], None] = lambda _: None) -> None:
        self.job = job
        self._check = check
        self._remembered = lru_cache(_MOST)(self._made)

    def of(self, sampling: str | None) -> SamplingParams:
        """Of a row that says `sampling`. Raises RowError "sampling"."""
        return self.job if sampling is None else self._remembered(sampling)

    def _made(self, sampling: str) -> SamplingParams:
        params = with_own(self.job, sampling)
        self._check(params)
        return params


class Asked(NamedTuple):
    """Token ids, or why a row cannot be asked; `sampling` is None where that is why."""

    sampling: str | None
    params: SamplingParams
    ids: tuple[int, ...] | RowError


def asked_by(row: AskingRow, params: RowParams, build: Callable[..., Sequence[int]]) -> Asked:
    """What `row` asks. `build`: PromptBuilder.build."""
    own, found = None, params.job
    try:
        found, own = params.of(row.sampling), row.sampling
        if row.error is not None:
            raise row.error
        return Asked(own, found, tuple(build(row) if own is None else build(row, found.max_tokens)))
    except RowError as error:
        return Asked(own, found, error)
