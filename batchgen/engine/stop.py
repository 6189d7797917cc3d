"""When a sequence ends, and what of it is kept.

Token ids.  A stop id or an end-of-sequence id (unless `ignore_eos`) ends the sequence and stays in its token ids; its
text is left out unless `include_stop_str_in_output`, and then `skip_special_tokens` still rules. The reason is None for
an end-of-sequence id. Before `min_tokens` tokens the sampler cannot draw these ids.

Stop strings.  They are looked for in the text, whatever its cut into tokens, and only where the match is completed by
a token after the first `min_tokens`. The match that is completed first in the text wins; of two that end at the
same character, the longer. The text ends before the match, or after it with `include_stop_str_in_output`. Token ids
and logprobs end with the first token at which the decoder had given out all of that text, so that a token is kept whole
if any of its text is, and tokens past the end of the text are dropped.

Length.  `max_tokens` tokens are kept whole; bytes of an unfinished character become U+FFFD, as in any decoding.
That last text is searched for stop strings too: no text that is returned holds one past `min_tokens`.
"""

from bisect import bisect_left
from typing import NamedTuple, Protocol

from batchgen.records import FinishReason, SamplingParams


class Decoder(Protocol):
    """Token ids to text, one at a time."""

    def push(self, token_id: int) -> str:
        """The text that this token settles: it can no longer change, and ends on a whole character."""

    def finish(self) -> str:
        """The text that was still held back."""


class Ending(NamedTuple):
    """How a sequence ended: its text, and how many of its tokens are kept."""

    finish_reason: FinishReason
    stop_reason: int | str | None
    text: str
    num_tokens: int


class _Match(NamedTuple):
    """A stop string in the text; the least is the one that counts."""

    end: int
    start: int
    stop: str


class StopChecker:
    """Watches the output of one sequence, token by token. The work is linear in the length of the text."""

    def __init__(self, params: SamplingParams, eos_token_ids: frozenset[int], decoder: Decoder) -> None:
        self._params = params
        self._eos_token_ids = frozenset[int]() if params.ignore_eos else eos_token_ids
        self.ending_token_ids = self._eos_token_ids | frozenset(params.stop_token_ids)
        self._decoder = decoder
        self._pieces: list[str] = []
        self._length = 0  # characters in all pieces
        self._ends = [0]  # _ends[k]: length of the text that the first k tokens settled
        self._num_tokens = 0
        self._tail = ""  # end of the text, where a match can begin that is not complete yet
        self._tail_size = max(map(len, params.stop), default=1) - 1

    def push(self, token_id: int) -> Ending | None:
        """Take the next output token; an Ending if it is the last. Not to be called after that."""
        self._num_tokens += 1
        ends_here = token_id in self.ending_token_ids
        silent = ends_here and not self._params.include_stop_str_in_output
        match = self._add("" if silent else self._decoder.push(token_id))
        self._ends.append(self._length)
        if match:
            return self._cut(match)
        if ends_here:
            return self._finish("stop", None if token_id in self._eos_token_ids else token_id)
        if self._num_tokens == self._params.max_tokens:
            return self._finish("length", None)
        return None

    def _add(self, text: str) -> _Match | None:
        """Append `text`; the match that counts among those that end inside it."""
        window, old = self._tail + text, len(self._tail)
        origin = self._length - old
        self._pieces.append(text)
        self._length += len(text)
        self._tail = window[max(len(window) - self._tail_size, 0) :]
        if self._num_tokens <= self._params.min_tokens:
            return None
        matches = [
            _Match(origin + at + len(stop), origin + at, stop)
            for stop in self._params.stop
            if (at := window.find(stop, max(old - len(stop) + 1, 0))) >= 0
        ]
        return min(matches, default=None)

    def _cut(self, match: _Match) -> Ending:
        length = match.end if self._params.include_stop_str_in_output else match.start
        num_tokens = min(bisect_left(self._ends, length), self._num_tokens)
        return Ending("stop", match.stop, "".join(self._pieces)[:length], num_tokens)

    def _finish(self, finish_reason: FinishReason, stop_reason: int | None) -> Ending:
        if match := self._add(self._decoder.finish()):
            return self._cut(match)
        return Ending(finish_reason, stop_reason, "".join(self._pieces), self._num_tokens)
