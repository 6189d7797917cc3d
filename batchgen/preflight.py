"""Reads every prompt of a job once and says what the job would meet, before any weights are loaded."""

import dataclasses
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from batchgen.errors import RowError
from batchgen.io.reader import InputRow, Inputs, read_rows
from batchgen.spec import JobSpec
from batchgen.text.asking import RowParams, asked_by

# Of one sample in memory: keys, hashes, seeds and the text of a token at about four bytes.
_BYTES_A_SAMPLE, _BYTES_A_TOKEN, _BYTES_A_LOGPROB = 256, 4 + 4, 4 + 4


class Prompts(Protocol):
    """What preflight asks of a PromptBuilder."""

    def build(self, row: InputRow, max_tokens: int | None = None) -> list[int]: ...
    def control_tokens(self, row: InputRow) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Lengths of the prompts that can be answered, in tokens; all 0 when there are none."""

    total: int
    minimum: int
    median: int  # the lower one of an even number
    maximum: int
    histogram: tuple[tuple[int, int], ...]  # (up to this length, prompts): 1, 2, 4, ...


@dataclass(frozen=True, slots=True)
class RowFault:
    """How many rows fail with one code, and the first of them."""

    code: str
    count: int
    first: str  # "prompts.parquet row 17"
    message: str  # of the first


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a job would meet."""

    num_files: int
    num_rows: int
    num_samples: int
    prompt_tokens: TokenCounts
    faults: tuple[RowFault, ...]  # rows that become error rows, by code
    control_token_rows: int  # whose data holds text that looks like a control token
    first_control_token: str | None  # where, and which
    duplicate_prompts: int  # rows with the prompt ids of an earlier row
    max_output_tokens: int  # if every sample runs to max_tokens
    max_output_bytes: int  # about, before compression and without passthrough columns

    @property
    def num_error_rows(self) -> int:
        return sum(fault.count for fault in self.faults)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self) | {"num_error_rows": self.num_error_rows}


def preflight(
    spec: JobSpec, inputs: Inputs, prompts: Prompts, moe_bytes: int = 0, params: RowParams | None = None
) -> Preflight:
    """Build each prompt of `inputs` with `prompts`, row by row; holds 8 bytes a row. Raises InputError.

    `moe_bytes`: what the experts of one token take in `routed_experts`. `params`: of rows that say some themselves.
    """
    lengths: Counter[int] = Counter()
    faults: dict[str, RowFault] = {}
    hashes = array("Q")
    control_token_rows, first_control_token, most_output = 0, None, 0
    params = params or RowParams(spec.sampling)
    for row in read_rows(inputs, 0, inputs.num_rows):
        if literals := _control_tokens(prompts, row):
            control_token_rows += 1
            first_control_token = first_control_token or f"{row.where}: {literals[0]}"
        _, own, ids = asked_by(row, params, prompts.build)
        if isinstance(ids, RowError):
            seen = faults.get(ids.code, RowFault(ids.code, 0, row.where, ids.message))
            faults[ids.code] = dataclasses.replace(seen, count=seen.count + 1)
        else:
            most_output += own.max_tokens
            lengths[len(ids)] += 1
            hashes.append(xxhash.xxh3_64_intdigest(np.asarray(ids, np.int32).tobytes()))
    counts = _summarise(lengths)
    return Preflight(
        num_files=len(inputs.files),
        num_rows=inputs.num_rows,
        num_samples=inputs.num_rows * spec.sampling.n,
        prompt_tokens=counts,
        faults=tuple(fault for _, fault in sorted(faults.items())),
        control_token_rows=control_token_rows,
        first_control_token=first_control_token,
        duplicate_prompts=_repeated(np.frombuffer(hashes, np.uint64)),
        max_output_tokens=most_output * spec.sampling.n,
        max_output_bytes=_output_bytes(spec, inputs.num_rows, most_output, counts.total, moe_bytes),
    )


def _repeated(hashes: NDArray[np.uint64]) -> int:
    """How many equal an earlier one. They are sorted where they are: a copy would be as large as all that is held."""
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


def _control_tokens(prompts: Prompts, row: InputRow) -> list[str]:
    if row.prompt is None and row.messages is None:
        return []
    try:
        return prompts.control_tokens(row)
    except RowError:  # not well formed: build() says so
        return []


def _summarise(lengths: Counter[int]) -> TokenCounts:
    if not lengths:
        return TokenCounts(0, 0, 0, 0, ())
    ascending = sorted(lengths)
    middle, below, median = (lengths.total() + 1) // 2, 0, 0
    for median in ascending:
        below += lengths[median]
        if below >= middle:
            break
    buckets: Counter[int] = Counter()
    for length, count in lengths.items():
        buckets[1 << (length - 1).bit_length()] += count
    total = sum(length * count for length, count in lengths.items())
    return TokenCounts(total, ascending[0], median, ascending[-1], tuple(sorted(buckets.items())))


def _output_bytes(spec: JobSpec, num_rows: int, output_tokens: int, prompt_tokens: int, moe_bytes: int) -> int:
    experts = moe_bytes if spec.sampling.routed_experts else 0
    per_token = _BYTES_A_TOKEN + experts
    if spec.sampling.logprobs is not None:
        per_token += 4 + _BYTES_A_LOGPROB * spec.sampling.logprobs
    if spec.sampling.kept_tokens is not None:
        top_k = 0 if "top_k" in spec.own_sampling else max(spec.sampling.top_k, 0)
        per_token += 4 * (1 + min(spec.sampling.kept_tokens, top_k or spec.sampling.kept_tokens))
    per_prompt_token = 4 + experts
    if spec.sampling.prompt_logprobs is not None:
        per_prompt_token += 4 + _BYTES_A_LOGPROB * spec.sampling.prompt_logprobs
    a_sample_each = num_rows * _BYTES_A_SAMPLE + prompt_tokens * per_prompt_token
    a_sample_each += output_tokens * per_token
    return spec.sampling.n * a_sample_each
