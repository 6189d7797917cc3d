"""Engines over a tiny mixture of experts as the ranks of one replica, for Ranks to run: a case in, answers out."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fake_ranks import ListInbox
from support.jobs import job_spec
from support.model_cases import MAX_MODEL_LEN, as_bits, long_requests, requests
from support.plain_graphs import ahead_on_cpu

from batchgen import kernels
from batchgen.engine.admission import ModelLimits
from batchgen.engine.engine import Engine
from batchgen.engine.generation import EngineStats
from batchgen.engine.lockstep import Lockstep
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.scheduler import Limits
from batchgen.layers.moe import Moe
from batchgen.loader import LoadedModel, load_model
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.files import source_digest
from batchgen.models.packed import PackedWeights
from batchgen.parallel.eplb import Greedy, Load, Policy
from batchgen.parallel.exchange import Exchange
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.parallel.placement import Placement, initial, permuted
from batchgen.records import Completion, Request

COUNT = 50  # the first of what is asked; then come those that outgrow their blocks


@dataclass(frozen=True)
class Case:
    """How the requests are answered. None of it may show."""

    folder: Path  # of the model, beside a cache for its packed weights
    parts: tuple[tuple[int, ...], ...]  # for each rank the requests that it is given, in this order
    gaps: tuple[tuple[int, ...], ...] = ()  # for each rank: see ListInbox
    redundant: int = 0
    interval: int = 0
    order: int | None = None  # experts lie, and move, as drawn by this seed; None: as the load says
    ahead: bool = False
    faulty: bool = False
    routed: bool = False
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    answers: dict[str, str]  # row_key -> bits
    stats: EngineStats
    moved: int
    taken: int  # chunks that had been computed ahead
    graphs: int  # of single tokens that were run, none of its own too


@dataclass
class Shuffled:
    """A policy that looks at no load."""

    seed: int

    def start(self, num_experts: int, size: int, redundant: int) -> Placement:
        return permuted(initial(num_experts, size, redundant), self.seed)

    def again(self, load: Load, now: Placement) -> Placement:
        self.seed += 1
        return permuted(now, self.seed)


def asked(routed: bool = False) -> tuple[Request, ...]:
    """All that a case may ask for, by number; `routed`: with the experts of each token."""
    wanted = (*requests(COUNT, 8), *long_requests()[:4])
    return tuple(replace(each, params=replace(each.params, routed_experts=routed)) for each in wanted)


@cache
def loaded(folder: Path) -> LoadedModel:
    spec = job_spec(model={"path": folder.name, "max_model_len": MAX_MODEL_LEN})
    return load_model(spec, folder.parent, lambda done, total: None)


def answer(mesh: Mesh, case: Case) -> Outcome:
    """One generation of one rank."""
    model = loaded(case.folder)
    moe = model.config.moe
    assert moe is not None
    layers = [layer for layer in range(model.config.num_layers) if model.config.is_moe(layer)]
    policy: Policy = Greedy() if case.order is None else Shuffled(case.order)
    parallel = ExpertParallel(mesh, moe.num_experts, layers, case.redundant, case.interval, policy)
    weights = PackedWeights.open_or_build(
        lambda: open_checkpoint(model.path),
        case.folder.parent / "packed",
        source_digest(model.path),
        {layer: parallel.slots(layer) for layer in layers},
    )
    decoder = Decoder(model.config, weights.tensors, MAX_MODEL_LEN, parallel=parallel)
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 128, "num_blocks": 100, "prefix_cache_blocks": 20}
    made = Limits(**(limits | case.limits), looks_ahead=case.ahead)
    kv_cache = decoder.new_cache(made.num_blocks)
    gaps = case.gaps[mesh.rank] if case.gaps else ()
    inbox = ListInbox([asked(case.routed)[i] for i in case.parts[mesh.rank]], gaps)
    answers: list[Completion] = []
    with (
        ahead_on_cpu(decoder, kv_cache, MAX_MODEL_LEN) if case.ahead else plain(decoder, kv_cache) as runner,
        summed_by_rank(parallel) if case.faulty else nullcontext(),
    ):
        bounds = ModelLimits(model.config.vocab_size, MAX_MODEL_LEN, model.eos_token_ids)
        engine = Engine(runner, model.tokenizer, bounds, made, {})
        Lockstep(engine, runner, mesh).generate(inbox, answers.extend)
        assert engine.blocks.num_free == made.num_blocks
        taken = getattr(runner, "taken", 0)
        graphs = len(runner.graphs.sizes) if case.ahead else 0  # type: ignore[attr-defined]
    assert len(answers) == len(inbox.wanted)
    return Outcome({done.row_key: as_bits(done) for done in answers}, engine.stats, parallel.moved, taken, graphs)


@contextmanager
def plain(decoder: Decoder, kv_cache: Any) -> Iterator[ModelRunner]:
    yield ModelRunner(decoder, kv_cache, processed_logprobs=False)


@contextmanager
def summed_by_rank(parallel: ExpertParallel) -> Iterator[None]:
    """A planted fault: each rank adds up what its own experts say, and the sums are added at home."""

    def faulty(moe: Moe, x: torch.Tensor, residual: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        experts, weights = kernels.route(kernels.linear(x, moe.router), moe.bias, moe.routing)
        rows = moe._ask(x, experts, exchange)
        placement = parallel.placement(0)
        home = torch.zeros(placement.num_experts, dtype=torch.int64)
        home[list(placement.slots)] = torch.from_numpy(placement.ranks().astype("int64"))
        total = torch.zeros_like(residual)
        for rank in range(placement.size):
            of_rank = torch.where(home[experts.long()] == rank, weights, torch.zeros(()))
            total = total + kernels.combine(rows, of_rank, None, torch.zeros_like(residual))
        return residual + total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moe, "__call__", faulty)
        yield
