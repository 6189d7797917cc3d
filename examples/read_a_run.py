"""What a run holds: how long the answers are, and how different the samples of one prompt.

    python examples/read_a_run.py runs/quickstart

Reads the Parquet files alone; any tool could.
"""

import sys
from pathlib import Path

import duckdb
import pyarrow.dataset as ds

LENGTHS = """
SELECT {group} AS category,
       count(*) AS samples,
       round(avg(num_prompt_tokens)) AS prompt_tokens,
       round(avg(num_output_tokens)) AS output_tokens,
       round(100 * avg((finish_reason = 'length')::INT)) AS cut_off_percent
FROM samples WHERE status = 'ok'
GROUP BY ALL ORDER BY category
"""

# Of the tokens that two samples of a prompt use, the share that both use: 1 for equal answers, 0 for nothing in common.
DIVERSITY = """
WITH pairs AS (
    SELECT a.row_key, a.text = b.text AS equal, list_distinct(a.token_ids) AS x, list_distinct(b.token_ids) AS y
    FROM samples a JOIN samples b ON a.row_key = b.row_key AND a.sample_index < b.sample_index
    WHERE a.status = 'ok' AND b.status = 'ok'
)
SELECT count(DISTINCT row_key) AS prompts,
       count(*) AS pairs,
       sum(equal::INT) AS equal_pairs,
       round(avg(len(list_intersect(x, y)) / greatest(1, len(list_distinct(list_concat(x, y))))), 3) AS shared_tokens
FROM pairs
"""


def main(run: Path) -> None:
    samples = ds.dataset(run / "rows", format="parquet")
    group = "category" if "category" in samples.schema.names else "'all'"
    with duckdb.connect() as database:
        database.register("samples", samples)
        print("Lengths")
        database.sql(LENGTHS.format(group=group)).show(max_rows=50)
        print("Samples of one prompt, two by two")
        database.sql(DIVERSITY).show()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
