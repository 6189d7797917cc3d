"""The engine in a training loop: prompts in, groups of rollouts out, new weights, no files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from batchgen.engine.engine import Engine as InnerEngine
from batchgen.engine.new_weights import replace_weights
from batchgen.errors import EngineError, RowError, nearest
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import fitting_limits, start_engine
from batchgen.io.reader import InputRow
from batchgen.loader import LoadedModel, bad_words_token_ids, check_experts, load_model, prompt_builder
from batchgen.records import Completion, Request, SamplingParams, check_params
from batchgen.seeds import sample_seed
from batchgen.spec import JobSpec
from batchgen.text.reasoning import check_reasoning
from batchgen.text.structured import check_structured

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]  # text, token ids, or the messages of a chat

_LIMITS = (
    "device",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_bytes",
    "memory_fraction",
    "prefix_cache",
    "threads",
)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample, and what it came from. All of its tokens were drawn, so its loss mask is 1 for each of them."""

    request: Request  # prompt_token_ids, seed, params; (row_key, sample_index) names it, and row_key its group
    completion: Completion  # token_ids, logprobs, text, finish_reason
    version: str  # of the weights that it was drawn from
    weights_digest: str

    @property
    def version_spans(self) -> tuple[tuple[str, int, int], ...]:
        """(version, start, stop) of its tokens. Always one: weights are replaced between calls, never within one."""
        return ((self.version, 0, len(self.completion.token_ids)),)


class Engine:
    """A model that answers prompts, scores answers, and takes new weights; `with` closes it.

    The bytes of a rollout are a function of the weights, the prompt ids, the parameters and the seed, and of nothing
    else: no limit, no other row and no earlier call can be seen in them. Not for use by two threads at once.
    """

    def __init__(self, spec: JobSpec, model: LoadedModel, engine: InnerEngine) -> None:
        """Of parts that are there; `open` makes them."""
        self._spec, self._model = spec, model
        self._running: InnerEngine | None = engine
        self._version = "initial"

    @classmethod
    def open(
        cls,
        model: str | Path | Mapping[str, Any],
        *,
        numerics: str = "portable/1",
        logprobs_mode: str = "raw",
        **limits: Any,
    ) -> Self:
        """Fetch `model` if need be, prove that this machine computes it as it should, and start.

        `model`: a path, or the `model` section of a job file; `numerics` and `logprobs_mode` are those of a job file.
        `limits`: max_num_seqs, device, threads, … of RunConfig; none changes a bit. Raises SpecError, ModelError,
        EngineError.
        """
        if limits.get("expert_parallel_size", 1) != 1:
            hint = "leave it out; `batchgen run --expert-parallel-size N` spreads the experts of a job over N processes"
            raise EngineError(
                "an engine is one process, and so holds all experts", where="expert_parallel_size", hint=hint
            )
        if unknown := sorted(limits.keys() - set(_LIMITS)):
            raise EngineError("is no limit of an engine", where=unknown[0], hint=nearest(unknown[0], _LIMITS))
        spec = _spec(model, numerics, logprobs_mode)
        loaded = load_model(spec, Path(), progress=lambda done, total: None)
        fitting = fitting_limits(limits.get("device", "auto"), spec.numerics)
        return cls(spec, loaded, start_engine(spec, loaded, RunConfig(Path("unused"), **(fitting | limits))))

    @property
    def model(self) -> LoadedModel:
        """Its config, tokenizer and limits."""
        return self._model

    @property
    def version(self) -> str:
        """Of the weights, as `update_weights` was told last."""
        return self._version

    @property
    def fingerprint(self) -> dict[str, str]:
        """What else the bytes of a rollout are a function of: digests of weights and tokenizer, the profile, …."""
        return dict(self._engine.fingerprint)

    def generate(
        self,
        wanted: Mapping[str, Prompt] | Iterable[Request],
        params: SamplingParams | None = None,
        seed: int = 0,
    ) -> list[Rollout]:
        """`params.n` rollouts of each prompt, next to each other, in the order of the prompts; or one of each request.

        `wanted` names each prompt by its row key, from which the seeds of its samples are derived: give another `seed`
        at each step of a training. A prompt that cannot be answered gives rollouts whose completion is an error.
        Raises EngineError for wrong parameters, naming the field, SpecError for a grammar that cannot be,
        or for experts of a model that has none.
        """
        if not isinstance(wanted, Mapping):
            if params is not None:
                hint = "give prompts by row key"
                raise EngineError("requests have parameters of their own", where="params", hint=hint)
            return self._answer(list(wanted))
        asked = list(self._ask(wanted, params or SamplingParams(), seed))
        answered = iter(self._answer([request for request, error in asked if error is None]))
        return [
            next(answered) if error is None else self._rollout(request, _failed(request, error))
            for request, error in asked
        ]

    def score(self, rollouts: Iterable[Rollout]) -> list[Rollout]:
        """The same rollouts with the logprobs that the present weights give to their tokens.

        Under the weights that they were drawn from these are the logprobs of `generate`, bit for bit. One that is an
        error, or has no token, is given back as it is; one whose logits are not finite now is an error. Processed
        logprobs of answers that a grammar held cannot be found again: EngineError.
        """
        given = list(rollouts)
        at = [i for i, rollout in enumerate(given) if rollout.completion.token_ids]
        asked = [self._scoring(i, given[i]) for i in at]
        for i, scored in zip(at, self._answer(asked), strict=True):
            given[i] = self._rollout(given[i].request, _scored(given[i].completion, scored.completion))
        return given

    def update_weights(self, state_dict: Mapping[str, Any], *, version: str) -> str:
        """Go on with the weights of `state_dict`, under their Hugging Face names; their digest.

        They are rounded to bfloat16 as those of a file are; nothing that was computed before is used again, and what
        comes next carries `version`. Raises ModelError for a tensor that is missing, extra, misshapen or not finite,
        with nothing changed.
        """
        replace_weights(self._engine, state_dict, f"weights {version!r}")
        self._version = version
        return self._engine.fingerprint["weights_digest"]

    def close(self) -> None:
        """Let go of the model. After it, everything raises EngineError."""
        self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _engine(self) -> InnerEngine:
        if self._running is None:
            raise EngineError("this engine is closed")
        return self._running

    def _ask(
        self, prompts: Mapping[str, Prompt], params: SamplingParams, seed: int
    ) -> Iterator[tuple[Request, RowError | None]]:
        """The requests of all samples in order; with those of a prompt that cannot be made, why."""
        for field, message in check_params(params):
            raise EngineError(message, where=f"params.{field}")
        if not 0 <= seed < 2**64:
            raise EngineError(f"must be an unsigned 64-bit integer, got {seed}", where="seed")
        config, tokenizer = self._model.config, self._model.tokenizer
        check_experts(params, self._model)
        check_structured(params, tokenizer, config.vocab_size, self._model.eos_token_ids)
        check_reasoning(params, tokenizer)
        build = prompt_builder(self._spec.model_copy(update={"sampling": params}), self._model).build
        words = bad_words_token_ids(params, tokenizer)
        for row_key, prompt in prompts.items():
            ids: tuple[int, ...] = ()
            error: RowError | None = None
            try:
                ids = tuple(build(_row(row_key, prompt)))
            except RowError as found:
                error = found
            for index in range(params.n):
                yield Request(row_key, index, sample_seed(seed, row_key, index), ids, params, words), error

    def _scoring(self, i: int, rollout: Rollout) -> Request:
        """The request for the logprobs of a rollout's tokens, of a name that no other has: a sample may come twice."""
        request = rollout.request
        params = replace(request.params, kept_tokens=None, routed_experts=False)  # those of the draws stay
        if self._spec.logprobs_mode == "raw":  # which know of no grammar
            params = replace(params, structured_outputs=None)
        name = f"{request.row_key} ({i})"
        return replace(request, row_key=name, params=params, continuation=rollout.completion.token_ids)

    def _answer(self, asked: list[Request]) -> list[Rollout]:
        """In the order of the requests. Raises EngineError for two of one name."""
        names = [(request.row_key, request.sample_index) for request in asked]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise EngineError(f"there are two requests for sample {twice[1]} of row {twice[0]!r}", where="requests")
        done = {(c.row_key, c.sample_index): c for c in self._engine.generate(asked)}
        return [self._rollout(request, done[name]) for name, request in zip(names, asked, strict=True)]

    def _rollout(self, request: Request, completion: Completion) -> Rollout:
        return Rollout(request, completion, self._version, self._engine.fingerprint["weights_digest"])


