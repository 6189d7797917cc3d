"""The sampler on a CPU: checks what it is given, then one call into csrc/sampler.h."""

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.errors import EngineError
from batchgen.kernels.cpu.native import address, library
from batchgen.kernels.sample_rows import MAX_TOP_LOGPROBS, Draws, IdLists, SampleRows

_MAX_VOCABULARY = 2**22  # sums of 40-bit probabilities stay within uint64

_DTYPES: dict[str, type[np.generic]] = {
    "seed": np.uint64,
    "position": np.int64,
    "temperature": np.float32,
    "top_p": np.float64,
    "min_p": np.float32,
    "top_k": np.int32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
    "repetition_penalty": np.float32,
    "top_logprobs": np.int32,
}


def sample(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool, reach: float = 6.0) -> Draws:
    """Draw one token for each row.  logits float32 [R, V], raw, only read; the definition is reference.sampler.sample.

    processed_logprobs: log-probabilities of the filtered distribution instead of the raw logits. `reach`, in units of
    z, is how far below the maximum candidates are first looked for: it cannot be seen in the result.
    Raises EngineError when an array has the wrong dtype or shape, or a value is out of its range.
    """
    R, V = len(rows), logits.shape[-1]
    if not 0 < V <= _MAX_VOCABULARY:
        raise EngineError(f"the sampler takes 1 to {_MAX_VOCABULARY} tokens, got {V}")
    _check_ranges(rows)
    array = {name: _at(getattr(rows, name), dtype, R, name) for name, dtype in _DTYPES.items()}
    bias, banned, output, seen = rows.bias, rows.banned, rows.output, rows.seen
    draws = Draws.empty(R)
    arrays = [address(logits, torch.float32, R, V)]
    arrays += [array[name] for name in _DTYPES if name != "top_logprobs"]
    arrays += [*_lists(bias, R, V, "bias"), _values(bias, np.float32, "bias"), *_lists(banned, R, V, "banned")]
    arrays += [*_lists(output, R, V, "output"), _values(output, np.int32, "output"), *_lists(seen, R, V, "seen")]
    arrays += [array["top_logprobs"]]
    answers = (draws.token, draws.logprob, draws.top_ids, draws.top_values, draws.finite)
    arrays += [answer.ctypes.data for answer in answers]
    library().sample(arrays, reach, processed_logprobs, R, V)
    return draws


def _at(array: NDArray[np.generic] | None, dtype: type[np.generic], length: int, name: str) -> int:
    if array is None or array.dtype != dtype or array.shape != (length,) or not array.flags.c_contiguous:
        found = "nothing" if array is None else f"{array.dtype} {array.shape}"
        raise EngineError(f"the sampler wants {name} as contiguous {dtype.__name__} ({length},), got {found}")
    return array.ctypes.data


def _lists(lists: IdLists, R: int, V: int, name: str) -> tuple[int, int]:
    start = _at(lists.start, np.int32, R + 1, f"{name}.start")
    ids = _at(lists.ids, np.int32, int(lists.start[-1]), f"{name}.ids")
    if lists.start[0] != 0 or (np.diff(lists.start) < 0).any():
        raise EngineError(f"{name}.start must ascend from 0")
    if lists.ids.size and not (lists.ids.min() >= 0 and lists.ids.max() < V):
        raise EngineError(f"{name}.ids must lie in the vocabulary of {V}")
    return start, ids


def _values(lists: IdLists, dtype: type[np.generic], name: str) -> int:
    return _at(lists.values, dtype, lists.ids.size, f"{name}.values")


def _check_ranges(rows: SampleRows) -> None:
    temperature = rows.temperature
    good = {
        "position": rows.position >= 0,
        "temperature": (temperature == 0) | ((temperature >= 1e-6) & (temperature <= 1e6)),
        "top_p": (rows.top_p > 0) & (rows.top_p <= 1),
        "min_p": (rows.min_p >= 0) & (rows.min_p <= 1),
        "presence_penalty": np.isfinite(rows.presence_penalty),
        "frequency_penalty": np.isfinite(rows.frequency_penalty),
        "repetition_penalty": (rows.repetition_penalty > 0) & np.isfinite(rows.repetition_penalty),
        "top_logprobs": (rows.top_logprobs >= -1) & (rows.top_logprobs <= MAX_TOP_LOGPROBS),
    }
    if rows.bias.values is not None:
        good["bias.values"] = np.isfinite(rows.bias.values)
    for name, fine in good.items():
        if not fine.all():
            raise EngineError(f"{name} is out of range in entry {int(np.argmin(fine))}")
