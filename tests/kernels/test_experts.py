"""The experts of a MoE layer: each pair's row is that of its slot and row alone, whatever else is asked.

Guards against what grouping may do to a sum: experts with no token or one, tiles that hold rows of several sequences,
a group that is cut in two, an order of pairs. Nothing but every number of tokens finds the size at which it does.
"""

from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.errors import EngineError
from batchgen.kernels import PackedExperts, Pairs, cpu, golden, reference
from batchgen.kernels.cpu.native import library
from batchgen.kernels.packing import pack_experts, unpack

SETS = library().instruction_sets()
AMX = pytest.mark.skipif(not library().has_amx(), reason="this processor has no AMX")
Experts = tuple[PackedExperts, PackedExperts]


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Whatever a test chose, the next one starts from the widest set and one thread."""
    yield
    library().use(SETS[-1])
    library().set_threads(1)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_experts(slots: int, H: int, inner: int, *, native: bool = False) -> Experts:
    gate_up, down = randn(slots, 2 * inner, H, seed=1), randn(slots, H, inner, seed=2)
    return (
        pack_experts((gate_up / H**0.5).to(torch.bfloat16), native=native),
        pack_experts((down / inner**0.5).to(torch.bfloat16), native=native),
    )


def some_pairs(T: int, k: int, slots: int) -> Pairs:
    """All pairs of T rows, k slots each, of which the last slot is never one and slot 0 is one of one row only."""
    chosen = torch.stack([torch.randperm(slots - 2, generator=torch.Generator().manual_seed(t))[:k] for t in range(T)])
    chosen = chosen + 1
    chosen[T // 2, 0] = 0
    rows = torch.arange(T, dtype=torch.int32).repeat_interleave(k)
    return Pairs(rows, chosen.reshape(-1).to(torch.int32))


def alone(x: torch.Tensor, pairs: Pairs, experts: Experts) -> torch.Tensor:
    """Each pair in a call of its own."""
    one = [Pairs(pairs.rows[p : p + 1], pairs.slots[p : p + 1]) for p in range(len(pairs.rows))]
    return torch.cat([kernels.experts(x, pair, *experts) for pair in one])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize(("T", "H", "inner"), [(1, 16, 32), (3, 48, 32), (9, 80, 64), (15, 32, 288)])
def test_equals_the_twin(isa: str, T: int, H: int, inner: int) -> None:
    library().use(isa)
    x, experts, pairs = randn(T, H).to(torch.bfloat16), some_experts(7, H, inner), some_pairs(T, 3, 7)
    assert_bitwise(kernels.experts(x, pairs, *experts), reference.experts(x, pairs, *experts))


@pytest.mark.parametrize("isa", SETS)
def test_a_pair_is_the_same_in_any_number_of_tokens(isa: str) -> None:
    """Every number of tokens up to 70, first ones and last ones, against each pair alone; several K-blocks."""
    library().use(isa)
    T, k = 70, 3
    x, experts, pairs = randn(T, 272).to(torch.bfloat16), some_experts(6, 272, 32), some_pairs(T, k, 6)
    expected = alone(x, pairs, experts)
    for M in range(T + 1):
        first = Pairs(pairs.rows[: M * k], pairs.slots[: M * k])
        assert_bitwise(kernels.experts(x[:M], first, *experts), expected[: M * k], f"first {M} tokens")
        at = (T - M) * k
        last = Pairs(pairs.rows[at:] - (T - M), pairs.slots[at:])
        assert_bitwise(kernels.experts(x[T - M :].clone(), last, *experts), expected[at:], f"last {M} tokens")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=AMX)])
def test_the_order_of_pairs_and_their_number_cannot_be_seen(native: bool) -> None:
    """Groups of one slot from 1 to 300 rows, beside others; each row several times; pairs shuffled."""
    x, experts = randn(80, 64).to(torch.bfloat16), some_experts(5, 64, 64, native=native)
    every = Pairs(
        torch.arange(80, dtype=torch.int32).repeat(5), torch.arange(5, dtype=torch.int32).repeat_interleave(80)
    )
    expected = alone(x, every, experts)
    random = torch.Generator().manual_seed(3)
    for size in (1, 2, 13, 31, 32, 33, 64, 143, 145, 289, 300, 2100):
        crowd = torch.randint(2 * 80, 3 * 80, (size,), generator=random)  # all of slot 2
        chosen = torch.cat([crowd, torch.randint(0, 400, (50,), generator=random)])
        chosen = chosen[torch.randperm(len(chosen), generator=random)]
        pairs = Pairs(every.rows[chosen], every.slots[chosen])
        assert_bitwise(kernels.experts(x, pairs, *experts), expected[chosen], f"{size} pairs of one slot")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=AMX)])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_cannot_be_seen(native: bool, threads: int) -> None:
    x, experts, pairs = randn(40, 96).to(torch.bfloat16), some_experts(9, 96, 160, native=native), some_pairs(40, 4, 9)
    expected = kernels.experts(x, pairs, *experts)
    library().set_threads(threads)
    for _ in range(10):
        assert_bitwise(kernels.experts(x, pairs, *experts), expected, f"{threads} threads")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=AMX)])
def test_an_expert_is_a_gated_mlp(native: bool) -> None:
    """The bits of the two ops that a dense layer has, on the same row."""
    x, experts, pairs = randn(30, 64).to(torch.bfloat16), some_experts(4, 64, 96, native=native), some_pairs(30, 2, 4)
    y = kernels.experts(x, pairs, *experts)
    for slot in range(4):
        mine = pairs.slots == slot
        gated = kernels.linear_silu_mul(x[pairs.rows[mine].long()], experts[0].of(slot))
        assert_bitwise(y[mine], kernels.linear(gated, experts[1].of(slot)), f"slot {slot}")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=AMX)])
def test_nothing_to_do(native: bool) -> None:
    experts, none = some_experts(3, 32, 32, native=native), torch.empty(0, dtype=torch.int32)
    for rows in (0, 5):
        y = kernels.experts(torch.zeros(rows, 32, dtype=torch.bfloat16), Pairs(none, none), *experts)
        assert y.shape == (0, 32)
        assert y.dtype == torch.float32


def test_what_is_packed() -> None:
    weights = randn(3, 40, 6).to(torch.bfloat16)
    packed = pack_experts(weights)
    assert (packed.data.shape, packed.slots, packed.rows, packed.columns) == ((3, 2, 3, 32, 2), 3, 40, 6)
    for slot in range(3):
        assert_bitwise(unpack(packed.of(slot)), weights[slot])


def test_wrong_operands_are_refused() -> None:
    x, (gate_up, down) = torch.zeros(2, 32, dtype=torch.bfloat16), some_experts(3, 32, 32)
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(EngineError, match="do not fit rows of 32"):
        kernels.experts(x, Pairs(one, one), some_experts(3, 64, 32)[0], down)
    with pytest.raises(EngineError, match="do not fit"):
        kernels.experts(x, Pairs(one, one), gate_up, some_experts(2, 32, 32)[1])
    with pytest.raises(EngineError, match="int32"):
        kernels.experts(x, Pairs(one.long(), one), gate_up, down)
    with pytest.raises(EngineError, match="width of an expert is 16"):
        kernels.experts(x, Pairs(one, one), *some_experts(3, 32, 16))
    with pytest.raises(EngineError, match="no kernels for meta"):
        kernels.experts(x.to("meta"), Pairs(one, one), gate_up, down)


@pytest.mark.parametrize("isa", SETS)
def test_golden_hash(isa: str) -> None:
    """A change of any bit of a MoE layer's ops is a new version of the profile."""
    library().use(isa)
    assert golden.experts_digest() == golden.GOLDEN_EXPERTS["portable/1"]


