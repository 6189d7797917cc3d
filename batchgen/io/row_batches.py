"""The rows of a shard's file, a few at a time, for those who look at them and check no hash."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.errors import RunError
from batchgen.io.manifest import ShardRecord, part_name
from batchgen.io.parquet_file import open_parquet_file
from batchgen.io.schema import as_written
from batchgen.places import Place

_ANSWER, _FAILURE = ("text", "token_ids"), ("error_code", "error_message")


def row_batches(run: Place, shard: ShardRecord, size: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """At most `size` rows at a time, in order; of `columns`, or all. Any writer's Parquet has the same types here.

    Raises RunError when the file is missing or torn, or holds what no row can.
    """
    path, hint = run / part_name(shard.index), f"batchgen verify {run} says what is wrong"
    try:
        with open_parquet_file(path) as file:
            if lacking := set(columns or ()) - set(file.schema_arrow.names):
                raise RunError(f"lacks the column {min(lacking)}", where=str(path), hint=hint)
            for batch in file.iter_batches(size, columns=columns):
                rows = as_written(pa.Table.from_batches([batch]))
                if odd := _half_answered(rows):
                    raise RunError(f"has rows whose {odd} does not go with their status", where=str(path), hint=hint)
                yield rows
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RunError(f"cannot be read: {str(error).splitlines()[0]}", where=str(path), hint=hint) from error


def _half_answered(rows: pa.Table) -> str | None:
    """A column that is null where it must not be, or the other way round."""
    if "status" not in rows.column_names:
        return None
    failed = pc.equal(rows["status"], "error")
    for names, absent in ((_ANSWER, failed), (_FAILURE, pc.invert(failed))):
        for name in names:
            if name in rows.column_names and not pc.is_null(rows[name]).equals(absent):
                return name
    return None