def _spec(model: str | Path | Mapping[str, Any], numerics: str, logprobs_mode: str) -> JobSpec:
    """A job without rows. Raises SpecError that names the key."""
    return JobSpec.from_resolved(
        {
            "version": 1,
            "name": "in-process",
            "model": {"path": str(model)} if isinstance(model, str | Path) else dict(model),
            "numerics": numerics,
            "logprobs_mode": logprobs_mode,
            "inputs": [{"path": "none.parquet", "columns": {"prompt": "prompt"}}],
            "row_key": {"column": "row_key"},
            "seed": "0",
        }
    )


def _row(row_key: str, prompt: Prompt) -> InputRow:
    if isinstance(prompt, str):
        return InputRow(row_key, row_key, prompt=prompt)
    if prompt and isinstance(prompt[0], Mapping):
        return InputRow(row_key, row_key, messages=[dict(message) for message in prompt])  # type: ignore[arg-type]
    return InputRow(row_key, row_key, prompt_token_ids=list(prompt))


def _failed(request: Request, error: RowError) -> Completion:
    name = request.row_key, request.sample_index
    return Completion(*name, (), "", "error", error_code=error.code, error_message=str(error))


def _scored(then: Completion, now: Completion) -> Completion:
    """`then`, or its failure, with what was found `now`."""
    if now.finish_reason == "error":
        return replace(now, row_key=then.row_key)
    return replace(
        then,
        logprobs=now.logprobs,
        top_logprobs_ids=now.top_logprobs_ids,
        top_logprobs_values=now.top_logprobs_values,
    )
