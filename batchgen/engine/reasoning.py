"""What a model thought before it answered, by the two texts that mark it (sampling.reasoning).

A text is split where it begins with the first mark, or where the prompt ends with it, white space aside; then the
thought goes to the first of the second marks, and the answer is all after it. So, of the marks START and END,

    text of the tokens = [START if the prompt does not end with it] + reasoning + END + text

to the character. Without END, which is what a cut by max_tokens leaves, all is reasoning and the text is empty. What
begins otherwise is an answer as a whole and has no reasoning; later marks are text.
"""

from typing import Protocol

from batchgen.records import Request

_SPACE = 8  # tokens of white space after the mark in a prompt


class Decoder(Protocol):
    """Token ids to text, one at a time."""

    def push(self, token_id: int) -> str:
        """The text that this token settles."""

    def finish(self) -> str:
        """The text that was still held back."""


def split_reasoning(request: Request, text: str, decoder: Decoder) -> tuple[str | None, str]:
    """The reasoning in `text`, the output of `request`, and the answer. `decoder` leaves out no special token."""
    assert request.params.reasoning is not None
    start, end = request.params.reasoning
    if not _ends_with(request.prompt_token_ids, start, decoder):
        if not text.startswith(start):
            return None, text
        text = text[len(start) :]
    reasoning, _, answer = text.partition(end)
    return reasoning, answer


def _ends_with(prompt: tuple[int, ...], mark: str, decoder: Decoder) -> bool:
    ids = prompt[-len(mark.encode()) - _SPACE :]
    return "".join([*map(decoder.push, ids), decoder.finish()]).rstrip().endswith(mark.rstrip())
