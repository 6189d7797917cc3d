"""Start an engine for a job: weights, KV cache, threads, proof."""

import os
from pathlib import Path

from batchgen.engine.admission import ModelLimits
from batchgen.engine.canary import POSITIONS
from batchgen.engine.engine import Engine
from batchgen.engine.kv_cache import allocate, block_bytes
from batchgen.engine.model_runner import ModelRunner
from batchgen.engine.scheduler import Limits
from batchgen.engine.self_test import self_test
from batchgen.errors import ModelError
from batchgen.executor.run_config import RunConfig
from batchgen.kernels.constants import BLOCK_SIZE
from batchgen.kernels.cpu.native import machine, set_threads
from batchgen.kernels.golden import NATIVE, check_profile
from batchgen.loader import LoadedModel
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.config import ModelConfig
from batchgen.models.decoder import Decoder
from batchgen.models.files import source_digest
from batchgen.models.packed import PackedWeights
from batchgen.models.source import cache_root
from batchgen.spec import JobSpec

_PREFIX_CACHE_BYTES = 256 << 20


def open_weights(path: Path) -> PackedWeights:
    """The weights of the model at `path`, packed at the first start, from the cache later. Raises ModelError."""
    return PackedWeights.open_or_build(lambda: open_checkpoint(path), cache_root() / "packed", source_digest(path))


def start_engine(
    spec: JobSpec, model: LoadedModel, run_config: RunConfig, weights: PackedWeights | None = None
) -> Engine:
    """Prove that this machine computes the job's profile, and start. Without `weights` it opens them itself.

    Raises ModelError for a bad model, EngineError when memory or the proof fails.
    """
    set_threads(run_config.threads or _cores())
    kernel_set = check_profile(spec.numerics)
    weights = weights or open_weights(model.path)
    if weights.config != model.config:  # the cache is of an older reading of the model's files
        raise ModelError(
            "the packed weights are of another config", where=str(cache_root() / "packed"), hint="delete them"
        )
    num_blocks = _num_blocks(model.config, model.max_model_len, run_config)
    positions = max(model.max_model_len, POSITIONS)
    decoder = Decoder(model.config, weights.tensors, positions, native=spec.numerics in NATIVE)
    proof = self_test(decoder, run_config.max_num_batched_tokens)
    runner = ModelRunner(
        decoder,
        allocate(model.config, num_blocks),
        processed_logprobs=spec.logprobs_mode == "processed",
    )
    return Engine(
        runner,
        model.tokenizer,
        ModelLimits(model.config.vocab_size, model.max_model_len, model.eos_token_ids),
        Limits(
            run_config.max_num_seqs,
            run_config.max_num_batched_tokens,
            num_blocks,
            _prefix_cache_blocks(model.config, num_blocks) if run_config.prefix_cache else 0,
        ),
        fingerprint={
            "weights_digest": weights.weights_digest,
            "tokenizer_digest": model.tokenizer.digest,
            "numerics": spec.numerics,
            "kernel_set": kernel_set,
            "canary": proof.canary,
        },
        about=machine() | {"self_test": proof.to_json()},
    )


def _num_blocks(config: ModelConfig, max_model_len: int, run_config: RunConfig) -> int:
    """Room for max_num_seqs sequences of full length, within the budget: a quarter of the memory unless it is given.

    Pages that no sequence touches take no memory.
    """
    a_sequence = -(-max_model_len // BLOCK_SIZE)
    budget = run_config.kv_cache_bytes or _physical_memory() // 4
    return min(run_config.max_num_seqs * a_sequence, budget // block_bytes(config))


def _prefix_cache_blocks(config: ModelConfig, num_blocks: int) -> int:
    """Free blocks that keep their content, and with it the memory of their pages: a quarter of the pool at most."""
    return max(1, min(_PREFIX_CACHE_BYTES // block_bytes(config), num_blocks // 4))


def _physical_memory() -> int:
    """Bytes: what the control group allows, else what the machine has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def _cores() -> int:
    """Cores that this process may use: those it may run on, or what its control group allows if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores
