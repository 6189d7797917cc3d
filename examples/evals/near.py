"""A scorer of one's own: how near is the number in the text to the right one?"""

import re
from collections.abc import Mapping
from typing import Any


def near(text: str, row: Mapping[str, Any]) -> float:
    """1 for the answer, 0.5 for one that is at most two away, else 0."""
    found = re.search(r"-?\d+", text)
    distance = abs(int(found[0]) - int(row["answer"])) if found else 3
    return 1.0 if distance == 0 else 0.5 if distance <= 2 else 0.0
