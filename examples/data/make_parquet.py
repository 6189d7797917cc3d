"""Build prompts.parquet from prompts.jsonl, the text that people read and edit.

    python examples/data/make_parquet.py [OUT]

The same text gives the same bytes under one version of pyarrow; each version writes its name into the footer.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("difficulty", pa.int8(), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
    ]
)


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The prompts of a JSONL file in its order. Raises ValueError for a line with other keys or an id seen before."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
        row = json.loads(line)
        if set(row) != set(SCHEMA.names):
            raise ValueError(f"{path.name} line {number}: keys {sorted(row)}, expected {sorted(SCHEMA.names)}")
        if row["id"] in seen:
            raise ValueError(f"{path.name} line {number}: id {row['id']!r} is taken")
        seen.add(row["id"])
        rows.append(row)
    return rows


def build(source: Path, target: Path) -> int:
    """Write the Parquet file and return its number of rows."""
    prompts = read_prompts(source)
    pq.write_table(pa.Table.from_pylist(prompts, schema=SCHEMA), target, compression="zstd", row_group_size=128)
    return len(prompts)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "prompts.parquet"
    print(f"{target}: {build(HERE / 'prompts.jsonl', target)} prompts")
