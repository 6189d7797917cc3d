"""The sampler on a GPU: what the rows ask for goes up in one copy, the answer comes down in one."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from batchgen.errors import EngineError
from batchgen.kernels.cuda.compiled import kernel, launch
from batchgen.kernels.cuda.ops import address, aligned
from batchgen.kernels.row_check import DTYPES, check_rows
from batchgen.kernels.sample_rows import MAX_TOP_LOGPROBS, Draws, IdLists, SampleRows

Tensor = torch.Tensor

_CHUNK = 4096  # kChunk of rows.cuh
_SURVEY = 2 * 64 + 2 + 4096  # kWords of step.cuh
_NEAR, _NEAR_RAW, _PROCESSED = 1, 2, 4  # flags of step.cuh
_LISTS = ("bias", "output", "seen", "banned")
_STAGED = 65_536  # bytes that the driver itself copies aside, so that the call need not wait for the device
# Params of rows.cuh. A list is the word at which it lies in the upload, and how many entries it has.
_PARAMS = np.dtype(
    [(name, DTYPES[name]) for name in ("seed", "position", "top_p", "temperature", "min_p", "top_k")]
    + [(f"{name}_penalty", np.float32) for name in ("presence", "frequency", "repetition")]
    + [("top_logprobs", np.int32)]
    + [(f"{name}_{part}", np.int32) for name in _LISTS for part in ("at", "count")],
    align=True,
)


class DeviceRows(NamedTuple):
    """SampleRows of R rows on a device, in the form that the kernels read."""

    packed: Tensor  # uint8
    size: int  # R
    has_edits: bool  # any bias, ban or penalty; False saves a copy of the logits
    has_filters: bool  # any top-k or top-p; False saves steps, as the others do
    has_draws: bool  # any that is not greedy
    most_logprobs: int  # of any row


class DeviceDraws(NamedTuple):
    """Draws that are still on the device, as int32; `logprobs` and `top_values` hold the bits of float32 values."""

    packed: Tensor  # int32 [R + R + R + 20 R + 20 R]: tokens, log-probabilities, finite, ids and values of the best
    size: int  # R

    @property
    def token(self) -> Tensor:
        """int32 [R]; -1 where nothing was drawn."""
        return self.packed[: self.size]

    def numpy(self) -> Draws:
        """Waits for the device."""
        return self.fetch()()

    def fetch(self) -> Callable[[], Draws]:
        """Queues the copy to the host; what it returns waits for that, and for nothing that is queued later."""
        host = torch.empty(self.packed.shape, dtype=torch.int32, device="cpu", pin_memory=True)
        host.copy_(self.packed, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

        def wait() -> Draws:
            copied.synchronize()
            return _unpacked(host.numpy(), self.size)

        return wait


def _unpacked(host: NDArray[np.int32], R: int) -> Draws:
    tops = host[3 * R :].reshape(2, R, MAX_TOP_LOGPROBS)
    finite = host[2 * R : 3 * R].astype(np.uint8)
    return Draws(host[:R], host[R : 2 * R].view(np.float32), tops[0], tops[1].view(np.float32), finite)


def sample(logits: Tensor, rows: SampleRows, *, processed_logprobs: bool) -> Draws:
    return draw(logits, upload(rows, logits.shape[-1], logits.device), processed_logprobs=processed_logprobs).numpy()


def upload(rows: SampleRows, V: int, device: torch.device) -> DeviceRows:
    """One copy, which does not wait. Raises EngineError when an array has the wrong dtype or shape or a value is out
    of its range for V tokens."""
    check_rows(rows, V)
    if rows.kept is not None:
        hint = "leave it out, or run on a CPU"
        raise EngineError("a GPU's sampler does not tell which tokens it kept", where="kept_tokens", hint=hint)
    R = len(rows)
    params = np.zeros(R, _PARAMS)
    for name in DTYPES:
        params[name] = getattr(rows, name)
    words, has_edits, at = [], False, R * _PARAMS.itemsize // 4
    for name in _LISTS:
        lists: IdLists = getattr(rows, name)
        entries = _entries(lists)
        params[f"{name}_at"] = at + lists.start[:-1] * (1 if lists.values is None else 2)
        params[f"{name}_count"] = np.diff(lists.start)
        words.append(entries)
        has_edits |= bool(entries.size)
        at += entries.size
    if at >= 2**31:
        raise EngineError(f"the lists of {R} rows are too long: {at} words")
    host = torch.from_numpy(np.concatenate([params.view(np.int32), *words]).view(np.uint8))
    is_drawn = rows.temperature > 0
    return DeviceRows(
        packed=(host.pin_memory() if host.numel() > _STAGED else host).to(device, non_blocking=True),
        size=R,
        has_edits=has_edits,
        has_filters=bool((is_drawn & ((rows.top_k > 0) | (rows.top_p < 1))).any()),
        has_draws=bool(is_drawn.any()),
        most_logprobs=int(rows.top_logprobs.max(initial=-1)),
    )


def _entries(lists: IdLists) -> NDArray[np.int32]:
    """The ids, each followed by the bits of its value where there are values."""
    if lists.values is None:
        return lists.ids
    return np.stack([lists.ids, lists.values.view(np.int32)], axis=1).reshape(-1)


def draw(logits: Tensor, rows: DeviceRows, *, processed_logprobs: bool) -> DeviceDraws:
    """Draw one token for each row, without waiting; can be captured in a graph.  logits float32 [R, V], only read."""
    device, R, V = logits.device, rows.size, logits.shape[-1]
    chunks, lists = -(-V // _CHUNK), 0
    flags = _PROCESSED if processed_logprobs else 0
    if rows.has_filters or (processed_logprobs and rows.most_logprobs >= 0):
        flags, lists = flags | _NEAR, lists + 1
    if not processed_logprobs and rows.most_logprobs > 0:
        flags, lists = flags | _NEAR_RAW, lists + 1
    room = R * (2 * chunks + 1 + lists * _SURVEY) + 1 + (-(-R * V // 2) if rows.has_edits else 0)
    scratch = torch.empty(room, dtype=torch.int64, device=device)
    answer = torch.empty(R * (3 + 2 * MAX_TOP_LOGPROBS), dtype=torch.int32, device=device)
    place = (aligned if V % 4 == 0 else address)(logits, device, torch.float32, R, V)
    given = (place, rows.packed.data_ptr(), scratch.data_ptr(), answer.data_ptr(), R, V, flags)

    def step(name: str, grid: tuple[int, ...], block: int) -> None:
        launch(kernel("sampler.cu", name, device.index), device, grid, block, *given)

    step("prepare", (chunks, R), 256)
    if flags & _NEAR:
        step("survey_edited", (chunks, R), 256)
        step("collect_edited", (chunks, R), 256)
    if flags & _NEAR_RAW:
        step("survey_raw", (chunks, R), 256)
        step("collect_raw", (chunks, R), 256)
    if rows.has_filters:
        step("filter", (R,), 1024)
    if rows.has_draws:
        step("draw", (chunks, R), 256)
    step("finish", (R,), 1024)
    return DeviceDraws(answer, R)
