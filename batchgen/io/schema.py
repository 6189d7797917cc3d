"""The columns of the output: explicit, the same whatever the rows hold. One Parquet row is one sample."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from batchgen.errors import InputError
from batchgen.io.canonical import plain_columns, plain_type
from batchgen.io.hashing import ROW_HASH, leaves, params_hash
from batchgen.records import Completion, SamplingParams
from batchgen.row_sampling import OWN, with_own

SCHEMA_VERSION = 2  # of the columns, the canonical bytes and the manifest; a change of any is a new version

_IDS = pa.list_(pa.int32())
COLUMN_TEXTS: dict[str, str] = {
    "row_key": "names the input row",
    "sample_index": "0 .. n-1, which of the row's samples",
    "seed": "uint64, from the job's seed, row_key and sample_index",
    "status": '"ok" or "error"',
    "error_code": "what kind of failure; null when ok",
    "error_message": "the failure in words; null when ok",
    "prompt_token_ids": "what the model read; null when no prompt could be made",
    "text": "the answer; null on error",
    "token_ids": "the answer's tokens; null on error",
    "finish_reason": '"stop", "length" or "error"',
    "stop_reason": 'the stop string that ended it, or "token:ID" for a stop token; null at EOS and "length"',
    "num_prompt_tokens": "length of prompt_token_ids; null when that is",
    "num_output_tokens": "length of token_ids; null on error",
    "logprobs": "float32 of each token; with sampling.logprobs only; null on error",
    "top_logprobs_ids": "the best alternatives at each token, best first; with sampling.logprobs > 0 only",
    "top_logprobs_values": "their logprobs, float32",
    "prompt_logprobs": "float32, raw, of each prompt token; null of the first; with sampling.prompt_logprobs only",
    "prompt_top_logprobs_ids": "the best tokens at each place of the prompt; with sampling.prompt_logprobs > 0 only",
    "prompt_top_logprobs_values": "their logprobs, float32",
    "kept_tokens": "the ids, ascending, that top_k, top_p and min_p left at each draw; with sampling.kept_tokens only; "
    "null where nothing was filtered",
    "reasoning": "what the model thought before the text; with sampling.reasoning only; null where there is none",
    "routed_experts": "bytes of a C-ordered array: the experts of each token but the last, from the prompt on, in each "
    "layer, ids ascending, 0 in layers without experts; with sampling.routed_experts only",
    "routed_experts_shape": "[num_prompt_tokens + num_output_tokens - 1, layers, experts of a token]",
    "routed_experts_dtype": '"uint8" or, for more than 256 experts, "uint16", little endian',
    "sampling": "what the row said of its own sampling, as RFC 8785 JSON; with inputs[].sampling only; null where it "
    "said nothing, or what cannot be",
    "params_hash": "xxh3_128 of the sampling parameters without n",
    ROW_HASH: "xxh3_128 of the row's other columns in canonical bytes",
}
OUTPUT_COLUMNS = frozenset(COLUMN_TEXTS)
# Has every column.
EVERYTHING = SamplingParams(logprobs=1, prompt_logprobs=1, kept_tokens=1, reasoning=("a", "b"), routed_experts=True)
_HEAD = (
    pa.field("row_key", pa.string(), nullable=False),
    pa.field("sample_index", pa.int32(), nullable=False),
    pa.field("seed", pa.uint64(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("error_code", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("prompt_token_ids", _IDS),
    pa.field("text", pa.string()),
    pa.field("token_ids", _IDS),
    pa.field("finish_reason", pa.string(), nullable=False),
    pa.field("stop_reason", pa.string()),
    pa.field("num_prompt_tokens", pa.int32()),
    pa.field("num_output_tokens", pa.int32()),
)
_LOGPROBS = (pa.field("logprobs", pa.list_(pa.float32())),)
_TOP_LOGPROBS = (
    pa.field("top_logprobs_ids", pa.list_(_IDS)),
    pa.field("top_logprobs_values", pa.list_(pa.list_(pa.float32()))),
)
_PROMPT_LOGPROBS = tuple(pa.field(f"prompt_{field.name}", field.type) for field in _LOGPROBS)
_PROMPT_TOP_LOGPROBS = tuple(pa.field(f"prompt_{field.name}", field.type) for field in _TOP_LOGPROBS)
_KEPT = (pa.field("kept_tokens", pa.list_(_IDS)),)
_REASONING = (pa.field("reasoning", pa.string()),)
_ROUTES = (
    pa.field("routed_experts", pa.binary()),
    pa.field("routed_experts_shape", _IDS),
    pa.field("routed_experts_dtype", pa.string()),
)
_OPTIONAL = (*_LOGPROBS, *_TOP_LOGPROBS, *_PROMPT_LOGPROBS, *_PROMPT_TOP_LOGPROBS, *_KEPT, *_REASONING, *_ROUTES)
_OWN = (pa.field("sampling", pa.string()),)
_TAIL = (pa.field("params_hash", pa.string(), nullable=False), pa.field(ROW_HASH, pa.string(), nullable=False))
_CORE = {field.name: field for field in (*_HEAD, *_OPTIONAL, *_OWN, *_TAIL)}


@dataclass(frozen=True, slots=True)
class Row:
    """One sample on its way to Parquet. `prompt_token_ids` is None when the prompt itself failed."""

    seed: int
    prompt_token_ids: tuple[int, ...] | None
    completion: Completion
    _: KW_ONLY
    sampling: str | None = None  # what the row said of its own


def output_schema(
    passthrough: pa.Schema,
    *,
    params: SamplingParams,
    metadata: Mapping[str, str],
    own_sampling: Collection[str] = (),
) -> pa.Schema:
    """The schema of every file of a run: the core columns, then `passthrough` under types that Parquet holds exactly.

    `params.logprobs` None has no logprob columns, 0 no top_logprobs; so for the prompt's. With
    `own_sampling`, parameters that rows say themselves, there is a column of what they say. Raises InputError for a
    passthrough column that has a core column's name or cannot be stored.
    """
    fields = list(_HEAD)
    for wanted, own, top in (
        (params.logprobs, _LOGPROBS, _TOP_LOGPROBS),
        (params.prompt_logprobs, _PROMPT_LOGPROBS, _PROMPT_TOP_LOGPROBS),
    ):
        fields += own if wanted is not None else ()
        fields += top if wanted else ()
    fields += _KEPT if params.kept_tokens is not None else ()
    fields += _REASONING if params.reasoning is not None else ()
    fields += _ROUTES if params.routed_experts else ()
    fields += _OWN if own_sampling else ()
    fields += _TAIL
    for field in passthrough:
        if field.name in OUTPUT_COLUMNS:
            raise InputError(
                "a passthrough column has the name of an output column", where=field.name, hint="rename it in the input"
            )
        fields.append(pa.field(field.name, plain_type(field.type, field.name)))
    return pa.schema(fields, metadata=dict(metadata))


def rows_to_table(rows: Sequence[Row], passthrough: pa.Table, params: SamplingParams, schema: pa.Schema) -> pa.Table:
    """The rows of one shard as Arrow, hashed. `passthrough` holds one row for each row_key of `rows`, in order.

    `params` are the job's.
    """
    hashes_of = {text: params_hash(with_own(params, text)) for text in {row.sampling for row in rows}}
    done = [row.completion for row in rows]
    failed = [completion.finish_reason == "error" for completion in done]
    columns: dict[str, Sequence[Any]] = {
        "row_key": [completion.row_key for completion in done],
        "sample_index": [completion.sample_index for completion in done],
        "seed": [row.seed for row in rows],
        "status": ["error" if error else "ok" for error in failed],
        "error_code": [completion.error_code for completion in done],
        "error_message": [_printable(completion.error_message) for completion in done],
        "prompt_token_ids": [row.prompt_token_ids for row in rows],
        "num_prompt_tokens": [_size(row.prompt_token_ids) for row in rows],
        "finish_reason": [completion.finish_reason for completion in done],
        "stop_reason": [_stop_reason(completion.stop_reason) for completion in done],
        "params_hash": [hashes_of[row.sampling] for row in rows],
    }
    for name in ("text", "token_ids", *(field.name for field in _OPTIONAL if field.name in schema.names)):
        columns[name] = [None if c.finish_reason == "error" else getattr(c, name) for c in done]
    if schema.names[schema.names.index("params_hash") - 1] == "sampling":
        columns["sampling"] = [row.sampling for row in rows]
    columns["num_output_tokens"] = [_size(ids) for ids in columns["token_ids"]]
    core = [pa.array(columns[f.name], f.type) for f in schema if f.name in columns]
    names = [field.name for field in schema if field.name in columns]
    keys = columns["row_key"]
    input_row = np.cumsum([at > 0 and keys[at] != keys[at - 1] for at in range(len(keys))], dtype=np.int64)
    carried = [
        passthrough[name].take(pa.array(input_row)).cast(schema.field(name).type)
        for name in schema.names[len(names) + 1 :]
    ]
    table = pa.table([*core, *carried], names=[*names, *schema.names[len(names) + 1 :]])
    hashes = pa.array([leaf.hex() for leaf in leaves(table)], pa.string())
    return table.add_column(len(names), ROW_HASH, hashes).cast(schema)


def as_written(rows: pa.Table) -> pa.Table:
    """`rows` of a file that another program may have written anew, under the types and names of `output_schema`.

    Raises ValueError for two columns of one name, text that is no UTF-8, and a null where none may be.
    """
    if len(set(rows.column_names)) < rows.num_columns:
        raise ValueError("two columns have one name")
    rows = plain_columns(rows)
    rows = rows.cast(pa.schema([_CORE.get(field.name, field) for field in rows.schema]))
    rows.validate(full=True)
    return rows


def rows_schema() -> dict[str, Any]:
    """The JSON Schema of a row, as a JSON object of its columns."""
    everything = output_schema(pa.schema([]), params=EVERYTHING, own_sampling=OWN, metadata={})
    optional = {field.name for field in (*_OPTIONAL, *_OWN)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "batchgen row",
        "description": f"One sample; schema version {SCHEMA_VERSION}. Passthrough columns follow the ones named here.",
        "type": "object",
        "properties": {
            field.name: {"description": COLUMN_TEXTS[field.name], "arrow": str(field.type)} | _json_type(field)
            for field in everything
        },
        "required": [field.name for field in everything if field.name not in optional],
    }


def _json_type(field: pa.Field) -> dict[str, Any]:
    def of(type_: pa.DataType) -> dict[str, Any]:
        if pa.types.is_list(type_):
            return {"type": "array", "items": of(type_.value_type)}
        if pa.types.is_binary(type_):
            return {"type": "string", "contentEncoding": "base16"}  # as `--json` prints it
        if pa.types.is_string(type_):
            return {"type": "string"}
        return {"type": "number" if pa.types.is_floating(type_) else "integer"}

    schema = of(field.type)
    if field in (*_PROMPT_LOGPROBS, *_PROMPT_TOP_LOGPROBS):  # nothing comes before the first token
        schema["items"]["type"] = [schema["items"]["type"], "null"]
    return schema | {"type": [schema["type"], "null"]} if field.nullable else schema


def _size(ids: Sequence[int] | None) -> int | None:
    return None if ids is None else len(ids)


def _stop_reason(reason: int | str | None) -> str | None:
    return f"token:{reason}" if isinstance(reason, int) else reason


def _printable(message: str | None) -> str | None:
    """A message may quote the very text that could not be encoded."""
    return None if message is None else message.encode("utf-8", "backslashreplace").decode()
