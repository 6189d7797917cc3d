"""What a row said of its sampling cannot be edited: with its hashes verify sees it, and beyond them replay."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bent_engine import bend
from support.own_jobs import KINDS, ROWS, write_own_jobs
from support.tiny_jobs import make
from support.tiny_runs import forge, replay

from batchgen.errors import RunError, VerifyError
from batchgen.executor.probes import Probes
from batchgen.exports.export import export_run
from batchgen.io.hashing import params_hash
from batchgen.io.manifest import part_name, read_manifest
from batchgen.io.row_rules import job_of
from batchgen.pipelines.card import write_card
from batchgen.records import Completion
from batchgen.report.summary import summarise
from batchgen.row_sampling import with_own
from batchgen.verify.diff import diff_runs
from batchgen.verify.explain import explain_run
from batchgen.verify.integrity import verify_run
from batchgen.verify.ledger import Ledger

HOT = '{"temperature":90,"top_p":1}'  # k2 said less


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_own_jobs(tmp_path_factory.mktemp("own"))
    make(folder, folder / "runs/whole", "own", rows_per_shard=ROWS)
    return folder / "runs/whole"


@pytest.fixture
def run(whole: Path) -> Path:
    """A copy, beside which the job and its input are."""
    shutil.rmtree(copy := whole.with_name("copy"), ignore_errors=True)
    return Path(shutil.copytree(whole, copy))


def details(run: Path) -> list[str]:
    return [finding.detail for finding in verify_run(run).findings]


def hash_of(run: Path, text: str) -> str:
    return params_hash(with_own(job_of(read_manifest(run)).sampling, text))


@pytest.mark.parametrize("from_input", [False, True])
def test_all_rows_can_be_made_again(whole: Path, from_input: bool) -> None:
    found = replay(whole, from_input=from_input)
    assert (found.exact, found.bad, found.ok) == (2 * ROWS, 0, True)


def test_an_edited_cell(run: Path) -> None:
    path = run / part_name(0)
    table = pq.read_table(path)
    values = table["sampling"].to_pylist()
    assert [json.loads(text or "{}").keys() for text in values[::2]] == [
        KINDS[i % len(KINDS)].keys() for i in range(ROWS)
    ]
    values[4] = HOT
    at = table.column_names.index("sampling")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(values)), path)
    assert any("and row_hash is" in detail for detail in details(run))


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (HOT, "its params_hash is not that of the job's sampling with its own"),
        (None, "its params_hash is not that of the job's sampling"),
        ('{"top_p":0.5,"temperature":0.3}', "its sampling is none that its job lets a row say"),
        ('{"temperature":-1}', "its sampling is none that its job lets a row say"),
        ('{"n":1}', "its sampling is none that its job lets a row say"),
    ],
)
def test_an_edited_cell_with_all_its_hashes(run: Path, sampling: str | None, rule: str) -> None:
    forge(run, "k2", lambda row: {"sampling": sampling})
    assert details(run) == [rule, "says another sampling than the sample before it"]


def test_with_its_params_hash_too(run: Path) -> None:
    """Both samples must be forged alike; then only those who make the rows again can tell."""
    changes = {"sampling": HOT, "params_hash": hash_of(run, HOT)}
    forge(run, "k2", lambda row: changes)
    assert details(run) == ["says another sampling than the sample before it"]
    forge(run, "k2", lambda row: changes, 1)
    assert verify_run(run).ok
    found = replay(run, limit=1)
    assert (found.bad, found.exact) == (2, 2 * ROWS - 2)
    told = replay(run, from_input=True, limit=1)
    assert (told.bad, told.mismatches[0].column) == (2, "sampling")


def test_a_sampling_that_its_model_cannot_compile(run: Path) -> None:
    bad = '{"json_schema":"{\\"type\\":\\"integre\\"}"}'
    for sample_index in (0, 1):
        forge(run, "k2", lambda row: {"sampling": bad, "params_hash": hash_of(run, bad)}, sample_index)
    assert verify_run(run).ok
    fault = r"row 'k2' sample [01]: its sampling cannot be: json_schema: failed to compile"
    with pytest.raises(VerifyError, match=fault):
        replay(run)


def test_what_tells_of_a_run_as_a_whole_does_not_speak_for_its_rows(run: Path, tmp_path: Path) -> None:
    readme, _ = write_card(run, "other")
    text = readme.read_text(encoding="utf-8")
    assert "| temperature | `0.9`, where a row does not say its own |" in text
    assert "| n | `2` |" in text
    assert "| structured_outputs | `null`, where a row does not say its own |" in text
    assert (summary := summarise(run)).cut_at == "max_tokens"
    assert not summary.greedy
    with pytest.raises(RunError, match="have temperatures of their own"):
        export_run(run, tmp_path / "out.parquet", "verl")


def test_the_evidence_of_a_probe_says_it_too(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is in no file, and explain makes it again as it was asked."""
    plain = Probes.answer

    def bent(self: Probes, second: Completion) -> int | None:
        return plain(self, bend(second, "logprob") if second.row_key == "k2" else second)

    with monkeypatch.context() as patch:
        patch.setattr(Probes, "answer", bent)
        with pytest.raises(VerifyError, match=r"row 'k2' sample [01] was made twice and differs"):
            make(whole.parent.parent, tmp_path / "run", "own", rows_per_shard=1, probe=1, max_num_seqs=1)
    [evidence] = (json.loads(path.read_bytes()) for path in (tmp_path / "run/evidence").iterdir())
    assert json.loads(evidence["sampling"]) == KINDS[2]
    ledger = Ledger.open(tmp_path / "run", lambda done, total: None, whole.parent.parent)
    found = explain_run(ledger, "k2", evidence["sample_index"])
    assert [side.reproduced for side in found.sides] == [True, True]


def test_diff_names_them(whole: Path) -> None:
    """Other rows of the second run say something else; the file that they say it in is the cause."""
    folder = whole.parent.parent
    table = pq.read_table(folder / "in.parquet")
    hotter = pa.array([value and value + 0.1 for value in table["its_temperature"].to_pylist()], pa.float64())
    at = table.column_names.index("its_temperature")
    other = folder / "other"
    other.mkdir()
    pq.write_table(table.set_column(at, "its_temperature", hotter), other / "in.parquet")
    (other / "model").symlink_to(folder / "model")
    (other / "own.yaml").write_text((folder / "own.yaml").read_text())
    make(other, other / "run", "own")
    found = diff_runs(whole, other / "run")
    kinds = {category.kind: category for category in found.categories}
    changed = sum(bool(KINDS[i % len(KINDS)].get("temperature")) for i in range(ROWS)) * 2
    assert kinds["parameters"].rows == changed
    assert kinds["parameters"].evidence == {"params_hash": changed}
    [cause] = kinds["parameters"].cause.differences
    assert cause.key == "file in.parquet"
