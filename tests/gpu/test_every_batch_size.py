"""One decode step of a model on the tensor cores at every batch size: a row's logits are those it has alone."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from batchgen.engine.decode_graphs import DecodeGraphs, Row
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.step_shape import StepShape
from batchgen.kernels.triton import rows
from batchgen.layers.step import StepTensors
from batchgen.models.config import ModelConfig
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.native_decoder import NativeDecoder

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
MOST, LONGEST = 256, 1024
# The widths of Qwen3-1.7B, whose linears have rules of their own, and of SmolLM2-135M, which go by the general ones.
SHAPES = {"ruled": (2048, 16, 8, 128, 6144, True), "general": (576, 9, 3, 64, 1536, False)}


def config(hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int, qk_norm: bool) -> ModelConfig:
    """Two layers of that width."""
    return ModelConfig(
        architecture="Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM",
        vocab_size=5000,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=2,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        max_position_embeddings=LONGEST,
        max_context=LONGEST,
        tie_word_embeddings=True,
        qkv_bias=False,
        qk_norm=qk_norm,
        bos_token_id=None,
        eos_token_ids=(),
    )


class Step:
    """256 sequences of 1 to 900 positions over a cache of random keys and values, each about to run one token."""

    def __init__(self, name: str) -> None:
        """The decoder and its cache are made here; logits of each row alone too."""
        self.config = config(*SHAPES[name])
        self.decoder = NativeDecoder(self.config, DeviceWeights.seeded(self.config, DEVICE).tensors, LONGEST, DEVICE)
        drawn = np.random.default_rng(5)
        lengths = [1, 32, 33, 256, 257, 900, *drawn.integers(1, 900, MOST - 6).tolist()]
        blocks = iter(drawn.permutation(sum(-(-length // BLOCK_SIZE) for length in lengths)).tolist())
        ids = drawn.integers(0, 5000, MOST).tolist()
        self.rows = [
            Row([next(blocks) for _ in range(-(-length // BLOCK_SIZE))], length - 1, token)
            for length, token in zip(lengths, ids, strict=True)
        ]
        self.cache = self.decoder.new_cache(sum(len(row.block_table) for row in self.rows))
        generator = torch.Generator(DEVICE).manual_seed(9)
        for part in (part for layer in self.cache for part in layer):
            part.normal_(generator=generator)
        self.alone = torch.cat([self.eager([row]) for row in self.rows])

    def eager(self, rows: list[Row]) -> torch.Tensor:
        """Logits without a graph and without padding."""
        width = max(len(row.block_table) for row in rows)
        step = StepTensors(
            token_ids=torch.tensor([row.token_id for row in rows], dtype=torch.int32),
            positions=torch.tensor([row.position for row in rows], dtype=torch.int32),
            slots=torch.tensor([row.block_table[-1] * BLOCK_SIZE + row.position % BLOCK_SIZE for row in rows]),
            query_start=torch.arange(len(rows) + 1, dtype=torch.int32),
            block_tables=torch.tensor(
                [row.block_table + [0] * (width - len(row.block_table)) for row in rows], dtype=torch.int32
            ),
            sample_rows=torch.arange(len(rows)),
        ).on(DEVICE)
        assert step.shape == StepShape(len(rows), 1, max(row.position for row in rows) + 1)
        return self.decoder.forward(step, self.cache).clone()


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a.view(torch.int32) != b.view(torch.int32)).sum())


@pytest.fixture(scope="module", params=SHAPES)
def step(request: pytest.FixtureRequest) -> Step:
    with torch.inference_mode():
        return Step(request.param)


@torch.inference_mode()
def test_without_graphs(step: Step) -> None:
    assert [B for B in range(1, MOST + 1) if differing(step.eager(step.rows[:B]), step.alone[:B])] == []


@torch.inference_mode()
def test_with_graphs_and_their_padding(step: Step) -> None:
    graphs = DecodeGraphs(step.decoder, step.cache, LONGEST)
    wrong = []
    for B in range(1, MOST + 1):
        if differing(graphs.forward(step.rows[:B]), step.alone[:B]):
            wrong.append(B)
        torch.cuda.synchronize()
    assert wrong == []
    assert len(graphs._graphs) > 16


@torch.inference_mode()
def test_at_every_place_of_the_batch(step: Step) -> None:
    for shift in (1, 77, 255):
        order = [(i + shift) % MOST for i in range(MOST)]
        assert differing(step.eager([step.rows[i] for i in order]), step.alone[order]) == 0


@torch.inference_mode()
def test_counter_an_op_that_sees_its_company_is_found(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rows.add_rms_norm

    def bent(h: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return honest(h, y, weight, eps * (1 + 1e3 * (len(h) == 200)))

    monkeypatch.setattr("batchgen.kernels.triton.add_rms_norm", bent)
    assert [B for B in range(190, 210) if differing(step.eager(step.rows[:B]), step.alone[:B])] == [200]
