"""The sampler on a CPU: checks what it is given, then one call into csrc/sampler.h."""

import torch

from batchgen.kernels.cpu.native import address, library
from batchgen.kernels.row_check import DTYPES, check_rows
from batchgen.kernels.sample_rows import Draws, IdLists, SampleRows


def sample(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool, reach: float = 6.0) -> Draws:
    """Draw one token for each row.  logits float32 [R, V], raw, only read; the definition is reference.sampler.sample.

    processed_logprobs: log-probabilities of the filtered distribution instead of the raw logits. `reach`, in units of
    z, is how far below the maximum candidates are first looked for: it cannot be seen in the result.
    Raises EngineError when an array has the wrong dtype or shape, or a value is out of its range.
    """
    R, V = len(rows), logits.shape[-1]
    check_rows(rows, V)
    draws = Draws.empty(R)
    arrays = [address(logits, torch.float32, R, V)]
    arrays += [getattr(rows, name).ctypes.data for name in DTYPES if name != "top_logprobs"]
    arrays += [*_places(rows.bias), *_places(rows.banned), *_places(rows.output), *_places(rows.seen)]
    answers = (draws.token, draws.logprob, draws.top_ids, draws.top_values, draws.finite)
    arrays += [array.ctypes.data for array in (rows.top_logprobs, *answers)]
    kept = rows.kept
    arrays += [array.ctypes.data for array in (kept.start, kept.ids, kept.size)] if kept else [0, 0, 0]
    library().sample(arrays, reach, processed_logprobs, R, V)
    return draws


def _places(lists: IdLists) -> list[int]:
    return [array.ctypes.data for array in (lists.start, lists.ids, lists.values) if array is not None]
