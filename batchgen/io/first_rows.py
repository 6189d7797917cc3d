"""A look at the first rows of a run."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from batchgen.io.manifest import Manifest
from batchgen.io.row_batches import row_batches
from batchgen.places import Place


def first_rows(run: Place, manifest: Manifest, count: int) -> list[dict[str, Any]]:
    """The first `count` committed rows in input order, or as many as there are, as Python values by column.

    Reads no more of each file than it needs and checks no hash. Raises RunError when a file is missing or torn.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for shard in manifest.shards:
            for batch in row_batches(run, shard, count):
                yield from batch.to_pylist()

    return list(islice(rows(), count))
