"""Write arithmetic.parquet: 320 arithmetic problems from a seeded generator, eighty of each kind.

No text comes from anywhere else: the problems are this program's own, and it gives the same ones each time.

    python examples/evals/make_arithmetic.py
"""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261130
EACH = 80  # problems of a kind
NAMES = ("Ada", "Ben", "Chloe", "Dev", "Emil", "Fay", "Gus", "Hana", "Ivo", "June")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")

Problem = tuple[str, int]


def addition(chance: random.Random) -> Problem:
    a, b = chance.randint(2, 49), chance.randint(2, 49)
    return f"What is {a} + {b}?", a + b


def subtraction(chance: random.Random) -> Problem:
    b = chance.randint(2, 40)
    a = b + chance.randint(1, 40)
    return f"What is {a} - {b}?", a - b


def multiplication(chance: random.Random) -> Problem:
    a, b = chance.randint(2, 9), chance.randint(2, 12)
    return f"What is {a} * {b}?", a * b


def story(chance: random.Random) -> Problem:
    """Two steps: some are given away, or come in boxes, and then there are more."""
    (one, two), thing = chance.sample(NAMES, 2), chance.choice(THINGS)
    more = chance.randint(2, 9)
    if chance.random() < 0.5:
        first = chance.randint(6, 30)
        away = chance.randint(1, first - 2)
        text = f"{one} has {first} {thing}, gives {away} of them to {two}, and then finds {more} more."
        return f"{text} How many {thing} does {one} have now?", first - away + more
    boxes, inside = chance.randint(2, 6), chance.randint(2, 9)
    text = f"{one} has {boxes} boxes with {inside} {thing} in each, and {two} brings {more} more {thing}."
    return f"{text} How many {thing} are there?", boxes * inside + more


def choices(answer: int, chance: random.Random) -> tuple[list[str], int]:
    """Four answers, the right one among them, and where it stands."""
    near = sorted({max(0, answer + step) for step in (-10, -2, -1, 1, 2, 10)} - {answer})
    shown = [answer, *chance.sample(near, 3)]
    chance.shuffle(shown)
    return [f" {value}" for value in shown], shown.index(answer)


def problems() -> pa.Table:
    chance = random.Random(SEED)
    rows: list[dict[str, object]] = []
    for kind in (addition, subtraction, multiplication, story):
        seen: set[str] = set()
        while len(seen) < EACH:
            question, answer = kind(chance)
            if question in seen:
                continue
            shown, right = choices(answer, chance)
            name = f"{kind.__name__}-{len(seen):02d}"
            prompt = f"Question: {question}\nAnswer:"
            rows.append(
                {"id": name, "kind": kind.__name__, "question": question, "prompt": prompt, "answer": str(answer)}
                | {"choices": shown, "right": right}
            )
            seen.add(question)
    return pa.Table.from_pylist(rows)


if __name__ == "__main__":
    out = Path(__file__).parent / "arithmetic.parquet"
    table = problems()
    pq.write_table(table, out)
    print(f"{out}: {table.num_rows} problems, such as {table['question'][-1]}")
