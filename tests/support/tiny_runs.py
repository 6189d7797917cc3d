"""Real runs of a tiny model, small enough for every test: all sampling features, chat, two samples, rows that fail."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from support.jobs import write_parquet
from support.tiny_models import tiny_config, tiny_tokenizer, tiny_weights, write_tiny, write_weights

from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from batchgen.io.hashing import ROW_HASH, MerkleTree, leaves, shard_digest
from batchgen.io.manifest import Tally, part_name, read_manifest, write_manifest
from batchgen.io.writer import ROW_KEYS, row_keys_json
from batchgen.job import run_job
from batchgen.models.weights import EMBEDDING
from batchgen.plan import Plan
from batchgen.verify.choice import Rows, all_rows
from batchgen.verify.ledger import Ledger
from batchgen.verify.prompts import InputPrompts, StoredPrompts
from batchgen.verify.replay import Replay, check_files, other_config, replay_rows

ROWS = 18
FAILING = ("k3", "k7")  # their prompts cannot be made
NOT_FINITE = "k5"  # its prompt holds the token that the model answers with NaN
_POISON = "~"

FEATURES = """\
version: 1
name: features
model: {path: model, max_model_len: 220}
numerics: portable/1
inputs: [{path: in.parquet, columns: {messages: messages}, passthrough: [label, meta]}]
row_key: {column: id}
sampling:
  n: 2
  temperature: 0.9
  top_p: 0.97
  top_k: 120
  min_p: 0.001
  presence_penalty: 0.3
  frequency_penalty: 0.4
  repetition_penalty: 1.1
  max_tokens: 14
  min_tokens: 3
  stop: [on, "e the"]
  stop_token_ids: [90]
  logit_bias: {70: 1.5, 71: -100}
  bad_words: [ing, e]
  logprobs: 3
seed: 18446744073709551615
"""
GREEDY = """\
version: 1
name: greedy
model: {path: model, max_model_len: 220}
numerics: portable/1
inputs: [{path: in.parquet, columns: {messages: messages}}]
row_key: {column: id}
sampling: {temperature: 0, max_tokens: 10, ignore_eos: true}
"""


def write_jobs(folder: Path) -> Path:
    """features.yaml and greedy.yaml, their input and their model, in `folder`."""
    write_tiny(folder / "model")
    write_weights(folder / "model", _poisoned(tiny_weights(tiny_config("llama"))))
    write_input(folder)
    (folder / "features.yaml").write_text(FEATURES, encoding="utf-8")
    (folder / "greedy.yaml").write_text(GREEDY, encoding="utf-8")
    return folder


def _poisoned(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Only one token has anything in the first channel, and there the first MLP overflows."""
    [token] = tiny_tokenizer().encode(_POISON).ids
    layer = "model.layers.0."
    weights[EMBEDDING][:, 0] = 0
    weights[EMBEDDING][token, 0] = 1
    weights[f"{layer}self_attn.o_proj.weight"][0] = 0
    for part in ("gate", "up"):
        weights[f"{layer}mlp.{part}_proj.weight"][0] = 0
        weights[f"{layer}mlp.{part}_proj.weight"][0, 0] = 1e30
    return weights


def write_input(folder: Path, **changes: Any) -> None:
    """in.parquet; `changes` replace the texts of rows."""
    texts: dict[str, Any] = {f"k{i}": f"Say {i}: " + "of the word " * (5 * i % 13) for i in range(ROWS)}
    texts |= {"k3": None, "k7": "long " * 300, NOT_FINITE: f"All {_POISON} well?"} | changes
    system = {"role": "system", "content": "You are of the few that answer in the same words for each one."}
    chats = [None if text is None else [system, {"role": "user", "content": text}] for text in texts.values()]
    write_parquet(
        folder / "in.parquet",
        id=list(texts),
        messages=chats,
        label=[["a", None, "ü"][i % 3] for i in range(len(texts))],
        meta=[{"score": i / 7, "tags": ["x"] * (i % 3)} for i in range(len(texts))],
    )


