"""What a run has where its job asked for it, and some trainers have a field for: kept tokens and routed experts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchgen.exports.sample import Sample


class Extra(NamedTuple):
    """A column of an export."""

    source: str  # the column of the run without which it is not there
    name: str
    of: Callable[[Sequence[Sample]], pa.Array]


def nested_experts(samples: Sequence[Sample]) -> pa.Array:
    """Lists of int16 [tokens - 1, layers, k]: of all tokens but the last."""
    experts = [_experts(sample) for sample in samples]
    flat = np.concatenate([np.empty(0, np.int16), *(each.reshape(-1).astype(np.int16) for each in experts)])
    layers, k = experts[0].shape[1:] if experts else (1, 1)
    by_layer = pa.LargeListArray.from_arrays(np.arange(0, flat.size + 1, k), flat)
    by_token = pa.LargeListArray.from_arrays(np.arange(0, len(by_layer) + 1, layers), by_layer)
    return pa.LargeListArray.from_arrays(np.cumsum([0, *map(len, experts)]), by_token)


def packed_experts(samples: Sequence[Sample]) -> pa.Array:
    """Structs of data, shape and dtype, [tokens, layers, k]; the last token, which was not computed, has zeros."""
    type_ = pa.struct([("data", pa.large_binary()), ("shape", pa.list_(pa.int64())), ("dtype", pa.string())])
    whole = [np.pad(_experts(sample), ((0, 1), (0, 0), (0, 0))) for sample in samples]
    packed = [{"data": each.tobytes(), "shape": list(each.shape), "dtype": str(each.dtype)} for each in whole]
    return pa.array(packed, type_)


def kept_ids(samples: Sequence[Sample]) -> pa.Array:
    """Lists of int32: what was kept at each draw, one after another; null where nothing was filtered."""
    kept = [None if s.kept is None else [i for ids in s.kept for i in ids] for s in samples]
    return pa.array(kept, pa.large_list(pa.int32()))


def kept_offsets(samples: Sequence[Sample]) -> pa.Array:
    """Lists of int32, one longer than the answer: where in `kept_ids` each draw begins, and the last one ends."""
    offsets = [None if s.kept is None else np.cumsum([0, *map(len, s.kept)]).tolist() for s in samples]
    return pa.array(offsets, pa.list_(pa.int32()))


def experts_of(row: dict[str, Any]) -> NDArray[Any] | None:
    """uint8 or uint16 [tokens - 1, layers, k], from a row of a run; None if it has none."""
    if row.get("routed_experts") is None:
        return None
    dtype = np.dtype(row["routed_experts_dtype"]).newbyteorder("<")
    return np.frombuffer(row["routed_experts"], dtype).reshape(row["routed_experts_shape"])


def _experts(sample: Sample) -> NDArray[Any]:
    assert sample.experts is not None, "the run has them"
    return sample.experts
