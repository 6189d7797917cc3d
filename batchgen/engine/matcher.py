"""What an answer must look like, as the engine sees it."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Watches the output of one sequence, and says which tokens must not come next."""

    def accept(self, token_id: int) -> None:
        """Take the next output token. Raises RowError when no text goes on from there."""

    def banned(self, ending: frozenset[int]) -> NDArray[np.int32]:
        """Ids that must not come next, ascending. `ending`: ids that end a text, which may once it is whole."""
