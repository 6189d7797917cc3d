"""The model "batchgen" of the lm-evaluation-harness. Importing this registers it; `python -m` of it is the harness.

    python -m batchgen.integrations.lm_eval --model batchgen --model_args model=FOLDER --tasks ...

Numbers are a function of the weights, the profile and the task: batch_size, max_num_seqs, threads and the order of
the documents change none of their digits.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from batchgen.engine.scoring import requests_of, score_of
from batchgen.errors import EngineError, RowError, SpecError, nearest
from batchgen.records import Completion, Request, SamplingParams
from batchgen.rollout import Engine
from batchgen.seeds import sample_seed
from batchgen.text.template import ChatTemplate

_MAX_GEN_TOKS = 256  # as the harness's own models have it
_MODEL_KEYS = ("sha256", "tokenizer", "chat_template", "max_model_len", "generation_config")
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
)

Scored = tuple[tuple[str, str] | None, list[int], list[int]]  # the texts, and the ids of context and continuation


@register_model("batchgen")
class BatchgenLM(TemplateLM):  # type: ignore[misc]
    """A model on this machine, whose log-likelihoods and texts are the same bits in every batch."""

    def __init__(
        self,
        model: str | None = None,
        *,
        pretrained: str | None = None,
        numerics: str = "portable/1",
        batch_size: int | str | None = None,
        overlong: str = "error",
        seed: int = 0,
        **more: Any,
    ) -> None:
        """`model` (or `pretrained`): as `model.path` in a job file; the other keys of its section may be given too.

        `batch_size`: sequences at once, "auto" for the default; also `device`, `threads` and the other limits of an
        engine. `overlong`: "error", or "truncate_left" for what the harness's own models do with a text that is too
        long. Raises SpecError for a key that is not known, ModelError and EngineError as the engine does.
        """
        super().__init__()
        path = model or pretrained
        if path is None or (model and pretrained):
            raise SpecError("name the model, once", where="model_args", hint="model=FOLDER")
        if overlong not in ("error", "truncate_left"):
            raise SpecError(f"is 'error' or 'truncate_left', got {overlong!r}", where="model_args.overlong")
        self._overlong, self._seed = overlong, int(seed)
        section = {key: more.pop(key) for key in _MODEL_KEYS if more.get(key) is not None}
        self._engine = Engine.open({"path": path, **section}, numerics=numerics, **_limits(batch_size, more))
        self.tokenizer = self._engine.model.tokenizer
        self.truncated = 0  # texts that lost their beginning

    @property
    def max_length(self) -> int:
        """Tokens that the model can look at."""
        return self._engine.model.max_model_len

    @property
    def eot_token_id(self) -> int:
        """The end of a text; of several the first that the tokenizer names."""
        ids = [*self.tokenizer.eos_token_ids, *sorted(self._engine.model.eos_token_ids)]
        if not ids:
            raise EngineError("neither the model nor its tokenizer names an end-of-sequence token")
        return int(ids[0])

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: BOS, or EOS where there is none."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return f"batchgen-{self.tokenizer.digest}"

    def get_model_info(self) -> dict[str, str]:
        """For the harness's record of the run: what the numbers are a function of."""
        return {f"batchgen_{name}": value for name, value in self._engine.fingerprint.items()}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Control tokens written in `string` are tokens, as a rendered chat has them; BOS is not put before a BOS."""
        ids = self.tokenizer.encode(string, add_special_tokens=False, special="allow")
        prefix, suffix = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        if add_special_tokens is False or (add_special_tokens is None and ids[:1] == [self.prefix_token_id]):
            return ids
        return [*prefix, *ids, *suffix]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Without the generation prompt the text ends with the last message, which the answer then goes on."""
        source = self.tokenizer.chat_template
        if source is None:
            raise SpecError("the model has no chat template", where="apply_chat_template")
        variables = {**self.tokenizer.special_tokens, "add_generation_prompt": add_generation_prompt}
        text = ChatTemplate(source, variables=variables).render(chat_history)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, by windows that each see as much as the model can."""
        owners: list[int] = []
        windows: list[Scored] = []
        for at, request in enumerate(requests):
            found = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, continuation in map(make_disjoint_window, found):
                owners.append(at)
                windows.append((None, context, continuation))
        totals = [0.0] * len(requests)
        for owner, (total, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Repeats of a document are further samples of it, each with a seed of its own."""
        times: Counter[str] = Counter()
        asked = []
        for index, request in enumerate(requests):
            context, wanted = request.args
            params = sampling_params(wanted)
            ids = self._fitted(self.tok_encode(context), params.max_tokens, f"request {index}")
            name = hashlib.sha256(json.dumps([context, wanted], sort_keys=True).encode()).hexdigest()
            asked.append(Request(name, times[name], sample_seed(self._seed, name, times[name]), ids, params))
            times[name] += 1
        texts = [completion.text for completion in self._answers(asked)]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, **_: object
    ) -> list[tuple[float, bool]]:
        """The sum of the logprobs, exact and rounded once, and whether greedy decoding gives the continuation."""
        pairs = []
        for index, (_texts, context, continuation) in enumerate(requests):
            room = len(continuation) - 1
            pairs.append((self._fitted(context, room, f"request {index}"), continuation))
        scores = [score_of(completion) for completion in self._answers(list(requests_of(pairs)))]
        found = [(score.total, score.is_greedy) for score in scores]
        for (texts, _context, _continuation), answer in zip(requests, found, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return found

    def _fitted(self, ids: Sequence[int], room: int, what: str) -> tuple[int, ...]:
        """`ids` so that as many as `room` fit behind them. Raises RowError where that would cut a text unasked."""
        most = self.max_length - room
        if len(ids) <= most:
            return tuple(ids)
        if self._overlong == "error" or most < 1:
            message = f"{what}: {len(ids)} tokens and {room} after them do not fit in {self.max_length}"
            raise RowError("prompt_overlong", f"{message}; overlong=truncate_left cuts the beginning off")
        self.truncated += 1
        return tuple(ids[-most:])

    def _answers(self, requests: list[Request]) -> list[Completion]:
        """In order. Raises RowError for the first that cannot be answered: a score without it would be another."""
        done = [rollout.completion for rollout in self._engine.generate(requests)]
        for index, completion in enumerate(done):
            if completion.error_code is not None:
                raise RowError(completion.error_code, f"request {index}: {completion.error_message}")
        return done


def sampling_params(wanted: Mapping[str, Any]) -> SamplingParams:
    """Of a task's generation_kwargs. Raises SpecError for one that would be ignored."""
    kwargs: dict[str, Any] = dict(normalize_gen_kwargs(dict(wanted), _MAX_GEN_TOKS))
    is_sampled = kwargs.pop("do_sample")
    stop, most = kwargs.pop("until"), kwargs.pop("max_gen_toks")
    if unknown := sorted(kwargs.keys() - set(_SAMPLING)):
        hint = nearest(unknown[0], _SAMPLING)
        raise SpecError("is no sampling parameter here", where=f"generation_kwargs.{unknown[0]}", hint=hint)
    kwargs["temperature"] = (kwargs.get("temperature") or 1.0) if is_sampled else 0.0
    given = {name: value for name, value in kwargs.items() if value is not None}
    return SamplingParams(max_tokens=most, stop=tuple(text for text in stop if text), **given)


def _limits(batch_size: int | str | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Limits of an engine from the harness's arguments. `max_batch_size` has no meaning here, and changes nothing.

    "cuda:0" is what the harness says when nobody has said anything: as for its own models, a GPU where there is one.
    """
    limits = {key: value for key, value in more.items() if value is not None and key != "max_batch_size"}
    if batch_size is not None and not str(batch_size).startswith("auto"):
        limits["max_num_seqs"] = int(batch_size)
    if "device" in limits:
        limits["device"] = "auto" if limits["device"] == "cuda:0" else str(limits["device"]).partition(":")[0]
    return limits


if __name__ == "__main__":
    cli_evaluate()  # the harness's own command, which knows the model by now