@AMX
def test_golden_hash_of_the_matrix_unit() -> None:
    assert golden.experts_digest(native=True) == golden.GOLDEN_EXPERTS["native-amx/1"]


def test_a_machine_of_other_bits_is_refused_for_a_model_with_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.combine
    monkeypatch.setattr(cpu, "combine", lambda *args: right(*args).nextafter(torch.tensor(torch.inf)))
    golden.check_profile("portable/1")
    with pytest.raises(EngineError, match="do not compute portable/1"):
        golden.check_profile("portable/1", experts=True)


def test_counter_a_product_by_slot_is_caught() -> None:
    """The sweep has power: torch's product of each slot's rows, whose order follows their number, fails it."""
    T, k = 70, 3
    x, (gate_up, down), pairs = randn(T, 272).to(torch.bfloat16), some_experts(6, 272, 32), some_pairs(70, k, 6)
    weights = [(unpack(gate_up.of(s)).float(), unpack(down.of(s)).float()) for s in range(6)]

    def grouped(pairs: Pairs) -> torch.Tensor:
        y = torch.empty(len(pairs.rows), 272)
        for slot in range(6):
            mine = pairs.slots == slot
            gate, up = (x[pairs.rows[mine].long()].float() @ weights[slot][0].T).chunk(2, dim=-1)
            y[mine] = (torch.nn.functional.silu(gate) * up).to(torch.bfloat16).float() @ weights[slot][1].T
        return y

    whole = grouped(pairs)
    parts = [grouped(Pairs(pairs.rows[: M * k], pairs.slots[: M * k])) for M in range(1, T, 6)]
    assert any(not torch.equal(part, whole[: len(part)]) for part in parts)
