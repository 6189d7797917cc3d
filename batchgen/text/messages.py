"""Check the chat messages and tools of a row before a template sees them."""

from typing import Any

from batchgen.errors import RowError


def check_text(text: Any, what: str) -> str:
    """`text` itself, if it is valid Unicode text. RowError "prompt_null", "prompt_type" or "prompt_encoding" if not."""
    if text is None:
        raise RowError("prompt_null", f"{what} is null")
    if not isinstance(text, str):
        raise RowError("prompt_type", f"{what} is not text but {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError(
                "prompt_encoding", f"{what} holds half a surrogate pair at character {error.start}"
            ) from None
    return text


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as a template gets them: null fields left out, each content one text.

    Text parts are joined with nothing between them, which is how templates print them. An assistant message with
    tool calls needs no content.
    Raises RowError: "prompt_null", "prompt_empty", "prompt_type", "prompt_encoding".
    """
    if not isinstance(messages, list):
        raise RowError("prompt_type", f"the messages are not a list but {type(messages).__name__}")
    if not messages:
        raise RowError("prompt_empty", "the list of messages is empty")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tools as a template gets them; None if the row has none."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError("prompt_type", "the tools are not a list of objects")
    for i, tool in enumerate(tools):
        _check_json(tool, f"tools[{i}]")
    return tools


def _check_message(message: Any, what: str) -> dict[str, Any]:
    if message is None:
        raise RowError("prompt_null", f"{what} is null")
    if not isinstance(message, dict):
        raise RowError("prompt_type", f"{what} is not an object but {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise RowError("prompt_type", f"{what} has no role that is text")
    _check_json(message, what)
    checked = {name: value for name, value in message.items() if value is not None}
    if "content" in checked:
        return checked | {"content": _join_parts(checked["content"], f"{what}.content")}
    if checked["role"] == "assistant" and checked.get("tool_calls"):
        return checked
    raise RowError("prompt_null", f"{what}.content is null")


def _join_parts(content: Any, what: str) -> str:
    if not isinstance(content, list):
        return check_text(content, what)
    if not content:
        raise RowError("prompt_empty", f"{what} is an empty list")
    return "".join(_part_text(part, f"{what}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, what: str) -> str:
    if part is None:
        raise RowError("prompt_null", f"{what} is null")
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise RowError("prompt_type", f"{what} is of type {kind!r}; only 'text' is supported")
    if others := sorted(name for name, value in part.items() if value is not None and name not in ("type", "text")):
        raise RowError("prompt_type", f"{what} holds {others[0]!r} beside its text")
    return check_text(part.get("text"), f"{what}.text")


def _check_json(value: Any, what: str) -> None:
    """Only what JSON can say reaches a template: other objects have methods, or print differently from run to run."""
    if isinstance(value, str):
        check_text(value, what)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_json(item, f"{what}.{check_text(key, f'a key of {what}')}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_json(item, f"{what}[{i}]")
    elif value is not None and not isinstance(value, bool | int | float):
        raise RowError("prompt_type", f"{what} is of type {type(value).__name__}, which JSON cannot hold")
