"""explain finds the op of a planted fault, and says who is at fault when this machine has none."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cache_faults import one_token_short, without_the_parent
from support.deep_jobs import JOB, LAYER, LAYERS, PROMPT, ROWS, TARGET, make, write_deep
from support.jobs import write_parquet
from support.kernel_faults import EIGHT, OPS, plant
from support.tiny_models import tiny_config, tiny_weights, write_tiny, write_weights
from support.tiny_runs import edit_fingerprint, forge

from batchgen.errors import InputError, VerifyError
from batchgen.executor.start import open_weights
from batchgen.kernels import cpu
from batchgen.kernels.cpu.native import library
from batchgen.models.packed import PackedWeights
from batchgen.verify.explain import Explanation, explain_run, explain_runs
from batchgen.verify.ledger import Ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_deep(tmp_path_factory.mktemp("deep"))
    make(folder, "healthy")
    return folder


def ledger(run: Path) -> Ledger:
    return Ledger.open(run, lambda done, total: None)


def explain(a: Path, b: Path | None = None, row_key: str = TARGET) -> Explanation:
    return explain_run(ledger(a), row_key) if b is None else explain_runs(ledger(a), ledger(b), row_key)


@pytest.fixture(scope="module")
def weights(folder: Path) -> PackedWeights:
    found = open_weights(folder / "model")
    assert isinstance(found, PackedWeights)
    return found


@pytest.fixture(scope="module")
def num_prompt(folder: Path) -> int:
    row = ledger(folder / "runs/healthy").table(ledger(folder / "runs/healthy").manifest.shards[0]).to_pylist()[4]
    assert row["row_key"] == TARGET
    return len(row["prompt_token_ids"])


def test_without_a_fault_nothing_is_found(folder: Path) -> None:
    found = explain(folder / "runs/healthy")
    assert not found.differs
    assert found.conclusion == "this machine gives the stored row, bit for bit, in company and alone"
    assert (found.culprit, found.made, found.stored) == (None, None, None)
    a, b = found.sides
    assert (a.company, a.reproduced, a.how["max_num_seqs"], a.how["prefix_cache"]) == (ROWS - 1, True, ROWS, True)
    assert (b.company, b.reproduced, b.how["max_num_seqs"], b.how["prefix_cache"]) == (0, True, 1, False)


@pytest.mark.parametrize("role", OPS)
def test_a_fault_in_one_op_of_layer_7_is_found_there(
    folder: Path, weights: PackedWeights, num_prompt: int, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """In steps of eight rows, which are decoding steps in company: at the first output token that is computed."""
    op, tensor = OPS[role]
    wrong = plant(monkeypatch, op, weights[f"layers.{LAYER}.{tensor}"], reorder=op == "linear")
    found = explain(folder / "runs/healthy", row_key="k7")
    assert wrong
    assert found.differs
    assert found.culprit is not None
    assert (found.culprit.layer, found.culprit.role, found.culprit.op) == (LAYER, role, op)
    assert (found.culprit.position, found.culprit.output_token) == (num_prompt, 0)
    assert found.culprit.sides == ("recorded", "alone")
    first = found.culprit.elements[0]
    assert first.output == ("q" if op == "rotary_store" else "out")
    assert first.a_bits != first.b_bits
    if op != "linear":
        assert first.differing == 1
        assert first.index[-1] == {"rotary_store": 31, "attention": 127, "linear_silu_mul": 319}.get(op, 127)
    where = f"layer 7, {role}, at position {num_prompt}"
    reads = "keys and values that were written with equal bits," if op == "attention" else "equal bits"
    assert found.conclusion == f"the computations part in {where}: it reads {reads} and gives others"


def test_a_fault_in_the_sampler(folder: Path, num_prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws for eight rows at the prompts' ends already."""
    plant(monkeypatch, "sample", None)
    found = explain(folder / "runs/healthy", row_key="k7")
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("sampler", num_prompt - 1)
    assert [elements.output for elements in found.culprit.elements] == ["logprob"]
    assert found.made is not None
    assert found.made.columns == ("logprobs",), "no token moved"
    assert [side.reproduced for side in found.sides] == [False, True]


