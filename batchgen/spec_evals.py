"""How the rows of a job are scored once they are made. Nothing of it changes a row, and no fingerprint covers it."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from batchgen.records import Problem
from batchgen.spec_section import Count, Section, Text, refuse

Scorer = Literal["exact", "regex", "json", "choice", "python"]

# What each scorer reads beside the row: keys that it needs, and keys that it may have.
_NEEDS: dict[str, tuple[str, ...]] = {
    "exact": ("answer",),
    "regex": ("pattern",),
    "json": ("answer",),
    "choice": ("choices", "answer"),
    "python": ("function",),
}
_MAY_HAVE: dict[str, tuple[str, ...]] = {
    "exact": ("extract", "ignore", "pass_at"),
    "regex": ("extract", "pass_at"),
    "json": ("extract", "pass_at"),
    "choice": ("per",),
    "python": ("extract", "answer", "pass_at"),
}


def _check_regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise PydanticCustomError("regex", "is no regular expression: {text}", {"text": str(error)}) from None
    return pattern


def _check_function(name: str) -> str:
    module, _, function = name.rpartition(":")
    if not module or not function.isidentifier():
        raise PydanticCustomError("function", "must be FILE.py:FUNCTION or package.module:FUNCTION")
    return name


Regex = Annotated[Text, AfterValidator(_check_regex)]


class EvalSpec(Section):
    """One way to score the rows."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Of the evaluation; its items go to evals/NAME.parquet in the run folder."""
    scorer: Scorer
    """exact: the text is the answer. regex: the text matches. json: both are the same JSON value. choice: the model
    gives the right one of several texts the greatest likelihood. python: a function says."""
    answer: Text | None = None
    """A passthrough column with the right answer; of choice the right text, or its place from 0 on."""
    extract: Regex | None = None
    """What of the text is looked at: the last match, or its first group if it has one. No match is a wrong answer."""
    ignore: tuple[Literal["case", "space", "punctuation"], ...] = ()
    """What exact does not look at, on either side; space is runs of it, and that at the ends."""
    pattern: Regex | None = None
    """Of regex: what must be found in the text."""
    choices: Text | None = None
    """Of choice: a passthrough column with a list of texts that go on the prompt."""
    per: Literal["text", "token", "byte"] = "text"
    """Of choice: whether the likelihood counts as it is, by token, or by byte of UTF-8."""
    function: Annotated[Text, AfterValidator(_check_function)] | None = None
    """Of python: FILE.py:FUNCTION, relative to the job file, or package.module:FUNCTION. It is called with the text and
    the row's passthrough columns, and gives true, false, or a number from 0 to 1."""
    pass_at: tuple[Count, ...] = ()
    """For each k: how likely one of k samples of a row is right; k is at most n."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        needed, given = _NEEDS[self.scorer], self.model_fields_set - {"name", "scorer"}
        known = {*needed, *_MAY_HAVE[self.scorer]}
        refuse(
            *(Problem(key, f"is required for scorer {self.scorer}") for key in needed if getattr(self, key) is None),
            *(Problem(key, f"means nothing to scorer {self.scorer}") for key in sorted(given - known)),
        )
        return self

    @property
    def columns(self) -> dict[str, str]:
        """The passthrough columns that it reads, by the key that names each."""
        named = {"answer": self.answer, "choices": self.choices}
        return {key: column for key, column in named.items() if column is not None}


def check_evals(evals: Sequence[EvalSpec], passthrough: Sequence[Sequence[str]], n: int) -> list[Problem]:
    """What single evals cannot say: columns of the rows, the number of their samples, names."""
    problems = []
    names = [spec.name for spec in evals]
    for at, spec in enumerate(evals):
        where = f"evals[{at}]"
        if spec.name in names[:at]:
            problems.append(Problem(f"{where}.name", f"{spec.name!r} is the name of an earlier one"))
        for key, column in spec.columns.items():
            if any(column not in columns for columns in passthrough):
                problems.append(Problem(f"{where}.{key}", f"{column!r} is not in the passthrough of every input"))
        if too_many := [k for k in spec.pass_at if k > n]:
            problems.append(Problem(f"{where}.pass_at", f"{too_many[0]} is more than sampling.n, which is {n}"))
    return problems