def make_run(folder: Path, out: Path, job: str = "features", **how: Any) -> JobReport:
    """Run a job of `write_jobs`; `how` goes into its RunConfig."""
    config = RunConfig(out, **({"threads": 1, "rows_per_shard": 5, "max_num_seqs": 8} | how))
    return run_job(folder / f"{job}.yaml", config)


def row_of(out: Path, row_key: str, sample_index: int = 0) -> tuple[int, int, dict[str, Any]]:
    """(shard, position in it, row)"""
    for shard in read_manifest(out).shards:
        for position, row in enumerate(pq.read_table(out / part_name(shard.index)).to_pylist()):
            if (row["row_key"], row["sample_index"]) == (row_key, sample_index):
                return shard.index, position, row
    raise KeyError(row_key)


def forge(out: Path, row_key: str, change: Callable[[dict[str, Any]], dict[str, Any]], sample_index: int = 0) -> None:
    """Change a sample of a row as someone would who knows the formats: every hash, digest, count and the root fit."""
    shard, position, row = row_of(out, row_key, sample_index)
    path = out / part_name(shard)
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[position] = row | change(row)
    table = pa.Table.from_pylist(rows, schema=table.schema)
    table = table.set_column(
        table.column_names.index(ROW_HASH),
        table.schema.field(ROW_HASH),
        pa.array([leaf.hex() for leaf in leaves(table)], pa.string()),
    )
    manifest = read_manifest(out)
    keys = row_keys_json(table["row_key"].to_pylist()[:: manifest.plan.n])
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {ROW_KEYS: keys}), path)
    forged: dict[str, Any] = {
        "digest": shard_digest(bytes.fromhex(leaf) for leaf in table[ROW_HASH].to_pylist()),
        "keys_digest": hashlib.sha256(keys).hexdigest(),
        "tally": Tally.of(table),
    }
    records = [replace(record, **forged) if record.index == shard else record for record in manifest.shards]
    tree = MerkleTree()
    for record in records:
        hashes = pq.read_table(out / part_name(record.index), columns=[ROW_HASH])[ROW_HASH].to_pylist()
        tree.add(record.start * manifest.plan.n, [bytes.fromhex(leaf) for leaf in hashes])
    root = tree.root(manifest.plan.rows * manifest.plan.n)
    write_manifest(out, replace(manifest.with_shards(records), root=root))


def edit_manifest(out: Path, **changes: Any) -> None:
    """Put values in the manifest; those of a mapping are added to it."""
    path = out / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        document[name] = document[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(document), encoding="utf-8")


def edit_fingerprint(out: Path, **parts: str) -> None:
    """Make the run one of another machine or input, as its own process would have written it: in every file."""
    edit_manifest(out, fingerprint=parts)
    manifest = read_manifest(out)
    plan, fingerprint = manifest.plan, manifest.fingerprint
    digest = Plan(fingerprint["job_fingerprint"], fingerprint["inputs_digest"], plan.rows, plan.n, plan.rows_per_shard)
    edit_manifest(out, plan={"digest": digest.digest})
    for shard in manifest.shards:
        table = pq.read_table(out / part_name(shard.index))
        metadata = table.schema.metadata | {
            f"batchgen.{part}".encode(): value.encode() for part, value in parts.items()
        }
        pq.write_table(table.replace_schema_metadata(metadata), out / part_name(shard.index))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replay(
    run: Path,
    choose: Callable[[Ledger], Rows] = lambda ledger: all_rows(ledger.manifest),
    *,
    from_input: bool = False,
    plant: Callable[[], None] = lambda: None,
    limit: int = 10,
    **config: Any,
) -> Replay:
    """What `batchgen replay` does; `plant` comes once the engine has started, which proves itself."""
    ledger = Ledger.open(run, lambda done, total: None)
    check_files(run)
    prompts = InputPrompts(ledger) if from_input else StoredPrompts()
    engine = ledger.start_engine(other_config(run, ledger.manifest.run_config, **config))
    plant()
    return replay_rows(ledger, engine, choose(ledger), prompts, limit)
