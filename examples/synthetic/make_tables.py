"""Build topics.parquet and personas.parquet, the two tables that jobs/synthetic.yaml crosses.

    python examples/synthetic/make_tables.py [FOLDER]

The rows were written for this project; the people are nobody in particular.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

TOPICS = {
    "nature": "tides, thunder, migrating birds, moss, earthquakes, snow, honey, rainbows, caves, coral reefs",
    "kitchen": "bread dough, boiling an egg, salt, lentils, a sharp knife, ripe bananas, rice, vinegar, soup, tea",
    "machines": "bicycles, door locks, refrigerators, zippers, lighthouses, clocks, bridges, pumps, lenses, magnets",
    "everyday": "queues, maps, laundry, moving house, a lost key, birthdays, shadows, umbrellas, libraries, stairs",
    "language": "riddles, nicknames, commas, accents, dictionaries, rhymes, thank-you letters, lists, jokes, signs",
    "numbers": "leap years, averages, fractions, prime numbers, dice, interest, calendars, units, percentages, zero",
}
PERSONAS = {
    "teacher": ("a patient primary school teacher", "plain"),
    "sailor": ("an old sailor who has seen every harbour", "blunt"),
    "nurse": ("a night nurse with little time", "brief"),
    "chef": ("a chef who measures everything", "exact"),
    "child": ("a curious seven-year-old", "playful"),
    "lawyer": ("a careful lawyer", "formal"),
    "gardener": ("a gardener who talks to plants", "warm"),
    "engineer": ("a bridge engineer", "dry"),
}


def build(folder: Path) -> tuple[int, int]:
    """Write both tables into `folder`; how many rows each has."""
    rows = [
        (f"{kind}-{at:02}", topic, kind)
        for kind, text in TOPICS.items()
        for at, topic in enumerate(text.split(", "), start=1)
    ]
    topics = pa.table({name: [row[at] for row in rows] for at, name in enumerate(("id", "topic", "kind"))})
    people = [(key, *value) for key, value in PERSONAS.items()]
    personas = pa.table({name: [row[at] for row in people] for at, name in enumerate(("key", "who", "tone"))})
    pq.write_table(topics, folder / "topics.parquet", compression="zstd")
    pq.write_table(personas, folder / "personas.parquet", compression="zstd")
    return len(topics), len(personas)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    print(f"{where}: %d topics, %d personas" % build(where))
