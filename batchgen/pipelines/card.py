"""A finished run as a data set: README.md with the front matter that hubs read, and croissant.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchgen.errors import RunError
from batchgen.io.manifest import Manifest, part_name, read_manifest
from batchgen.io.row_rules import job_of
from batchgen.io.schema import COLUMN_TEXTS
from batchgen.io.writer import write_whole
from batchgen.pipelines.croissant import croissant
from batchgen.places import Place
from batchgen.row_sampling import FORMS

README, CROISSANT = "README.md", "croissant.json"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_MARK = "<!-- made by batchgen card -->"


def write_card(run: Place, license: str) -> tuple[Place, Place]:
    """Write both files into the folder of the finished run at `run`: the names of README.md and croissant.json.

    `license` is an SPDX name, or "other". Equal runs give equal files. No hash of a row is checked. Raises RunError for
    a run that is not finished, and for a README.md that is not a card of this program.
    """
    manifest = read_manifest(run)
    if not manifest.finished:
        raise RunError("is not finished", where=str(run), hint="batchgen run goes on with it")
    readme, metadata = run / README, run / CROISSANT
    if readme.exists() and _MARK not in readme.read_text(encoding="utf-8"):
        raise RunError("is there already, and is no card", where=str(readme), hint="move it away")
    described = croissant(run, manifest, license)
    write_whole(metadata, (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode())
    write_whole(readme, ("\n".join(_lines(manifest, license)) + "\n").encode())
    return readme, metadata


def _lines(manifest: Manifest, license: str) -> Iterator[str]:
    yield from _front_matter(manifest, license)
    name, counts = str(manifest.spec["name"]), manifest.counts
    yield from ("", _MARK, "", f"# {name}", "")
    yield "Made by a language model, not by people. Every row can be made again bit for bit from the job in job.yaml."
    yield ""
    yield from _table(
        {
            "rows": f"{counts.rows:,}: {counts.stop:,} stop, {counts.length:,} length, {counts.error:,} error",
            "prompt tokens": f"{counts.prompt_tokens:,}, a prompt counted once for each of its samples",
            "output tokens": f"{counts.output_tokens:,}",
            "made twice and compared": f"{manifest.probes:,} rows",
            "root": f"`{manifest.root}`",
        }
    )
    yield from ("", "## How it was made", "")
    spec = job_of(manifest)
    model = {"model": f"`{spec.model.path}`", "numerics": f"`{spec.numerics}`", "seed": str(spec.seed)}
    sampling = spec.resolved()["sampling"]
    own = {"structured_outputs" if name in FORMS else name for name in spec.own_sampling}
    for key in (*sampling, *(own - sampling.keys())):
        default = ", where a row does not say its own" if key in own else ""
        model[key] = f"`{json.dumps(sampling.get(key))}`{default}"
    yield from _table(model)
    yield from ("", "## Where its rows come from", "")
    yield from _lineage(manifest)
    yield from ("", "## Columns", "")
    yield from _table({f"`{name}`": COLUMN_TEXTS.get(name, "from the input") for name, _ in manifest.columns})
    yield from ("", "## Check it", "", "    batchgen verify . --root " + str(manifest.root), "")
    yield "checks every hash, and `batchgen replay .` makes rows again. What they are a function of:"
    yield ""
    yield from _table({part: f"`{value}`" for part, value in manifest.fingerprint.items()})


def _front_matter(manifest: Manifest, license: str) -> Iterator[str]:
    rows = manifest.counts.rows
    size = next((label for limit, label in _SIZES if rows < limit), "n>1M")
    yield "---"
    yield f"pretty_name: {json.dumps(manifest.spec['name'])}"
    yield f"license: {json.dumps(license)}"
    yield "task_categories: [text-generation]"
    yield "tags: [synthetic, batchgen]"
    yield f"size_categories: [{json.dumps(size)}]"
    yield "configs:"
    yield "  - config_name: default"
    yield f"    data_files: [{{split: train, path: {json.dumps(str(Path(part_name(0)).parent) + '/*.parquet')}}}]"
    yield "---"


def _lineage(manifest: Manifest) -> Iterator[str]:
    yield "| file | rows taken | SHA-256 | made by the run with the root |"
    yield "|---|---|---|---|"
    for file in manifest.inputs:
        root = f"`{file.run_root}`" if file.run_root else ""
        yield f"| {_cell(file.path)} | {file.rows:,} | `{file.sha256}` | {root} |"
    yield ""
    yield "`row_key` names the input row, `sample_index` the sample of it; `row_hash` is a hash of all else in a row."
    carried: list[str] = [name for name, _ in manifest.columns if name.startswith("source_")]
    if carried:
        yield f"Of the row of the run before: {', '.join(f'`{name}`' for name in carried)}."


def _table(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name, value in facts.items():
        yield f"| {name} | {_cell(str(value))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
