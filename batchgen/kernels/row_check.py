"""What stands between the arrays of SampleRows and a raw address, on every device."""

import numpy as np
from numpy.typing import NDArray

from batchgen.errors import EngineError
from batchgen.kernels.sample_rows import MAX_TOP_LOGPROBS, IdLists, SampleRows

MAX_VOCABULARY = 2**22  # sums of 40-bit probabilities stay within uint64

DTYPES: dict[str, type[np.generic]] = {
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
_VALUES: dict[str, type[np.generic] | None] = {"bias": np.float32, "banned": None, "output": np.int32, "seen": None}


def check_rows(rows: SampleRows, V: int) -> None:
    """Raises EngineError when an array has the wrong dtype or shape, or a value is out of its range."""
    R = len(rows)
    if not 0 < V <= MAX_VOCABULARY:
        raise EngineError(f"the sampler takes 1 to {MAX_VOCABULARY} tokens, got {V}")
    _check_ranges(rows)
    for name, dtype in DTYPES.items():
        _check_array(getattr(rows, name), dtype, R, name)
    if rows.kept is not None:
        _check_array(rows.kept.start, np.int64, R + 1, "kept.start")
        _check_array(rows.kept.ids, np.int32, int(rows.kept.start[-1]), "kept.ids")
        _check_array(rows.kept.size, np.int32, R, "kept.size")
    for name, values in _VALUES.items():
        lists: IdLists = getattr(rows, name)
        _check_lists(lists, R, V, name)
        if values is not None:
            _check_array(lists.values, values, lists.ids.size, f"{name}.values")


def _check_array(array: NDArray[np.generic] | None, dtype: type[np.generic], length: int, name: str) -> None:
    if array is None or array.dtype != dtype or array.shape != (length,) or not array.flags.c_contiguous:
        found = "nothing" if array is None else f"{array.dtype} {array.shape}"
        raise EngineError(f"the sampler wants {name} as contiguous {dtype.__name__} ({length},), got {found}")


def _check_lists(lists: IdLists, R: int, V: int, name: str) -> None:
    _check_array(lists.start, np.int32, R + 1, f"{name}.start")
    _check_array(lists.ids, np.int32, int(lists.start[-1]), f"{name}.ids")
    if lists.start[0] != 0 or (np.diff(lists.start) < 0).any():
        raise EngineError(f"{name}.start must ascend from 0")
    if lists.ids.size and not (lists.ids.min() >= 0 and lists.ids.max() < V):
        raise EngineError(f"{name}.ids must lie in the vocabulary of {V}")


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
