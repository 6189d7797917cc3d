"""Linears on the tensor cores: near their twin, and a row's bits follow from the row alone at every M."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from batchgen.errors import EngineError
from batchgen.kernels.reference import native as twin
from batchgen.kernels.triton import linear, linear_silu_mul, prove, silu_mul, tuning
from batchgen.kernels.triton.linear import run_linear, run_linear_silu_mul
from batchgen.kernels.triton.proof import bits, spread_data
from batchgen.kernels.triton.tile import Tile
from batchgen.kernels.triton.tuning import LIBRARY, PLAIN, digest_of, read, table_of
from batchgen.kernels.triton.wide import Wide

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
F32, BF16 = torch.float32, torch.bfloat16
# Qwen3-1.7B, Qwen3-8B, SmolLM2-135M (no rule of its own), and sizes that fill no tile.
SHAPES = [
    (4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144),
    (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288),
    (960, 576), (576, 1536), (3072, 576), (1000, 80),
]  # fmt: skip
EVERY = range(1, 1025)
MANY = [*range(1, 257), *range(257, 1025, 37), 1024]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(bits(a), bits(b))


@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_it_is_near_its_twin(N: int, K: int) -> None:
    x, weight = spread_data(300, N, K, DEVICE)
    for M in (1, 40, 300):
        for dtype, limit in ((BF16, 3e-3), (F32, 5e-5)):
            y, expected = linear(x[:M], weight, dtype=dtype), twin.linear(x[:M], weight, dtype=dtype)
            assert (y.double() - expected.double()).norm() / expected.double().norm() < limit


@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_at_every_m_a_row_has_the_bits_it_has_alone(N: int, K: int) -> None:
    x, weight = spread_data(1024, N, K, DEVICE)
    for dtype in (BF16, F32):
        alone = torch.cat([linear(x[i : i + 1], weight, dtype=dtype) for i in range(len(x))])
        assert [M for M in EVERY if not same(linear(x[:M].clone(), weight, dtype=dtype), alone[:M])] == []


@pytest.mark.parametrize(("N", "K"), [(12288, 2048), (24576, 4096), (3072, 576)])
def test_the_gated_linear_is_the_linear_and_then_the_gate(N: int, K: int) -> None:
    x, weight = spread_data(1024, N, K, DEVICE)
    expected = silu_mul(linear(x, weight))
    assert [M for M in EVERY if not same(linear_silu_mul(x[:M].clone(), weight), expected[:M])] == []
    near = twin.linear_silu_mul(x[:64], weight).double()
    assert (expected[:64].double() - near).norm() / near.norm() < 6e-3


def test_logits_of_a_large_vocabulary() -> None:
    x, weight = spread_data(256, 151936, 2048, DEVICE)
    alone = torch.cat([linear(x[i : i + 1], weight, dtype=F32) for i in range(256)])
    assert [M for M in MANY[:256:5] if not same(linear(x[:M], weight, dtype=F32), alone[:M])] == []


@pytest.mark.parametrize("m", [16, 64, 128])
@pytest.mark.parametrize(("n", "k", "warps"), [(16, 256, 2), (32, 128, 4), (64, 64, 4), (128, 64, 8)])
def test_no_tile_can_be_seen(m: int, n: int, k: int, warps: int) -> None:
    x, weight = spread_data(200, 2048, 2048, DEVICE)
    for M in (1, 16, 100, 200):
        y = run_linear(x[:M], weight, Tile(m, n, k, warps, 3), BF16)
        assert same(y, run_linear(x[:M], weight, PLAIN[0][1], BF16)), M


@pytest.mark.parametrize(
    "wide", [Wide(128, 128, 64, 8, 3, True), Wide(128, 128, 64, 8, 4, False), Wide(64, 64, 64, 4, 4, False)]
)
@pytest.mark.parametrize(("N", "K"), [(12288, 2048), (24576, 4096), (3072, 576), (1040, 80)])
def test_the_wide_product_is_the_plain_one(N: int, K: int, wide: Wide) -> None:
    x, weight = spread_data(2000, N, K, DEVICE)
    expected = run_linear_silu_mul(x, weight, PLAIN[0][1])
    for M in (1, 63, 64, 65, 127, 128, 129, 700, 2000):
        assert same(run_linear_silu_mul(x[:M].clone(), weight, wide), expected[:M]), M


def test_memory_behind_a_short_input_cannot_be_seen() -> None:
    x, weight = spread_data(64, 2048, 6144, DEVICE)
    expected = linear(x[:24].clone(), weight)
    x[24:] = torch.nan
    assert same(linear(x[:24], weight), expected)


def test_a_graph_gives_the_same_bytes() -> None:
    x, weight = spread_data(200, 2048, 2048, DEVICE)
    for M in (1, 32, 200):
        expected = linear(x[:M], weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = linear(x[:M], weight)
        graph.replay()
        assert same(y, expected)


def test_the_proof_holds_for_two_models() -> None:
    shapes = [("linear", N, K) for N, K in SHAPES] + [
        ("linear_silu_mul", 12288, 2048),
        ("linear_silu_mul", 24576, 4096),
    ]
    assert prove(shapes, [*range(1, 130), 200, 256, 512, 2048, 8192, 16384], DEVICE) == []


def test_another_order_of_additions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counter-test: a library that splits K is found, and plain Triton stands in for it."""

    def split(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        half = x.shape[1] // 2
        return (x[:, :half].float() @ weight[:half].float() + x[:, half:].float() @ weight[half:].float()).to(x.dtype)

    table = table_of(DEVICE)
    rules = dict(table._rules)
    monkeypatch.setattr(table, "_rules", rules)
    monkeypatch.setattr(torch, "mm", split)
    assert table.choose("linear", 2048, 2048, 512) == LIBRARY
    refused = prove([("linear", 2048, 2048)], [8, 512], DEVICE)
    assert [(found.op, found.shape, found.rows) for found in refused] == [("linear", (2048, 2048), 512)]
    assert isinstance(table.choose("linear", 2048, 2048, 512), Tile)
    assert prove([("linear", 2048, 2048)], [8, 512], DEVICE) == []


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    path = next(Path(tuning.__file__).parent.glob("*.json"))
    read(path)
    changed = tmp_path / path.name
    changed.write_text(path.read_text(encoding="utf-8").replace("128", "256", 1), encoding="utf-8")
    with pytest.raises(EngineError, match="does not have the digest"):
        read(changed)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["other"]["logits"] = [[None, ["wide", 128, 128, 64, 8, 3, True]]]
    changed.write_text(json.dumps(content | {"digest": digest_of(content)}), encoding="utf-8")
    with pytest.raises(EngineError, match="logits has no wide product"):
        read(changed)
    changed.write_text("{", encoding="utf-8")
    with pytest.raises(EngineError, match="cannot be read"):
        read(changed)


def test_wrong_operands_are_refused() -> None:
    x, weight = spread_data(4, 64, 64, DEVICE)
    for bad in (x.float(), x[:, :32], x.t()):
        with pytest.raises(EngineError):
            linear(bad, weight)
    with pytest.raises(EngineError, match="float16"):
        linear(x, weight, dtype=torch.float16)
