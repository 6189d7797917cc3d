"""Start an engine for a job: device, weights, KV cache, threads, proof."""

import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from batchgen.engine.admission import ModelLimits
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.canary import POSITIONS
from batchgen.engine.engine import Engine
from batchgen.engine.kv_cache import block_bytes
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.rehearsal import rehearse
from batchgen.engine.scheduler import Limits
from batchgen.engine.self_test import SelfTest, self_test
from batchgen.errors import EngineError, ModelError
from batchgen.executor.run_config import RunConfig
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.cpu.native import set_threads
from batchgen.kernels.device import TENSOR_CORES, Device, Wanted, choose, describe, free_bytes
from batchgen.kernels.golden import NATIVE, check_profile
from batchgen.kernels.memory import room_for
from batchgen.loader import LoadedModel
from batchgen.models.any_decoder import AnyDecoder
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.decoder import Decoder
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.dummy import dummy_digest, open_dummy
from batchgen.models.files import source_digest
from batchgen.models.fused import Held
from batchgen.models.packed import PackedWeights
from batchgen.models.source import cache_root
from batchgen.parallel.experts import ExpertParallel
from batchgen.parallel.mesh import Mesh
from batchgen.records import SamplingParams
from batchgen.spec import JobSpec, LoadFormat

Weights: TypeAlias = PackedWeights | DeviceWeights

_PREFIX_CACHE_BYTES = 256 << 20
_ON_CPU = "leave it out, or run on a CPU"
ON_GPU = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}


def open_weights(
    path: Path, numerics: str = "portable/1", held: Held | None = None, load_format: LoadFormat = "auto"
) -> Weights:
    """The weights of the model at `path`, laid out for the profile; of the experts those that are `held`, None: all.

    They are packed at the first start, and come from the cache later; those of native-sm90/1 go straight to the GPU.
    With the format "dummy" they are drawn, and their digest says so.
    Raises ModelError, and EngineError where there is no such GPU.
    """
    is_dummy = load_format == "dummy"
    open_model = partial(open_dummy if is_dummy else open_checkpoint, path)
    if numerics == TENSOR_CORES:
        weights: Weights = DeviceWeights.load(open_model(), choose("auto", numerics), held)
    else:
        key = (dummy_digest if is_dummy else source_digest)(path)
        weights = PackedWeights.open_or_build(open_model, cache_root() / "packed", key, held)
    return replace(weights, weights_digest=f"dummy {weights.weights_digest}") if is_dummy else weights


def start_engine(spec: JobSpec, model: LoadedModel, run_config: RunConfig, weights: Weights | None = None) -> Engine:
    """Prove that this machine computes the job's profile, and start. Without `weights` it opens them itself.

    Raises ModelError for a bad model, EngineError when the device, its memory or the proof fails.
    """
    return _start(spec, model, run_config, weights or _weights(spec, model), None)


def start_rank(spec: JobSpec, model: LoadedModel, run_config: RunConfig, mesh: Mesh) -> Engine:
    """As `start_engine`, on every rank of `mesh` together: each has the experts that are its own.

    Raises as that does, and EngineError when another rank is gone.
    """
    moe = model.config.moe
    assert moe is not None, "ranks share experts"
    layers = [layer for layer in range(model.config.num_layers) if model.config.is_moe(layer)]
    redundant, interval = run_config.redundant_experts, run_config.eplb_interval
    parallel = ExpertParallel(mesh, moe.num_experts, layers, redundant, interval)
    held = {layer: parallel.slots(layer) for layer in layers}
    return _start(spec, model, run_config, _weights(spec, model, held), parallel)


def _weights(spec: JobSpec, model: LoadedModel, held: Held | None = None) -> Weights:
    return open_weights(model.path, spec.numerics, held, spec.model.load_format)


def _start(
    spec: JobSpec, model: LoadedModel, run_config: RunConfig, weights: Weights, parallel: ExpertParallel | None
) -> Engine:
    device = choose(run_config.device, spec.numerics)
    if device.type == "cuda":
        _check_columns(spec.sampling)
    if device.type == "cpu":
        set_threads(threads_of(run_config))
    kernel_set = _kernel_set(spec.numerics, device, model.config.moe is not None)
    if weights.config != model.config:  # the cache is of an older reading of the model's files
        raise ModelError(
            "the packed weights are of another config", where=str(cache_root() / "packed"), hint="delete them"
        )
    decoder = make_decoder(spec.numerics, weights, max(model.max_model_len, POSITIONS), device, parallel)
    with room_for(f"the proof of the kernels with {run_config.max_num_batched_tokens} tokens"):
        proof = _prove(decoder, run_config)
    num_blocks = _num_blocks(decoder, model.max_model_len, run_config)
    cache = decoder.new_cache(num_blocks)
    is_processed, looks_ahead = spec.logprobs_mode == "processed", spec.numerics == TENSOR_CORES
    limits = Limits(
        run_config.max_num_seqs,
        run_config.max_num_batched_tokens,
        num_blocks,
        _prefix_cache_blocks(decoder, num_blocks) if run_config.prefix_cache else 0,
        looks_ahead,
    )
    if device.type == "cuda":
        rehearse(decoder, cache, limits, model.max_model_len)
    if looks_ahead:
        runner: ModelRunner = AheadRunner(decoder, cache, model.max_model_len, processed_logprobs=is_processed)
    else:
        runner = ModelRunner(decoder, cache, processed_logprobs=is_processed)
    return Engine(
        runner,
        model.tokenizer,
        ModelLimits(model.config.vocab_size, model.max_model_len, model.eos_token_ids),
        limits,
        fingerprint={
            "weights_digest": weights.weights_digest,
            "tokenizer_digest": model.tokenizer.digest,
            "numerics": spec.numerics,
            "kernel_set": kernel_set,
            "canary": proof.canary,
        },
        about=describe(device) | {"self_test": proof.to_json()},
    )


