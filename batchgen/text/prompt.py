"""PromptBuilder: the prompt ids of a row, or the RowError that says why it has none."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from batchgen.errors import ModelError, RowError, SpecError, nearest
from batchgen.spec import PromptSpec
from batchgen.text.marks import Marks
from batchgen.text.messages import check_messages, check_text, check_tools
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Special, Tokenizer


class PromptRow(Protocol):
    """What a row says: an error that was found when it was read, or one of the three kinds of prompt, or null."""

    @property
    def error(self) -> RowError | None: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def messages(self) -> list[dict[str, Any]] | None: ...
    @property
    def tools(self) -> list[dict[str, Any]] | None: ...
    @property
    def prompt_token_ids(self) -> list[int] | None: ...


class PromptBuilder:
    """Builds prompts by the policies of a job.

    `chat_template` is the source of a template or the name of one of the tokenizer's; None takes the tokenizer's
    "tool_use" for rows with tools if there is one, else its "default". A blank prompt is a prompt: white space is text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        policy: PromptSpec,
        *,
        max_model_len: int,
        max_tokens: int,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ModelError when a template is not valid, SpecError when the kwargs name what each row brings, or what
        no template reads."""
        self._tokenizer, self._policy = tokenizer, policy
        self._max_model_len, self._max_tokens = max_model_len, max_tokens
        now = None if policy.template_now is None else datetime.fromisoformat(policy.template_now)
        sources = dict(tokenizer.chat_templates)
        if chat_template is not None:
            sources = {"default": sources.get(chat_template, chat_template)}
        if taken := sorted({"messages", "tools"} & set(chat_template_kwargs or {})):
            raise SpecError(f"{taken[0]!r} comes from the row", where="model.chat_template_kwargs")
        variables = {**tokenizer.special_tokens, **(chat_template_kwargs or {})}
        self._templates = {name: ChatTemplate(source, now=now, variables=variables) for name, source in sources.items()}
        self._check_read(chat_template_kwargs or {})

    def build(self, row: PromptRow, max_tokens: int | None = None) -> list[int]:
        """The prompt ids: at least one, each in the vocabulary, with room for max_tokens after them; None: the job's.

        Raises RowError with one of the prompt codes, "control_token" or "template"; SpecError when the template asks
        for the time and the job does not say it; ModelError when there is no template for messages.
        """
        if row.error is not None:
            raise row.error
        return self._fit(*self._parts(row), self._max_tokens if max_tokens is None else max_tokens)

    def control_tokens(self, row: PromptRow) -> list[str]:
        """The control tokens written in the row's data, in order. Raises RowError for a row that is not well formed."""
        if row.messages is not None:
            data: Any = [check_messages(row.messages), check_tools(row.tools)]
        else:
            data = row.prompt
        return self._tokenizer.control_tokens.find_all(data)

    def _parts(self, row: PromptRow) -> tuple[list[int], list[int], list[int]]:
        """What stands before the ids of a row, these, and what comes behind them."""
        if row.prompt_token_ids is not None:
            return [], self._check_ids(row.prompt_token_ids), []
        if row.messages is not None:
            return self._with_special_tokens(self._encode_chat(row), wanted=self._policy.add_special_tokens is True)
        ids = self._encode_prompt(row.prompt)
        return self._with_special_tokens(ids, wanted=self._policy.add_special_tokens is not False)

    def _encode_prompt(self, prompt: str | None) -> list[int]:
        text = check_text(prompt, "the prompt")
        if not text:
            raise RowError("prompt_empty", "the prompt is an empty text")
        self._refuse_control_tokens(text)
        special: Special = "allow" if self._policy.special_tokens_in_content == "allow" else "text"
        return self._tokenizer.encode(text, add_special_tokens=False, special=special)

    def _encode_chat(self, row: PromptRow) -> list[int]:
        messages, tools = check_messages(row.messages), check_tools(row.tools)
        self._refuse_control_tokens([messages, tools])
        template = self._template("tool_use" if tools and "tool_use" in self._templates else "default")
        if self._policy.special_tokens_in_content == "allow":
            return self._tokenizer.encode(
                _rendered(template, messages, tools), add_special_tokens=False, special="allow"
            )
        marks = Marks(self._tokenizer.control_tokens)
        return self._tokenizer.encode_rendered(_rendered(template, marks.hide(messages), marks.hide(tools)), marks)

    def _check_read(self, kwargs: Mapping[str, Any]) -> None:
        """Refuse variables that no row's template asks for."""
        reads = [self._templates[name].reads for name in ("default", "tool_use") if name in self._templates]
        for name in kwargs:
            if not any(name in names for names in reads):
                own = frozenset().union(*reads) - {"messages", "tools", "documents", *self._tokenizer.special_tokens}
                hint = nearest(name, own) if own else "it has no variables of its own"
                message = "the chat template does not read it" if reads else "the model has no chat template"
                raise SpecError(message, where=f"model.chat_template_kwargs.{name}", hint=hint if reads else "")

    def _template(self, name: str) -> ChatTemplate:
        if name not in self._templates:
            known = ", ".join(sorted(self._templates))
            raise ModelError(
                f"the model has no {name} chat template" + (f", only {known}" if known else ""),
                hint="name one in model.chat_template, or map the prompt column instead of messages",
            )
        return self._templates[name]

    def _refuse_control_tokens(self, data: Any) -> None:
        if self._policy.special_tokens_in_content == "error":
            for literal in self._tokenizer.control_tokens.find_all(data):
                raise RowError("control_token", f"the text holds the control token {literal!r}")

    def _check_ids(self, ids: list[int]) -> list[int]:
        for i, token_id in enumerate(ids):
            if type(token_id) is not int or not 0 <= token_id < self._tokenizer.vocab_size:
                limit = self._tokenizer.vocab_size
                raise RowError("prompt_type", f"prompt_token_ids[{i}] is {token_id!r}, not one of the {limit} ids")
        return list(ids)

    def _with_special_tokens(self, ids: list[int], *, wanted: bool) -> tuple[list[int], list[int], list[int]]:
        if not wanted:
            return [], ids, []
        prefix, suffix = list(self._tokenizer.prefix_ids), list(self._tokenizer.suffix_ids)
        begins = bool(prefix) and ids[: len(prefix)] == prefix  # a template, or an allowed literal, wrote it already
        return [] if begins else prefix, ids, suffix

    def _fit(self, prefix: list[int], ids: list[int], suffix: list[int], max_tokens: int) -> list[int]:
        if not ids:
            raise RowError("prompt_empty", "the prompt has no tokens")
        room = self._max_model_len - max_tokens - len(prefix) - len(suffix)
        if len(ids) > room:
            if self._policy.overlong == "error" or room < 1:
                length, limit = len(prefix) + len(ids) + len(suffix), self._max_model_len
                raise RowError(
                    "prompt_overlong",
                    f"{length} prompt tokens and max_tokens {max_tokens} do not fit in max_model_len {limit}",
                )
            ids = ids[-room:]
        return prefix + ids + suffix


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """The chat as text. Raises RowError "template" as `ChatTemplate.render`, and where the tools leave no trace."""
    text = template.render(messages, tools)
    if tools and ("tools" not in template.reads or text == _without_tools(template, messages)):
        raise RowError("template", "the chat template ignores the tools of the row")
    return text


def _without_tools(template: ChatTemplate, messages: list[dict[str, Any]]) -> str | None:
    """None where it cannot do without."""
    try:
        return template.render(messages, None)
    except RowError:
        return None
