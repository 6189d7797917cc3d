"""Change one bit of one answer in a run, as a faulty disk or a helpful hand might, to see what notices.

cp -r runs/quickstart runs/flipped
python examples/flip_a_bit.py runs/flipped
batchgen verify runs/flipped
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def main(run: Path) -> None:
    """Flip the lowest bit of the last token of the first answer that has one."""
    path = min((run / "rows").glob("part-*.parquet"))
    table = pq.read_table(path)
    answers = table["token_ids"].to_pylist()
    row = next(at for at, ids in enumerate(answers) if ids)
    answers[row][-1] ^= 1
    at = table.schema.get_field_index("token_ids")
    field = table.schema.field(at)
    pq.write_table(table.set_column(at, field, [pa.array(answers, field.type)]), path)
    key, index = table["row_key"][row].as_py(), table["sample_index"][row].as_py()
    print(f"{path}: row {key!r} sample {index}: its last token is another now")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
