"""The plain records that travel through a job: SamplingParams, Request, Completion; and the ranges of the first.

Nothing else is computed here. Floats are Python floats that hold float32 values where the comment says so.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """What the whole text of an answer must be; exactly one of these is given. docs/structured.md says more."""

    json_schema: str | None = None  # the text of a JSON Schema; the order of its properties is that of the answer
    regex: str | None = None  # which matches the text from its first to its last character
    grammar: str | None = None  # in llguidance's dialect of Lark, with a rule "start"
    choice: tuple[str, ...] | None = None  # one of these texts

    @property
    def kind(self) -> str:
        """The name of the one that is given; "" when none or several are."""
        given = [name for name in _KINDS if getattr(self, name) is not None]
        return given[0] if len(given) == 1 else ""


_KINDS = ("json_schema", "regex", "grammar", "choice")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. Names and meanings are vLLM's; the order of operations is in docs/determinism.md.

    Raises nothing: `check_params` lists what is out of range; the job's reader and the engine both ask it.
    """

    n: int = 1
    temperature: float = 1.0  # 0 is greedy: argmax, the lower token id on a tie; else [0.01, 100]
    top_p: float = 1.0  # (0, 1]; 1 is off
    top_k: int = 0  # 0 or -1 is off
    min_p: float = 0.0  # [0, 1]; 0 is off
    presence_penalty: float = 0.0  # [-2, 2]
    frequency_penalty: float = 0.0  # [-2, 2]
    repetition_penalty: float = 1.0  # [0.01, 100]; 1 is off
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added to the logit, [-100, 100]
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None  # None: no logprobs; k: the sampled token's and the k best (0..20)
    structured_outputs: StructuredOutputs | None = None  # None: any text
    prompt_logprobs: int | None = None  # None: none; k: raw, of each prompt token but the first, and the k best there
    kept_tokens: int | None = None  # None: none; k: the ids, at most k, that top-k, top-p and min-p left at each draw
    routed_experts: bool = False  # the experts that each token went to, in every layer
    reasoning: tuple[str, str] | None = None  # None: all is text; what marks the begin and the end of what is split off


# Fields that came after the first runs were made: while they are these, no hash knows of them.
LATER_FIELDS = {
    "structured_outputs": None,
    "prompt_logprobs": None,
    "kept_tokens": None,
    "reasoning": None,
    "routed_experts": False,
}


class Problem(NamedTuple):
    """What is wrong with one field of a SamplingParams."""

    field: str
    message: str


_INT_MAX = 2**31 - 1
_RANGES: dict[str, tuple[type, float, float]] = {  # both ends included
    "n": (int, 1, _INT_MAX),
    "temperature": (float, 0.0, 100.0),
    "top_p": (float, 0.0, 1.0),
    "top_k": (int, -1, _INT_MAX),
    "min_p": (float, 0.0, 1.0),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 0.01, 100.0),
    "max_tokens": (int, 1, _INT_MAX),
    "min_tokens": (int, 0, _INT_MAX),
    "logprobs": (int, 0, 20),
    "prompt_logprobs": (int, 0, 20),
    "kept_tokens": (int, 1, 65_536),
}
_OR_NONE = ("logprobs", "prompt_logprobs", "kept_tokens")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "routed_experts")


def check_params(params: SamplingParams) -> list[Problem]:
    """Everything that is wrong with the types and ranges of `params`, field by field; empty when all is well.

    Types are strict: True is no integer, "4" no number, and a NaN is in no range. Whether token ids lie
    in the vocabulary is for the engine to say.
    """
    problems = []
    for name, (kind, low, high) in _RANGES.items():
        value = getattr(params, name)
        if not (_in_range(value, kind, low, high) or (name in _OR_NONE and value is None)):
            noun = "an integer" if kind is int else "a number"
            problems.append(Problem(name, f"must be {noun} from {low} to {high}, got {value!r}"))
    problems += [
        Problem(name, f"must be true or false, got {getattr(params, name)!r}")
        for name in _FLAGS
        if not isinstance(getattr(params, name), bool)
    ]
    for name in ("stop", "bad_words"):
        value = getattr(params, name)
        if not isinstance(value, tuple) or not all(isinstance(word, str) and word for word in value):
            problems.append(Problem(name, f"must be a tuple of non-empty strings, got {value!r}"))
    ids = params.stop_token_ids
    if not isinstance(ids, tuple) or not all(_in_range(i, int, 0, _INT_MAX) for i in ids):
        problems.append(Problem("stop_token_ids", f"must be a tuple of token ids, got {ids!r}"))
    biases = params.logit_bias
    if not isinstance(biases, dict) or not all(
        _in_range(i, int, 0, _INT_MAX) and _in_range(bias, float, -100.0, 100.0) for i, bias in biases.items()
    ):
        problems.append(Problem("logit_bias", f"must map token ids to numbers from -100 to 100, got {biases!r}"))
    problems += _check_structure(params.structured_outputs)
    marks = params.reasoning
    if marks is not None and not (isinstance(marks, tuple) and len(marks) == 2 and all(map(_is_mark, marks))):
        problems.append(Problem("reasoning", f"must be two texts, such as <think> and </think>, got {marks!r}"))
    return problems or _check_pairs(params)


