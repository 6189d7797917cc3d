"""What a run alone tells about how to make it again, and everything that can have changed since."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import rfc8785
from support.tiny_runs import FAILING, NOT_FINITE, edit_manifest

from batchgen.errors import BatchgenError, EngineError, ModelError, RunError, VerifyError
from batchgen.executor.base import Engine
from batchgen.executor.run_config import RunConfig
from batchgen.io.manifest import part_name, read_manifest
from batchgen.io.schema import SCHEMA_VERSION
from batchgen.spec import load_spec
from batchgen.verify.ledger import Ledger


def open_(run: Path, job_dir: Path | None = None) -> Ledger:
    return Ledger.open(run, lambda done, total: None, job_dir)


def start(run: Path) -> Engine:
    return open_(run).start_engine(RunConfig(run, threads=1, max_num_seqs=2))


def test_it_holds_what_the_job_said(made: Path) -> None:
    ledger = open_(made / "runs/features")
    assert ledger.spec.resolved() == load_spec(made / "features.yaml").resolved()
    assert ledger.params == ledger.spec.sampling
    assert ledger.model.max_model_len == 220
    assert ledger.bad_words_token_ids
    assert ledger.job_dir.resolve() == made.resolve()


def test_a_request_is_the_row_s(made: Path) -> None:
    ledger = open_(made / "runs/features")
    rows = [row for shard in ledger.manifest.shards for row in ledger.table(shard).to_pylist()]
    assert len(rows) == 36
    with_prompt = [row for row in rows if row["prompt_token_ids"] is not None]
    assert len(with_prompt) == 36 - 2 * len(FAILING)
    assert {row["row_key"] for row in with_prompt if row["status"] == "error"} >= {NOT_FINITE}
    for row in with_prompt:
        request = ledger.request(row)
        assert (request.row_key, request.sample_index, request.seed) == (
            row["row_key"],
            row["sample_index"],
            row["seed"],
        )
        assert request.prompt_token_ids == tuple(row["prompt_token_ids"])
    assert ledger.request(with_prompt[0] | {"seed": 1}).seed == with_prompt[0]["seed"], "never read"


def test_the_samples_of_a_shard(made: Path, folder: Path) -> None:
    """Also of a file without its list of keys."""
    ledger, copy = open_(made / "runs/features"), open_(folder / "runs/features")
    shard = ledger.manifest.shards[1]
    path = folder / "runs/features" / part_name(shard.index)
    pq.write_table(pq.read_table(path).replace_schema_metadata(), path)
    expected = [(f"k{row}", index) for row in range(5, 10) for index in range(2)]
    assert ledger.samples(shard) == copy.samples(shard) == expected


def test_an_engine_of_the_run(made: Path) -> None:
    fingerprint = read_manifest(made / "runs/features").fingerprint
    engine = start(made / "runs/features")
    assert engine.fingerprint.items() <= fingerprint.items()


def fails(kind: type[BatchgenError], run: Path, *texts: str) -> BatchgenError:
    with pytest.raises(kind) as caught:
        start(run)
    assert type(caught.value) is kind
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def test_moved_together_with_its_job(folder: Path) -> None:
    start(folder / "runs/features")


def test_moved_without_its_job(folder: Path, made: Path, tmp_path: Path) -> None:
    shutil.move(folder / "runs/features", tmp_path / "alone")
    fails(ModelError, tmp_path / "alone", "the model is gone", "'model'", "--job-dir")
    open_(tmp_path / "alone", made)


def test_the_model_is_gone(folder: Path) -> None:
    shutil.rmtree(folder / "model")
    fails(ModelError, folder / "runs/features", "copy/runs/features/../../model: the model is gone")


def test_a_damaged_model_is_not_called_gone(folder: Path) -> None:
    (folder / "model/config.json").write_text("{")
    assert "gone" not in str(fails(ModelError, folder / "runs/features", "config.json"))


def test_one_bit_of_the_weights(folder: Path) -> None:
    path = folder / "model/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    then = read_manifest(folder / "runs/features").fingerprint["weights_digest"]
    fails(ModelError, folder / "runs/features", "the weights changed since the run: digest ", f"{then} then")
    open_(folder / "runs/features")  # which needs no weights


def test_the_tokenizer(folder: Path) -> None:
    path = folder / "model/tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    definition["model"]["merges"].pop()
    path.write_text(json.dumps(definition), encoding="utf-8")
    then = read_manifest(folder / "runs/features").fingerprint["tokenizer_digest"]
    fails(ModelError, folder / "runs/features", "the tokenizer changed since the run", f"{then} then")


def test_the_limits(folder: Path) -> None:
    path = folder / "model/config.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"eos_token_id": 2', '"eos_token_id": [2, 5]'))
    fails(ModelError, folder / "runs/features", "the limits changed since the run", '"eos_token_ids": [2, 5]} now')


@pytest.mark.parametrize(("part", "words"), [("kernel_set", "the kernels have"), ("canary", "the canary prompt")])
def test_another_machine_or_build(folder: Path, part: str, words: str) -> None:
    edit_manifest(folder / "runs/features", fingerprint={part: "f" * 64})
    fails(EngineError, folder / "runs/features", words, f"{'f' * 64} in the run")


def test_a_part_that_is_not_known_here(folder: Path) -> None:
    edit_manifest(folder / "runs/features", fingerprint={"gpu": "sm90"})
    fails(EngineError, folder / "runs/features", "gpu None here, and sm90 in the run")


def test_unknown_numerics(folder: Path) -> None:
    respec(folder / "runs/features", numerics="portable/9")
    fails(EngineError, folder / "runs/features", "'portable/9' is not known here", "use batchgen 0.")


def test_a_spec_of_another_version(folder: Path) -> None:
    respec(folder / "runs/features", colour="red")
    fails(RunError, folder / "runs/features", "manifest.json: spec.colour: unknown key", "use batchgen 0.")


def respec(run: Path, **changes: Any) -> None:
    """As a batchgen that knows these keys would have written it."""
    spec = {**read_manifest(run).spec, **changes}
    edit_manifest(run, spec=changes, fingerprint={"job_fingerprint": hashlib.sha256(rfc8785.dumps(spec)).hexdigest()})


def test_job_yaml_was_edited(folder: Path) -> None:
    with (folder / "runs/features/job.yaml").open("a") as file:
        file.write("# a note\n")
    fails(VerifyError, folder / "runs/features", "job.yaml: was edited")
    (folder / "runs/features/job.yaml").unlink()
    fails(VerifyError, folder / "runs/features", "job.yaml: cannot be read")


def test_the_spec_in_the_manifest_was_edited(folder: Path) -> None:
    edit_manifest(folder / "runs/features", spec={"seed": "7"})
    fails(VerifyError, folder / "runs/features", "job_fingerprint is not that of its spec", "batchgen verify")


def test_the_columns_were_edited(folder: Path) -> None:
    columns = [column for column in read_manifest(folder / "runs/features").columns if column[0] != "logprobs"]
    edit_manifest(folder / "runs/features", columns=columns)
    fails(VerifyError, folder / "runs/features", "columns are not those of its spec")


def test_a_newer_schema(folder: Path) -> None:
    edit_manifest(folder / "runs/features", schema_version=SCHEMA_VERSION + 1)
    fails(RunError, folder / "runs/features", f"has schema version {SCHEMA_VERSION + 1}")


def test_no_run(tmp_path: Path) -> None:
    fails(RunError, tmp_path, "is not a run folder")


def test_an_edited_row(folder: Path) -> None:
    ledger = open_(folder / "runs/features")
    path = folder / "runs/features" / part_name(0)
    path.write_bytes(path.read_bytes().replace(b"k0", b"K0"))
    with pytest.raises(VerifyError, match=r"rows/part-00000\.parquet.*\n.*batchgen verify"):
        ledger.table(ledger.manifest.shards[0])