def test_a_fault_in_keys_is_found_where_they_are_written(
    folder: Path, weights: PackedWeights, num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the attention that reads them, at this and later positions."""
    right, qkv, linear = cpu.rotary_store, weights[f"layers.{LAYER}.qkv"], cpu.linear
    last: list[torch.Tensor] = []

    def remember(x: torch.Tensor, packed: Any, *rest: Any) -> torch.Tensor:
        last[:] = [packed.data]
        return linear(x, packed, *rest)

    def twin(*args: Any) -> torch.Tensor:
        q, (places, cache) = right(*args), args[-2:]
        if len(q) == EIGHT and torch.equal(last[0], qkv):
            slot = int(places[1][-1])
            cache[0].view(torch.int16)[slot // 32, 0, 0, slot % 32, 0] ^= 1
        return q

    monkeypatch.setattr(cpu, "linear", remember)
    monkeypatch.setattr(cpu, "rotary_store", twin)
    found = explain(folder / "runs/healthy", row_key="k7")
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("layer 7, rotary and cache", num_prompt)
    [elements] = found.culprit.elements
    assert (elements.output, elements.differing, elements.index) == ("k", 1, (0, 0))


def test_a_fault_that_moves_nothing_that_is_stored_is_still_found(
    folder: Path, weights: PackedWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, without logprobs: the row is the same, and the machine is not well."""
    run = make(
        folder, "greedy", JOB.replace("temperature: 0.9, top_p: 0.95", "temperature: 0").replace(", logprobs: 2", "")
    )
    plant(monkeypatch, "linear_silu_mul", weights[f"layers.{LAYER}.gate_up"])
    found = explain(run, row_key="k7")
    assert (found.made, [side.reproduced for side in found.sides]) == (None, [True, True])
    assert found.differs
    assert found.culprit is not None
    assert found.culprit.label == "layer 7, gate and up linear"


def test_two_runs_one_of_them_with_the_fault_explained_by_a_healthy_machine(
    folder: Path, weights: PackedWeights
) -> None:
    with pytest.MonkeyPatch.context() as faulty:
        plant(faulty, "linear", weights[f"layers.{LAYER}.down"], reorder=True)
        b = make(folder, "faulty")
    a = folder / "runs/healthy"
    found = explain(a, b)
    assert found.stored is not None
    assert found.differs
    assert (found.culprit, found.made) == (None, None)
    assert [side.reproduced for side in found.sides] == [True, False]
    assert found.conclusion == (
        "this machine gives A's row on both sides: B was made by another build or a faulty machine"
    )
    assert explain(b, a).conclusion.startswith("this machine gives B's row on both sides: A was made")
    assert explain(b).conclusion == (
        "this machine gives one row in company and alone, and not the stored one: "
        "the run was made by another build or a faulty machine"
    )


def test_two_runs_of_a_machine_with_the_fault(
    folder: Path, weights: PackedWeights, num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One made eight rows at once, the other one by one: each is reproduced, and the op is named."""
    plant(monkeypatch, "linear", weights[f"layers.{LAYER}.o"], reorder=True)
    a, b = make(folder, "eight"), make(folder, "one", max_num_seqs=1)
    found = explain(a, b, "k7")
    assert [(side.reproduced, side.how["max_num_seqs"]) for side in found.sides] == [(True, ROWS), (True, 1)]
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("layer 7, attention output linear", num_prompt)
    assert found.stored is not None
    if found.stored.column == "token_ids":
        assert found.stored.draw is not None


def test_a_machine_at_fault_does_not_accuse_another(
    folder: Path, weights: PackedWeights, num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides are made alike, and both wrongly."""
    a = folder / "runs/healthy"
    plant(monkeypatch, "linear_silu_mul", weights[f"layers.{LAYER}.gate_up"])
    b = make(folder, "wrong")
    found = explain(a, b, "k7")
    assert [(side.name, side.reproduced) for side in found.sides] == [("A", False), ("B", True), ("alone", True)]
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("layer 7, gate and up linear", num_prompt)
    assert found.culprit.sides == ("A", "alone")
    assert found.conclusion.startswith("this machine itself is at fault; the computations part in layer 7, gate and up")


@pytest.mark.parametrize("faulty", [True, False])
@pytest.mark.parametrize(
    ("fault", "prompts", "position"),
    [
        (without_the_parent, ("~x" + "~" * 80, "~" * 82), 1),
        (one_token_short, ("~" * 31 + "x" + "~" * 50, "~" * 31 + "y" + "~" * 50), 31),
    ],
)
def test_a_cache_that_shares_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, prompts: tuple[str, str], position: int, faulty: bool
) -> None:
    """Of what the row was given nothing was computed for it: the attention that reads it is not to blame."""
    write_tiny(tmp_path / "model")
    write_parquet(tmp_path / "in.parquet", id=["k0", "k1"], prompt=[*prompts], label=[0, 1])
    with pytest.MonkeyPatch.context() as patch:
        if faulty:
            fault(patch)
        run = make(tmp_path, "shared", JOB.replace("max_model_len: 100", "max_model_len: 160"))
    fault(monkeypatch)
    found = explain(run, row_key="k1")
    assert [side.reproduced for side in found.sides] == [faulty, not faulty]
    assert found.culprit is not None
    assert (found.culprit.op, found.culprit.position, found.culprit.sides) == ("prefix_cache", position, ("recorded",))
    assert found.conclusion.endswith("it gave the row a block that was computed from other tokens")


def test_a_row_that_is_alone_in_its_file_has_the_company_of_other_files(
    folder: Path, weights: PackedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(folder, "a-row-a-file", rows_per_shard=1)
    assert [side.company for side in explain(run).sides] == [ROWS - 1, 0]
    plant(monkeypatch, "linear_silu_mul", weights[f"layers.{LAYER}.gate_up"])
    found = explain(run, row_key="k7")
    assert found.culprit is not None
    assert found.culprit.label == "layer 7, gate and up linear"


def test_no_company_is_claimed_where_there_is_none(folder: Path) -> None:
    run = make(folder, "lonely", JOB.replace("columns:", "limit: 1, columns:"))
    found = explain(run, row_key="k0")
    assert [side.company for side in found.sides] == [0, 0]
    assert "in company" not in found.conclusion


def test_a_machine_with_another_canary_does_not_blame_the_run(folder: Path, tmp_path: Path) -> None:
    """It cannot know which of the two is at fault."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    run = copy / "runs/healthy"
    forge(run, "k4", lambda row: {"text": "another"})
    assert explain(run).conclusion.endswith("the run was made by another build or a faulty machine")
    edit_fingerprint(run, canary="0" * 64)
    found = explain(run)
    assert found.conclusion.endswith("the canary of this machine is not that of the run, so one of the two is at fault")


def failed_probe(folder: Path, weights: PackedWeights, name: str) -> tuple[Path, str]:
    """A run that its probe ended before a file was committed, and the row that was probed."""
    with pytest.MonkeyPatch.context() as faulty:
        plant(faulty, "linear_silu_mul", weights[f"layers.{LAYER}.gate_up"])
        with pytest.raises(VerifyError, match="was made twice and differs"):
            make(folder, name, probe=1.0)
    [evidence] = (folder / "runs" / name / "evidence").iterdir()
    return folder / "runs" / name, json.loads(evidence.read_text())["row_key"]


def test_a_row_whose_probe_failed(
    folder: Path, weights: PackedWeights, num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no file: its two answers are in the evidence, and its company in the input."""
    run, key = failed_probe(folder, weights, "probed")
    assert ledger(run).manifest.shards == ()
    healthy = explain(run, row_key=key)
    assert healthy.differs
    assert healthy.stored is not None
    assert healthy.stored.column == "logprobs"
    assert [(side.reproduced, side.is_second, side.company) for side in healthy.sides] == [
        (False, True, ROWS - 1),
        (False, True, 0),
    ]
    assert healthy.conclusion == (
        "of the two answers, this machine now gives the second, in company and alone: the fault did not come back"
    )
    plant(monkeypatch, "linear_silu_mul", weights[f"layers.{LAYER}.gate_up"])
    found = explain(run, row_key=key)
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("layer 7, gate and up linear", num_prompt)
    with pytest.raises(InputError, match="there is no row 'k1' yet"):
        explain(run, row_key="k1")


def test_evidence_that_cannot_be_read(folder: Path, weights: PackedWeights) -> None:
    run, key = failed_probe(folder, weights, "torn")
    [evidence] = (run / "evidence").iterdir()
    whole = json.loads(evidence.read_text())
    evidence.write_text(json.dumps(whole | {"first": whole["first"] | {"logprobs": ["xyz"]}}))
    with pytest.raises(VerifyError, match=r"evidence/probe-001.json: ValueError"):
        explain(run, row_key=key)
    evidence.write_text(json.dumps(whole | {"fingerprint": {}}))
    with pytest.raises(InputError, match="there is no row"):  # it is of another job
        explain(run, row_key=key)


def test_equal_rows(folder: Path) -> None:
    found = explain(folder / "runs/healthy", make(folder, "again", max_num_seqs=3))
    assert not found.differs
    assert found.conclusion == "the row is the same in both runs, bit for bit"
    assert found.sides == ()


def test_other_weights_are_named(folder: Path, num_prompt: int) -> None:
    config = tiny_config("llama", num_hidden_layers=LAYERS)
    changed = tiny_weights(config)
    changed["model.layers.7.mlp.down_proj.weight"][3, 5] += 1
    write_tiny(folder / "other", num_hidden_layers=LAYERS)
    write_weights(folder / "other", changed)
    b = make(folder, "other-weights", JOB.replace("path: model", "path: other"))
    found = explain(folder / "runs/healthy", b)
    assert found.weights == "layers.7.down"
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("layer 7, down linear", 0)
    assert found.conclusion.startswith(
        "the weights differ, first in layers.7.down; the computations part in layer 7, down"
    )
    assert "weights_digest" in {fact.key for fact in found.facts}
    assert [side.reproduced for side in found.sides] == [True, True]


@pytest.mark.parametrize(
    ("old", "new", "fact", "conclusion"),
    [
        ("temperature: 0.9", "temperature: 0.8", "sampling.temperature", "their sampling parameters differ"),
        ("seed: 3", "seed: 4", "seed", "their seed differ"),
    ],
)
def test_other_questions_are_not_computed(folder: Path, old: str, new: str, fact: str, conclusion: str) -> None:
    b = make(folder, fact, JOB.replace(old, new))
    found = explain(folder / "runs/healthy", b)
    assert found.differs
    assert conclusion in found.conclusion
    assert fact in {difference.key for difference in found.facts}
    assert found.sides == ()


def test_logprobs_of_another_mode_part_in_the_sampler(folder: Path, num_prompt: int) -> None:
    b = make(folder, "processed", JOB + "logprobs_mode: processed\n")
    found = explain(folder / "runs/healthy", b)
    assert "logprobs_mode" in {difference.key for difference in found.facts}
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.position) == ("sampler", num_prompt - 1)


@pytest.mark.skipif(not library().has_amx(), reason="this processor has no AMX")
def test_profiles_are_not_compared(folder: Path) -> None:
    b = make(folder, "native", JOB.replace("portable/1", "native-amx/1"))
    found = explain(folder / "runs/healthy", b)
    assert found.conclusion == "the numerics profile is portable/1 in A and native-amx/1 in B: each has bits of its own"
    assert found.sides == ()


def test_what_is_only_carried(folder: Path) -> None:
    write_parquet(
        folder / "labels.parquet",
        id=[f"k{i}" for i in range(ROWS)],
        prompt=[PROMPT.format(i) for i in range(ROWS)],
        label=[10 * i for i in range(ROWS)],
    )
    b = make(folder, "labels", JOB.replace("in.parquet", "labels.parquet"))
    found = explain(folder / "runs/healthy", b)
    assert found.conclusion == "the answers are the same; what differs is carried from the input: label"


def test_rows_without_a_prompt(folder: Path) -> None:
    found = explain(folder / "runs/healthy", row_key="none")
    assert (found.differs, found.sides) == (False, ())
    assert found.conclusion == "the row has no prompt: nothing of it was computed"


def test_a_row_that_is_not_there(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no row 'k99'"):
        explain(folder / "runs/healthy", row_key="k99")
    with pytest.raises(InputError, match="there is no sample 1"):
        explain_run(ledger(folder / "runs/healthy"), TARGET, 1)
