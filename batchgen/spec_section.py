"""What the sections of a job file are made of: strict, frozen, and every fault under its own key."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from batchgen.records import Problem

JSON_INT_MAX = 2**53 - 1  # RFC 8785: above it, a JSON number is no longer exact

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=JSON_INT_MAX)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Section(BaseModel):
    """A mapping of a job file."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def refuse(*problems: Problem) -> None:
    """Inside a validator: report each problem under its own key."""
    if problems:
        raise PydanticCustomError("problems", "{text}", {"text": problems[0].message, "problems": problems})