def _check_columns(params: SamplingParams) -> None:
    for name, what in (("kept_tokens", "which tokens its filters keep"), ("routed_experts", "which experts it chose")):
        if getattr(params, name):
            raise EngineError(f"a GPU does not tell {what}", where=f"sampling.{name}", hint=_ON_CPU)


def fitting_limits(device: Wanted, numerics: str) -> dict[str, int]:
    """Fields of RunConfig whose defaults fit a CPU, where the job would run on a GPU. Raises as `choose`."""
    return dict(ON_GPU) if choose(device, numerics).type == "cuda" else {}


def threads_of(run_config: RunConfig) -> int:
    """On a CPU, those of this process: all cores, or its share of them beside other ranks."""
    return run_config.threads or max(1, cores() // run_config.expert_parallel_size)


def make_decoder(
    numerics: str, weights: Weights, positions: int, device: Device, parallel: ExpertParallel | None = None
) -> AnyDecoder:
    """The decoder of the profile, with room for so many positions. Raises ModelError, EngineError."""
    if isinstance(weights, DeviceWeights):
        decoder: AnyDecoder = _module("models.native_decoder").NativeDecoder(
            weights.config, weights.tensors, positions, device, parallel
        )
        return decoder
    native = numerics in NATIVE
    return Decoder(weights.config, weights.tensors, positions, native=native, device=device, parallel=parallel)


def _prove(decoder: AnyDecoder, run_config: RunConfig) -> SelfTest:
    most = run_config.max_num_batched_tokens
    if isinstance(decoder, Decoder):
        return self_test(decoder, most)
    proof: SelfTest = _module("engine.native_proof").prove(decoder, most, run_config.max_num_seqs)
    return proof


def _kernel_set(numerics: str, device: Device, has_experts: bool) -> str:
    if numerics == TENSOR_CORES:
        digest: str = _module("kernels.triton.kernel_set").kernel_set(numerics, device)
        return digest
    return check_profile(numerics, device, experts=has_experts)


def _module(name: str) -> ModuleType:
    """One that imports triton, which not every machine has."""
    return import_module(f"batchgen.{name}")


def _num_blocks(decoder: AnyDecoder, max_model_len: int, run_config: RunConfig) -> int:
    """Room for max_num_seqs sequences of full length, within the budget, which is what is given, or else:

    on a CPU a quarter of the memory (pages that no sequence touches take none), on a GPU a fraction of what is free.
    Raises EngineError when what a GPU has does not hold one sequence.
    """
    a_sequence, a_block = -(-max_model_len // BLOCK_SIZE), block_bytes(decoder.config)
    most = run_config.max_num_seqs * a_sequence
    if decoder.device.type == "cpu":
        share = _physical_memory() // (4 * run_config.expert_parallel_size)
        return min(most, (run_config.kv_cache_bytes or share) // a_block)
    free = free_bytes(decoder.device)
    budget = min(run_config.kv_cache_bytes or free, int(free * run_config.memory_fraction))
    if budget < a_sequence * a_block:
        raise EngineError(
            f"one sequence of max_model_len {max_model_len} tokens needs {_gib(a_sequence * a_block)} of KV cache, and "
            f"has {_gib(budget)}, of {_gib(free)} that the GPU has free beside the weights",
            hint="lower model.max_model_len in the job, end other programs on the GPU, or raise --memory-fraction",
        )
    return min(most, budget // a_block)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _prefix_cache_blocks(decoder: AnyDecoder, num_blocks: int) -> int:
    """Free blocks that keep their content, and with it, on a CPU, the memory of their pages: a quarter of the pool."""
    if decoder.device.type != "cpu":
        return num_blocks
    return max(1, min(_PREFIX_CACHE_BYTES // block_bytes(decoder.config), num_blocks // 4))


def _physical_memory() -> int:
    """Bytes: what the control group allows, else what the machine has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def cores() -> int:
    """Cores that this process may use: those it may run on, or what its control group allows if that is less."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(there, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return there
