"""What each trainer reads, field by field: one Parquet row is one sample, under the names of the trainer's own type.

    verl         the fields of AgentLoopOutput                 AgentLoopOutput(**row)
    skyrl        the columns of GeneratorOutput                table.to_pydict()
    slime        the fields of Sample                          Sample.from_dict(row)
    prime-rl     the fields of TrainingSample                  TrainingSample(**row)
    openrlhf     the fields of Experience, of one sample       lists, to be made into tensors [1, length]

Every token of an answer was drawn, so masks are 1 for all of them and 0 for those of the prompt. Kept tokens and
routed experts of a run go to those that have a field for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from batchgen.exports.extras import Extra, kept_ids, kept_offsets, nested_experts, packed_experts
from batchgen.exports.sample import Sample

_IDS, _MASK, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.int8()), pa.list_(pa.float32())


class Policy(NamedTuple):
    """What all rows of a run were drawn with."""

    job: str
    weights_digest: str
    temperature: float
    n: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a trainer, and a row of them."""

    columns: Callable[[pa.Schema], list[pa.Field]]  # given the passthrough columns
    row: Callable[[Sample, Policy], dict[str, Any]]
    rewards: str  # "may", "must" or "no": whether they can be given, must be, or have no place
    extras: tuple[Extra, ...] = ()  # what else it reads of a run that has it
    reads_text: bool = False  # of the whole answer, reasoning included


def _about(carried: pa.Schema) -> pa.DataType:
    """What no field of a trainer's type holds."""
    fields = [pa.field("uid", pa.string()), pa.field("sample_index", pa.int32()), pa.field("weights", pa.string())]
    return pa.struct([*fields, pa.field("input", pa.struct(list(carried)))] if len(carried) else fields)


def _about_row(sample: Sample, policy: Policy) -> dict[str, Any]:
    about = {"uid": sample.row_key, "sample_index": sample.sample_index, "weights": policy.weights_digest}
    return about | ({"input": dict(sample.carried)} if sample.carried else {})


def _verl_columns(carried: pa.Schema) -> list[pa.Field]:
    times = [pa.field(name, pa.float32()) for name in ("generate_sequences", "tool_calls", "compute_score")]
    return [
        pa.field("prompt_ids", _IDS),
        pa.field("response_ids", _IDS),
        pa.field("response_mask", _MASK),
        pa.field("response_logprobs", _FLOATS),
        pa.field("reward_score", pa.float32()),
        pa.field("num_turns", pa.int32()),
        pa.field("metrics", pa.struct(times)),
        pa.field("extra_fields", _about(carried)),
    ]


def _verl(sample: Sample, policy: Policy) -> dict[str, Any]:
    return {
        "prompt_ids": sample.prompt,
        "response_ids": sample.answer,
        "response_mask": [1] * len(sample.answer),
        "response_logprobs": sample.logprobs,
        "reward_score": sample.reward,
        "num_turns": 2,
        "metrics": {"generate_sequences": 0.0, "tool_calls": 0.0, "compute_score": 0.0},
        "extra_fields": _about_row(sample, policy),
    }


def _skyrl_columns(carried: pa.Schema) -> list[pa.Field]:
    trajectory = pa.struct([pa.field("instance_id", pa.string()), pa.field("repetition_id", pa.int32())])
    return [
        pa.field("prompt_token_ids", _IDS),
        pa.field("response_ids", _IDS),
        pa.field("rewards", pa.float32()),
        pa.field("loss_masks", _MASK),
        pa.field("stop_reasons", pa.string()),
        pa.field("rollout_logprobs", _FLOATS),
        pa.field("trajectory_ids", trajectory),
    ]


def _skyrl(sample: Sample, policy: Policy) -> dict[str, Any]:
    return {
        "prompt_token_ids": sample.prompt,
        "response_ids": sample.answer,
        "rewards": sample.reward,
        "loss_masks": [1] * len(sample.answer),
        "stop_reasons": sample.finish_reason,
        "rollout_logprobs": sample.logprobs,
        "trajectory_ids": {"instance_id": sample.row_key, "repetition_id": sample.sample_index},
    }


