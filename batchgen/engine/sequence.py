"""One request on its way through the engine."""

import numpy as np
from numpy.typing import NDArray

from batchgen.engine.matcher import Matcher
from batchgen.engine.routes import Routes
from batchgen.engine.stop import StopChecker
from batchgen.records import Request


class Sequence:
    """The tokens of one request so far, how much of them the KV cache holds, and where.

    `token_ids` is the prompt, then the output; position p of the cache belongs to ``token_ids[p]``. The last output
    token is not computed until another one is wanted. Preemption sets `num_computed` to 0 and nothing else: the
    output is never drawn again, and no token scored again.

    A given continuation counts as prompt here, but for its last token, which is all that is left to "draw".
    """

    def __init__(self, request: Request, arrival: int, stop: StopChecker, matcher: Matcher | None = None) -> None:
        """`matcher` knows what the output must look like; None: anything."""
        self.request = request
        self.arrival = arrival  # 0, 1, 2, … in the order in which requests were read
        self.stop = stop
        self.matcher = matcher
        self.token_ids = [*request.prompt_token_ids, *(request.continuation or ())[:-1]]
        self.num_prompt = len(self.token_ids)
        first = 1 if request.params.prompt_logprobs is not None else len(request.prompt_token_ids)
        self.num_unscored = len(self.token_ids) - first  # of the given tokens whose logprobs are wanted, but the last
        self.num_computed = 0
        self.num_planned = 0  # tokens after those that the step that comes has already been given
        self.block_table: list[int] = []
        self.output_counts: dict[int, int] = {}  # output token id -> times
        self._seen: set[int] | None = None  # made when somebody first asks: it takes longer than all else here
        self.logprobs: list[float] = []
        self.top_ids: list[tuple[int, ...]] = []
        self.top_values: list[tuple[float, ...]] = []
        self.kept: list[tuple[int, ...]] = []  # of each draw, if it is filtered and they are wanted
        self.routes = Routes() if request.params.routed_experts else None
        # Of the prompt's tokens from the second on.
        self.prompt_logprobs: list[float] = []
        self.prompt_top_ids: list[tuple[int, ...]] = []
        self.prompt_top_values: list[tuple[float, ...]] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to run before the next one can be drawn: 1 in decoding, more in a prefill; never 0."""
        return len(self.token_ids) - self.num_computed

    @property
    def first_row(self) -> int:
        """The first position whose logits are still wanted: those of all later ones are, too."""
        return self.num_prompt - 1 - self.num_unscored if self.num_unscored else len(self.token_ids) - 1

    def num_scored_in(self, start: int, stop: int) -> int:
        """Of the positions ``start <= p < stop``, those that score the given token that follows them."""
        return max(0, min(stop, self.num_prompt - 1) - max(start, self.num_prompt - 1 - self.num_unscored))

    @property
    def seen_token_ids(self) -> set[int]:
        """Ids of prompt and output."""
        if self._seen is None:
            self._seen = set(self.token_ids)
        return self._seen

    @property
    def banned_token_ids_now(self) -> frozenset[int] | NDArray[np.int32]:
        """Ids that the next draw must not give, an array where a grammar bans most of them.

        Those that would end the sequence before `min_tokens`, the last id of each bad word whose other ids are
        the latest output ids (the prompt does not count), and those that the output's grammar does not allow.
        """
        banned = self.stop.ending_token_ids if self.num_output < self.request.params.min_tokens else frozenset()
        if self.request.bad_words_token_ids:
            words = self.request.bad_words_token_ids
            banned = banned.union(word[-1] for word in words if self._output_ends_with(word[:-1]))
        if self.matcher is None:
            return banned
        by_grammar = self.matcher.banned(self.stop.ending_token_ids)
        return np.union1d(by_grammar, np.array(list(banned), np.int32)) if banned else by_grammar

    def _output_ends_with(self, ids: tuple[int, ...]) -> bool:
        return len(ids) <= self.num_output and tuple(self.token_ids[self.num_tokens - len(ids) :]) == ids

    def append(self, token_id: int, logprob: float, top_ids: tuple[int, ...], top_values: tuple[float, ...]) -> None:
        """Add one output token with what was recorded of its draw."""
        self.token_ids.append(token_id)
        if self._seen is not None:
            self._seen.add(token_id)
        self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
        self._record(logprob, top_ids, top_values)

    def score(self, logprob: float, top_ids: tuple[int, ...], top_values: tuple[float, ...]) -> None:
        """What was found of the next given token."""
        place = self.num_prompt - self.num_unscored
        self.num_unscored -= 1
        if place >= len(self.request.prompt_token_ids):
            self._record(logprob, top_ids, top_values)
            return
        self.prompt_logprobs.append(logprob)
        self.prompt_top_ids.append(top_ids)
        self.prompt_top_values.append(top_values)

    def _record(self, logprob: float, top_ids: tuple[int, ...], top_values: tuple[float, ...]) -> None:
        self.logprobs.append(logprob)
        self.top_ids.append(top_ids)
        self.top_values.append(top_values)
