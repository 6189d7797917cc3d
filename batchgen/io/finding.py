"""Finding: one thing that is wrong with a run, as verify names it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["missing", "doubled", "changed", "foreign", "moved", "torn", "stray", "manifest", "unfinished"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: with a row (`row_key` and `sample_index`), a file, or the manifest."""

    kind: Kind
    file: str  # below the run folder
    detail: str
    row_key: str | None = None
    sample_index: int | None = None

    def __str__(self) -> str:
        row = "" if self.row_key is None else f" row {self.row_key!r} sample {self.sample_index}"
        return f"{self.kind}: {self.file}{row}: {self.detail}"