def _slime_columns(carried: pa.Schema) -> list[pa.Field]:
    return [
        pa.field("group_index", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("tokens", _IDS),
        pa.field("response", pa.string()),
        pa.field("response_length", pa.int32()),
        pa.field("reward", pa.float32()),
        pa.field("loss_mask", _MASK),
        pa.field("weight_versions", pa.list_(pa.string())),
        pa.field("rollout_log_probs", _FLOATS),
        pa.field("status", pa.string()),
        pa.field("metadata", _about(carried)),
    ]


def _slime(sample: Sample, policy: Policy) -> dict[str, Any]:
    return {
        "group_index": sample.group,
        "index": sample.group * policy.n + sample.sample_index,
        "tokens": [*sample.prompt, *sample.answer],
        "response": sample.text,
        "response_length": len(sample.answer),
        "reward": sample.reward,
        "loss_mask": [1] * len(sample.answer),
        "weight_versions": [policy.weights_digest],
        "rollout_log_probs": sample.logprobs,
        "status": {"stop": "completed", "length": "truncated"}[sample.finish_reason],
        "metadata": _about_row(sample, policy),
    }


def _prime_columns(carried: pa.Schema) -> list[pa.Field]:
    return [
        pa.field("token_ids", _IDS),
        pa.field("mask", pa.list_(pa.bool_())),
        pa.field("logprobs", _FLOATS),
        pa.field("temperatures", _FLOATS),
        pa.field("env_name", pa.string()),
    ]


def _prime(sample: Sample, policy: Policy) -> dict[str, Any]:
    before, after = len(sample.prompt), len(sample.answer)
    return {
        "token_ids": [*sample.prompt, *sample.answer],
        "mask": [False] * before + [True] * after,
        "logprobs": [0.0] * before + list(sample.logprobs),
        "temperatures": [policy.temperature] * (before + after),
        "env_name": policy.job,
    }


def _openrlhf_columns(carried: pa.Schema) -> list[pa.Field]:
    return [
        pa.field("sequences", _IDS),
        pa.field("attention_mask", _MASK),
        pa.field("action_mask", _MASK),
        pa.field("rollout_log_probs", _FLOATS),
        pa.field("rewards", pa.float32()),
        pa.field("response_length", pa.int32()),
        pa.field("truncated", pa.bool_()),
        pa.field("total_length", pa.int32()),
        pa.field("index", pa.int64()),
    ]


def _openrlhf(sample: Sample, policy: Policy) -> dict[str, Any]:
    """Masks and logprobs stand at the place of the token before, so they are one shorter than the sequence."""
    before, after = len(sample.prompt), len(sample.answer)
    return {
        "sequences": [*sample.prompt, *sample.answer],
        "attention_mask": [1] * (before + after),
        "action_mask": [0] * (before - 1) + [1] * after,
        "rollout_log_probs": [0.0] * (before - 1) + list(sample.logprobs),
        "rewards": sample.reward,
        "response_length": after,
        "truncated": sample.finish_reason == "length",
        "total_length": before + after,
        "index": sample.group,
    }


def _routed(name: str) -> Extra:
    return Extra("routed_experts", name, nested_experts)


_KEPT_BY_SLIME = (
    Extra("kept_tokens", "rollout_top_p_token_ids", kept_ids),
    Extra("kept_tokens", "rollout_top_p_token_offsets", kept_offsets),
)
SHAPES: dict[str, Shape] = {
    "verl": Shape(_verl_columns, _verl, "may", (_routed("routed_experts"),)),
    "skyrl": Shape(_skyrl_columns, _skyrl, "must", (_routed("rollout_expert_indices"),)),
    "slime": Shape(
        _slime_columns, _slime, "may", (_routed("rollout_routed_experts"), *_KEPT_BY_SLIME), reads_text=True
    ),
    "prime-rl": Shape(_prime_columns, _prime, "no", (Extra("routed_experts", "routed_experts", packed_experts),)),
    "openrlhf": Shape(_openrlhf_columns, _openrlhf, "may"),
}
