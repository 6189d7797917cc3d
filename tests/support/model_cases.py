"""A tiny real model, requests that use every sampling feature, and completions as comparable bytes."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from support.jobs import job_spec
from support.tiny_models import tiny_config, tiny_weights, write_tiny, write_weights

from batchgen.engine.batch import Runner
from batchgen.engine.engine import Engine
from batchgen.engine.kv_cache import block_bytes
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import start_engine
from batchgen.loader import LoadedModel, load_model
from batchgen.records import Completion, Request, SamplingParams
from batchgen.seeds import sample_seed

MAX_MODEL_LEN = 160
VOCAB = 200  # ids below this are ordinary in every tiny model

PARAMS = (
    SamplingParams(temperature=0, max_tokens=12, logprobs=3),
    SamplingParams(temperature=0.8, top_p=0.95, max_tokens=10, logprobs=0),
    SamplingParams(temperature=1.3, max_tokens=12, ignore_eos=True, logprobs=5),
    SamplingParams(temperature=1.0, top_k=20, min_p=0.02, max_tokens=8, logprobs=1),
    SamplingParams(temperature=0.7, top_p=0.6, top_k=50, repetition_penalty=1.2, max_tokens=12, logprobs=2),
    SamplingParams(temperature=0.9, presence_penalty=0.5, frequency_penalty=0.7, max_tokens=14, min_tokens=9),
    SamplingParams(temperature=1.1, stop=("e", "th"), max_tokens=16, logprobs=2, logit_bias={7: 2.5, 40: -3.0}),
)
BAD_WORDS = ((11,), (12, 13))

_last_engine: WeakKeyDictionary[Runner, ref[Engine]] = WeakKeyDictionary()  # not the engine: it holds its runner


@cache
def requests(count: int = 64, max_tokens: int | None = None) -> tuple[Request, ...]:
    """Prompts of 1 to 70 tokens, lengths around the edges of blocks among them."""
    lengths = (1, 31, 32, 33, 5, 64, 17, 65, 2, 40, 70, 8, 63, 3)
    made = []
    for i in range(count):
        params = PARAMS[i % len(PARAMS)]
        if max_tokens is not None:
            params = replace(
                params,
                max_tokens=min(max_tokens, params.max_tokens),
                min_tokens=min(max_tokens // 2, params.min_tokens),
            )
        made.append(
            Request(
                row_key=f"row-{i}",
                sample_index=i % 3,
                seed=sample_seed(7, f"row-{i}", i % 3),
                prompt_token_ids=tuple((7 * i + p * (i % 5 + 1)) % (VOCAB - 3) + 3 for p in range(lengths[i % 14])),
                params=params,
                bad_words_token_ids=BAD_WORDS if i % 4 == 0 else (),
            )
        )
    return tuple(made)


@cache
def long_requests() -> tuple[Request, ...]:
    """Outputs that outgrow the blocks they begin with, so that small pools run out."""
    return tuple(
        Request(
            row_key=f"long-{i}",
            sample_index=0,
            seed=sample_seed(8, f"long-{i}", 0),
            prompt_token_ids=tuple((5 * i + p) % (VOCAB - 3) + 3 for p in range(9 + 3 * i)),
            params=replace(PARAMS[i % len(PARAMS)], max_tokens=75, min_tokens=0, ignore_eos=True, stop=()),
        )
        for i in range(10)
    )


def ask(
    row_key: str,
    prompt: Iterable[int],
    params: SamplingParams = PARAMS[0],
    *,
    sample_index: int = 0,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> Request:
    """A request under job seed 7."""
    seed = sample_seed(7, row_key, sample_index)
    return Request(row_key, sample_index, seed, tuple(prompt), params, bad_words)


def ids(length: int, first: int = 0, step: int = 1) -> tuple[int, ...]:
    """A prompt of so many ordinary tokens."""
    return tuple((first + p * step) % (VOCAB - 3) + 3 for p in range(length))


def load_tiny(folder: Path, family: str = "llama", **config: Any) -> LoadedModel:
    """Writes a tiny model to `folder` and loads all but its weights."""
    write_tiny(folder / family, family, **config)
    spec = job_spec(model={"path": family, "max_model_len": MAX_MODEL_LEN})
    return load_model(spec, folder, lambda done, total: None)


def load_edited(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> LoadedModel:
    """The tiny Llama with some of its weights, under their Hugging Face names, changed by `edit`."""
    model = load_tiny(folder)
    weights = tiny_weights(tiny_config("llama"))
    edit(weights)
    write_weights(model.path, weights)
    return model


def make_engine(
    model: LoadedModel,
    *,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 256,
    num_blocks: int = 400,
    threads: int = 1,
    prefix_cache: bool = True,
    numerics: str = "portable/1",
    logprobs_mode: str = "raw",
) -> Engine:
    run_config = RunConfig(
        out=Path("unused"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_bytes=num_blocks * block_bytes(model.config),
        threads=threads,
        prefix_cache=prefix_cache,
    )
    spec = job_spec(
        model={"path": "unused", "max_model_len": MAX_MODEL_LEN}, numerics=numerics, logprobs_mode=logprobs_mode
    )
    return start_engine(spec, model, run_config)


def with_limits(engine: Engine, **limits: Any) -> Engine:
    """An engine over the same runner and its cache, with other Limits. The two may run in turns, never at once."""
    return Engine(
        engine.runner, engine._detokenizer, engine.model, replace(engine.limits, **limits), engine.fingerprint
    )


def generate(engine: Engine, wanted: Iterable[Request]) -> dict[str, str]:
    """What became of each request, with every float as its bits."""
    wanted = list(wanted)
    last = _last_engine.get(engine.runner)
    if last is None or last() is not engine:  # another one may have written over what this one remembers
        engine.blocks.forget()
        _last_engine[engine.runner] = ref(engine)
    done = {completion.row_key: as_bits(completion) for completion in engine.generate(wanted)}
    assert done.keys() == {request.row_key for request in wanted}
    return done


def completions(engine: Engine, wanted: Iterable[Request], **limits: Any) -> dict[str, Completion]:
    """The answers by row key, of an engine `with_limits` that remembers no prompt."""
    engine.blocks.forget()
    return {done.row_key: done for done in with_limits(engine, **limits).generate(wanted)}


def as_bits(completion: Completion) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, float | bytes):
            return value.hex()
        return [plain(v) for v in value] if isinstance(value, tuple) else value

    return json.dumps([plain(getattr(completion, name)) for name in Completion.__slots__])


def assert_same(actual: dict[str, str], expected: dict[str, str], what: str) -> None:
    """Fail at the first row whose bits differ, showing both."""
    for key, bits in actual.items():
        assert bits == expected[key], f"{what}: {key} differs\n  {bits}\n  {expected[key]}"
