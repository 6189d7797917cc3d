"""Lines of OpenAI's batch output and error files. Times in them are 0: nothing that is written here knows a clock."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]


def error_line(custom_id: str, request_id: str, status: int, code: str, message: str) -> str:
    """A line of an error file: 400 for a request that cannot be answered, 500 for an engine that failed on it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return _line(custom_id, request_id, status, {"error": error})


def chat_line(rows: Sequence[Mapping[str, Any]], model: str, fingerprint: str, decode: Decode | None) -> str:
    """A line of an output file: the samples of one row as a chat.completion."""
    choices = [
        {
            "index": row["sample_index"],
            "message": {"role": "assistant", "content": row["text"], "refusal": None} | _reasoning(row),
            "logprobs": _chat_logprobs(row, decode),
            "finish_reason": row["finish_reason"],
        }
        for row in rows
    ]
    return _answer(rows, "chat.completion", "chatcmpl", {"model": model, "choices": choices}, fingerprint)


def _reasoning(row: Mapping[str, Any]) -> dict[str, str]:
    """Under the name that servers give it who split it off."""
    return {} if row.get("reasoning") is None else {"reasoning_content": row["reasoning"]}


def completion_line(rows: Sequence[Mapping[str, Any]], model: str, fingerprint: str, decode: Decode | None) -> str:
    """A line of an output file: the samples of one row as a text_completion."""
    choices = [
        {
            "index": row["sample_index"],
            "text": row["text"],
            "logprobs": _text_logprobs(row, decode),
            "finish_reason": row["finish_reason"],
        }
        | _reasoning(row)
        for row in rows
    ]
    return _answer(rows, "text_completion", "cmpl", {"model": model, "choices": choices}, fingerprint)


def _answer(rows: Sequence[Mapping[str, Any]], kind: str, prefix: str, content: dict[str, Any], print_: str) -> str:
    first, output = rows[0], sum(row["num_output_tokens"] for row in rows)
    prompt = first["num_prompt_tokens"]  # once, however many samples
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    head = {"id": f"{prefix}-{first['row_hash']}", "object": kind, "created": 0}
    body = {**head, **content, "usage": usage, "system_fingerprint": f"fp_{print_[:16]}"}
    return _line(first["row_key"], first["row_hash"], 200, body)


def _line(custom_id: str, request_id: str, status: int, body: Mapping[str, Any]) -> str:
    response = {"status_code": status, "request_id": request_id, "body": body}
    line = {"id": f"batch_req_{request_id}", "custom_id": custom_id, "response": response, "error": None}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"


def _chat_logprobs(row: Mapping[str, Any], decode: Decode | None) -> Any:
    if row.get("logprobs") is None or decode is None:
        return None
    tops = _tops(row)
    tokens = [
        _token(decode, token, logprob) | {"top_logprobs": [_token(decode, t, value) for t, value in top]}
        for token, logprob, top in zip(row["token_ids"], row["logprobs"], tops, strict=True)
    ]
    return {"content": tokens, "refusal": None}


def _token(decode: Decode, token: int, logprob: float) -> dict[str, Any]:
    """`bytes` is null for a token that is a part of a character."""
    text = decode([token])
    return {"token": text, "bytes": None if "\ufffd" in text else list(text.encode()), "logprob": logprob}


def _text_logprobs(row: Mapping[str, Any], decode: Decode | None) -> Any:
    if row.get("logprobs") is None or decode is None:
        return None
    tokens = [decode([token]) for token in row["token_ids"]]
    offsets = [sum(map(len, tokens[:at])) for at in range(len(tokens))]
    tops = [{decode([token]): value for token, value in reversed(top)} for top in _tops(row)]
    return {"tokens": tokens, "token_logprobs": row["logprobs"], "top_logprobs": tops, "text_offset": offsets}


def _tops(row: Mapping[str, Any]) -> list[list[tuple[int, float]]]:
    ids, values = row.get("top_logprobs_ids"), row.get("top_logprobs_values")
    if ids is None or values is None:
        return [[] for _ in row["token_ids"]]
    return [list(zip(some, theirs, strict=True)) for some, theirs in zip(ids, values, strict=True)]
