"""One line of an OpenAI batch file: what it asks for, in this project's words, or why that cannot be had."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from batchgen.errors import nearest
from batchgen.records import SamplingParams, StructuredOutputs, check_params
from batchgen.row_sampling import OWN

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ENVELOPE = {"custom_id", "method", "url", "body"}
_IGNORED = {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"}  # change no answer
_OFF: dict[str, Any] = {"stream": False, "echo": False, "best_of": 1, "suffix": "", "tools": [], "modalities": ["text"]}
_SAME = {field.name for field in fields(SamplingParams)} - {"logprobs", "structured_outputs", "logit_bias", "stop"}


class RequestFault(ValueError):
    """A request that cannot be asked; the others of its file can."""


class LineFault(ValueError):
    """A line that is no request: nothing could say what became of it."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request: `kind` is messages, prompt or prompt_token_ids, and `prompt` is of that kind."""

    custom_id: str
    model: str
    kind: str
    prompt: Any
    sampling: Mapping[str, Any]  # what it says, by the names of SamplingParams
    seed: int

    @property
    def own(self) -> dict[str, Any]:
        """What of `sampling` a row can say itself, by the names of `row_sampling`; a schema is text."""
        schema = self.sampling.get("structured_outputs", {}).get("json_schema")
        form = {} if schema is None else {"json_schema": json.dumps(schema, ensure_ascii=False)}
        return {name: value for name, value in self.sampling.items() if name in OWN} | form

    @property
    def of_job(self) -> dict[str, Any]:
        """What a job has once, by name."""
        plain = {name: value for name, value in self.sampling.items() if name not in (*OWN, "structured_outputs")}
        return {"kind of prompt": self.kind, "seed": self.seed} | plain

    @property
    def setting(self) -> str:
        """Equal for requests that one job can hold."""
        return json.dumps(self.of_job, sort_keys=True)


def parse_line(line: str) -> tuple[str, str, dict[str, Any]]:
    """(custom_id, url, body) of a line. Raises LineFault."""
    try:
        found = json.loads(line, object_pairs_hook=_no_twins, parse_constant=_no_constant)
        line.encode()
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise LineFault("holds half a surrogate pair, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise LineFault(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LineFault("is not a JSON object")
    if unknown := sorted(found.keys() - _ENVELOPE):
        raise LineFault(f"has an unknown key {unknown[0]!r} ({nearest(unknown[0], _ENVELOPE)})")
    custom_id, method, url, body = (found.get(key) for key in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        raise LineFault("has no custom_id that is text")
    if method != "POST":
        raise LineFault(f"has the method {method!r}, not 'POST'")
    if url not in (CHAT, COMPLETIONS):
        raise LineFault(f"asks {url!r}; only {CHAT} and {COMPLETIONS} are known")
    if not isinstance(body, dict):
        raise LineFault("has no body that is an object")
    return custom_id, url, body


def parse_request(custom_id: str, url: str, body: Mapping[str, Any], max_tokens: int | None) -> BatchRequest:
    """What a body asks for; `max_tokens` is for bodies that do not say it. Raises RequestFault."""
    left = {name: value for name, value in body.items() if value is not None and name not in _IGNORED}
    model = left.pop("model", None)
    if not isinstance(model, str):
        raise RequestFault("has no model that is text")
    for name, off in _OFF.items():
        if name in left and left.pop(name) != off:
            raise RequestFault(f"asks for {name}, which is not supported")
    kind, prompt = _chat(left) if url == CHAT else _completion(left)
    seed = left.pop("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise RequestFault(f"has the seed {seed!r}, not an integer from 0 to 2^64 - 1")
    sampling = _sampling(left, url, max_tokens)
    if left:
        name = sorted(left)[0]
        raise RequestFault(f"has an unknown or unsupported {name!r} ({nearest(name, _SAME)})")
    return BatchRequest(custom_id, model, kind, prompt, sampling, seed)


def _chat(left: dict[str, Any]) -> tuple[str, Any]:
    messages = left.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise RequestFault("has no list of messages")
    return "messages", [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(message: Any, what: str) -> dict[str, str | None]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestFault(f"has {what} without a role")
    given = {name for name, value in message.items() if value is not None}
    if other := sorted(given - {"role", "content", "name"}):
        raise RequestFault(f"has {what}.{other[0]}, which is not supported")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{what}.content[{at}]") for at, part in enumerate(content))
    if content is not None and not isinstance(content, str):
        raise RequestFault(f"has {what}.content that is no text")
    found = {"role": message["role"], "content": content}
    return found | ({"name": message["name"]} if "name" in given else {})


def _part(part: Any, what: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise RequestFault(f"has {what} of a type other than text")
    text: str = part["text"]
    return text


def _completion(left: dict[str, Any]) -> tuple[str, Any]:
    prompt = left.pop("prompt", None)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return "prompt", prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int and 0 <= token < 2**31 for token in prompt):
        return "prompt_token_ids", prompt
    raise RequestFault("has no prompt that is one text or one list of token ids")


def _sampling(left: dict[str, Any], url: str, max_tokens: int | None) -> dict[str, Any]:
    """What `left` says of sampling, by the names of SamplingParams; taken out of it."""
    found = {name: left.pop(name) for name in sorted(_SAME & left.keys())}
    if url == CHAT and "max_completion_tokens" in left:
        found["max_tokens"] = left.pop("max_completion_tokens")
    if "max_tokens" not in found:
        if max_tokens is None and url == CHAT:
            raise RequestFault("does not say max_tokens, and --max-tokens does not either")
        found["max_tokens"] = 16 if max_tokens is None else max_tokens
    if "stop" in left:
        stop = left.pop("stop")
        found["stop"] = [stop] if isinstance(stop, str) else stop
    if "logit_bias" in left:
        found["logit_bias"] = _bias(left.pop("logit_bias"))
    if (logprobs := _logprobs(left, url)) is not None:
        found["logprobs"] = logprobs
    if (schema := _schema(left.pop("response_format", {"type": "text"}))) is not None:
        found["structured_outputs"] = {"json_schema": schema}
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    outputs = {} if schema is None else {"structured_outputs": StructuredOutputs(json_schema=json.dumps(schema))}
    for problem in check_params(SamplingParams(**(found | lists | outputs))):
        raise RequestFault(f"has a {problem.field} that cannot be: {problem.message}")
    if "logit_bias" in found:  # 1 and 1.0 are one setting
        found["logit_bias"] = {token: float(bias) for token, bias in found["logit_bias"].items()}
    return found


def _logprobs(left: dict[str, Any], url: str) -> Any:
    wanted, top = left.pop("logprobs", None), left.pop("top_logprobs", None)
    if url == COMPLETIONS:
        return wanted
    if wanted not in (None, True, False) or (top is not None and wanted is not True):
        raise RequestFault("has logprobs and top_logprobs that do not go together")
    return (0 if top is None else top) if wanted else None


def _bias(given: Any) -> dict[int, float]:
    if not isinstance(given, dict) or not all(token.isdecimal() for token in given):
        raise RequestFault("has a logit_bias that does not map token ids to numbers")
    return {int(token): value for token, value in given.items()}


def _schema(given: Any) -> Any:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    schema = (given.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise RequestFault(f"asks for a response_format of type {kind!r}; text and json_schema are known")
    return schema


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
