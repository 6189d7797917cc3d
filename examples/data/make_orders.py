"""Write orders.parquet: short messages about orders, and what is in each, for jobs/extract.yaml.

    python examples/data/make_orders.py [OUT]

Names, goods and figures are drawn from the lists below by a hash of the row's number: the rows are the same everywhere.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROWS = 300

FIRST = ("Ada", "Bruno", "Chloé", "Dmitri", "Elif", "Farid", "Grace", "Hana", "Iván", "Jonas", "Keiko", "Lena")
LAST = ("Novak", "Okafor", "Lindqvist", "Moreau", "Sato", "Haddad", "Byrne", "Costa", "Kovács", "Weber")
ITEMS = ("lamp", "chair", "kettle", "notebook", "bicycle", "tent", "teapot", "umbrella")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
FORMS = (
    "Hello, this is {name}. I would like to order {quantity} {items}. Could they be here by {day}? Thank you!",
    "Order from {name}: {quantity} x {item}, wanted on {day}.",
    "{name} rang this morning and asked for {quantity} {items}, to be delivered on {day} at the latest.",
    "Dear shop, please send {quantity} {items} to my office on {day}.\n\nKind regards\n{name}",
    "Note for the warehouse: {day}, {quantity} {items}, customer {name}, pays by card.",
    "We have sold {quantity} {items}! {name} picks them up on {day}.",
)
SYSTEM = "Copy from the message: the customer's name, the item in the singular, how many, and the day. Answer in JSON."

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("messages", MESSAGES, nullable=False),
        pa.field("customer", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("quantity", pa.int32(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
    ]
)


def one_of(choices: Sequence[Any], row: int, what: str) -> Any:
    """The same choice for a row and a purpose, whenever it is asked."""
    digest = hashlib.sha256(f"orders {row} {what}".encode()).digest()
    return choices[int.from_bytes(digest[:8], "big") % len(choices)]


def order(row: int) -> dict[str, Any]:
    """One row: the message, and what is in it."""
    name = f"{one_of(FIRST, row, 'first')} {one_of(LAST, row, 'last')}"
    item, quantity, day = one_of(ITEMS, row, "item"), one_of(range(2, 50), row, "quantity"), one_of(DAYS, row, "day")
    text = one_of(FORMS, row, "form").format(name=name, item=item, items=f"{item}s", quantity=quantity, day=day)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    known = {"customer": name, "item": item, "quantity": quantity, "day": day}
    return {"id": f"order-{row:03}", "messages": messages, **known}


def build(target: Path) -> int:
    """Write the Parquet file and return its number of rows."""
    table = pa.Table.from_pylist([order(row) for row in range(ROWS)], schema=SCHEMA)
    pq.write_table(table, target, compression="zstd")
    return int(table.num_rows)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "orders.parquet"
    print(f"{target}: {build(target)} orders")
