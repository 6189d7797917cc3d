"""A look at the first rows of a run."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunError
from batchgen.io.manifest import Manifest, part_name


def first_rows(run: Path, manifest: Manifest, count: int) -> list[dict[str, Any]]:
    """The first `count` committed rows in input order, or as many as there are, as Python values by column.

    Reads no more of each file than it needs and checks no hash. Raises RunError when a file is missing or torn.
    """
    rows: list[dict[str, Any]] = []
    for shard in manifest.shards:
        if len(rows) == count:
            break
        path = run / part_name(shard.index)
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(count - len(rows)):
                    rows += batch.slice(0, count - len(rows)).to_pylist()
                    if len(rows) == count:
                        break
        except (OSError, pa.ArrowException) as error:
            hint = f"batchgen verify {run} says what is wrong"
            raise RunError(f"cannot be read: {str(error).splitlines()[0]}", where=str(path), hint=hint) from error
    return rows