def _check_structure(outputs: object) -> list[Problem]:
    if outputs is None:
        return []
    if not isinstance(outputs, StructuredOutputs) or not outputs.kind:
        kinds = ", ".join(_KINDS[:-1])
        return [Problem("structured_outputs", f"must hold exactly one of {kinds} and {_KINDS[-1]}, got {outputs!r}")]
    value, key = getattr(outputs, outputs.kind), f"structured_outputs.{outputs.kind}"
    texts = value if outputs.kind == "choice" else (value,)
    if not isinstance(texts, tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        noun = "a tuple of non-empty texts" if outputs.kind == "choice" else "a non-empty text"
        return [Problem(key, f"must be {noun}, got {value!r}")]
    if len(set(texts)) < len(texts):
        return [Problem(key, "must not hold a text twice")]
    return []


def _is_mark(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _in_range(value: object, kind: type, low: float, high: float) -> bool:
    numeric = int if kind is int else (int, float)
    return isinstance(value, numeric) and not isinstance(value, bool) and low <= value <= high


def _check_pairs(params: SamplingParams) -> list[Problem]:
    """What single ranges cannot say; `params` is known to be well typed."""
    problems = []
    if 0 < params.temperature < 0.01:
        problems.append(Problem("temperature", f"must be 0 (greedy) or at least 0.01, got {params.temperature!r}"))
    if params.top_p == 0:
        problems.append(Problem("top_p", "must be more than 0; for the likeliest token alone use temperature 0"))
    if params.min_tokens > params.max_tokens:
        problems.append(
            Problem("min_tokens", f"must not exceed max_tokens {params.max_tokens}, got {params.min_tokens}")
        )
    if params.structured_outputs is not None:
        problems += [
            Problem(name, "does not go with structured_outputs, which alone say where a text ends")
            for name in ("min_tokens", "stop", "stop_token_ids", "ignore_eos")
            if getattr(params, name)
        ]
        if params.reasoning is not None:  # where the prompt opens a thought, the whole answer would be one
            message = "does not go with structured_outputs, which leave no room for a thought before the answer"
            problems.append(Problem("reasoning", message))
    return problems


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate: `params.n` is ignored, a request is one sample."""

    row_key: str
    sample_index: int
    seed: int  # uint64; from seeds.sample_seed
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    fresh: bool = False  # nothing that was computed for another sequence is used; no bit depends on it
    continuation: tuple[int, ...] | None = None  # the output, given: nothing is drawn, its tokens get their logprobs
    sampling: str | None = None  # what of `params` the row said itself, for its output row


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of a Request.

    `token_ids`, `logprobs` (float32) and each list of `top_logprobs_*` have the same length.
    With finish_reason "error", `error_code` and `error_message` are set, and tokens, text and logprobs are empty.
    Of a `continuation` the tokens are its own, the reason is "length" and the text empty.
    `stop_reason` is the stop string or stop token id that ended it, None for EOS and "length".
    """

    row_key: str
    sample_index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs_ids: tuple[tuple[int, ...], ...] | None = None
    top_logprobs_values: tuple[tuple[float, ...], ...] | None = None
    # Of the prompt, one for each of its tokens: of the first, which nothing comes before, None.
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_top_logprobs_ids: tuple[tuple[int, ...] | None, ...] | None = None
    prompt_top_logprobs_values: tuple[tuple[float, ...] | None, ...] | None = None
    kept_tokens: tuple[tuple[int, ...], ...] | None = None  # ids ascending; None also where nothing was filtered
    # Of all tokens but the last, which was not computed: ids of experts, little endian, [tokens, layers, experts].
    routed_experts: bytes | None = None
    routed_experts_shape: tuple[int, int, int] | None = None
    routed_experts_dtype: str | None = None  # "uint8" or "uint16"
    reasoning: str | None = None  # with `params.reasoning`: what comes before `text`; None where the text has none
    error_code: str | None = None
    error_message: str | None = None
