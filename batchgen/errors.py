"""The errors that batchgen raises, and the exit code of each.

    BatchgenError            1   a fault of our own, or one with no better name
    ├── SpecError            4   the job file: unknown key, wrong type, unsupported value
    ├── InputError           5   the input files: missing, torn, a column that is not there, duplicate keys
    ├── ModelError           6   the model: missing shard, wrong digest, unknown architecture
    ├── RunError             7   the run folder: another job's, not writable, disk full
    ├── VerifyError          8   a finished run whose bytes do not match its manifest
    ├── EngineError          9   the engine cannot start or go on: memory, self-test
    ├── Interrupted        130   the user asked to stop; what is committed is valid
    └── RowError            --   one row failed; it becomes a row of the output, never an exit

0 means that every row is ok, 3 (`EXIT_ERROR_ROWS`) that the job finished and some rows hold errors; click keeps 2 for
wrong usage.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

EXIT_OK = 0
EXIT_ERROR_ROWS = 3


class BatchgenError(Exception):
    """What is wrong, where it is, and what to do about it.

    `message` says what; `where` names the file, row or field (``jobs/a.yaml: sampling.top_p``);
    `hint` says what to do. str() joins the three.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, where, hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class SpecError(BatchgenError):
    exit_code = 4


class InputError(BatchgenError):
    exit_code = 5


class ModelError(BatchgenError):
    exit_code = 6


class RunError(BatchgenError):
    exit_code = 7


class VerifyError(BatchgenError):
    exit_code = 8


class EngineError(BatchgenError):
    exit_code = 9


class Interrupted(BatchgenError):
    exit_code = 130


class RowError(BatchgenError):
    """One row cannot be answered. `code` is one of `ROW_ERROR_CODES`.

    The message lands in the output row and is hashed, so it names nothing that differs
    between two runs: no path, no time, no address.
    """

    def __init__(self, code: str, message: str) -> None:
        assert code in ROW_ERROR_CODES, code
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["RowError"], tuple[str, str]]:
        """Rows travel to replicas with their errors."""
        return type(self), (self.code, self.message)


ROW_ERROR_CODES = frozenset(
    {
        "prompt_null",  # the prompt, or the messages, or a content is null
        "prompt_empty",  # "", an empty list, or no token after encoding
        "prompt_type",  # a role that is not text, a content part that is not text, an id outside the vocabulary
        "prompt_encoding",  # lone surrogates or bytes that are not UTF-8
        "sampling",  # what the row says of its own sampling cannot be
        "prompt_overlong",  # prompt tokens + max_tokens do not fit in max_model_len
        "control_token",  # content holds a control token and the spec says "error"
        "template",  # the chat template refused the messages
        "non_finite_logits",  # the model gave NaN or infinity for this row
        "grammar",  # no token is left that a grammar allows, or the grammar grew too large for this row
        "kept_tokens",  # the filters kept more ids at one draw than sampling.kept_tokens allows
        "replica_died",  # the processes of the engine died with it, and again when it was alone
    }
)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt `name`: the nearest known one, else the whole list."""
    names = sorted(known)
    match = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {match[0]!r}?" if match else f"known: {', '.join(names)}"
