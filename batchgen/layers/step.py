"""The tensors that say where a step's tokens stand."""

from typing import NamedTuple

import torch

from batchgen.kernels.step_shape import StepShape

_STAGED = 65_536  # bytes that the driver itself copies aside, so that the call need not wait for the device


class StepTensors(NamedTuple):
    """T tokens of S sequences, side by side; prefill and decode look alike."""

    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T], absolute
    slots: torch.Tensor  # int64 [T], block * 32 + offset: where the token's key and value go
    query_start: torch.Tensor  # int32 [S + 1]
    block_tables: torch.Tensor  # int32 [S, blocks of the longest]
    sample_rows: torch.Tensor  # int64 [R], the tokens whose logits are wanted
    shape: StepShape | None = None  # of a step on a GPU

    def on(self, device: torch.device) -> "StepTensors":
        """The same on `device`, by one copy that does not wait for it, and with `shape`."""
        if device.type == "cpu":
            return self
        tensors = dict(zip(self._fields, self[:-1], strict=False))
        wide_first = sorted(tensors, key=lambda name: -tensors[name].itemsize)  # so that all are aligned
        host = torch.cat([_bytes(tensors[name]) for name in wide_first])
        there = (host.pin_memory() if len(host) > _STAGED else host).to(device, non_blocking=True)
        at = 0
        for name in wide_first:
            part = tensors[name]
            tensors[name] = there[at : at + part.nbytes].view(part.dtype).view(part.shape)
            at += part.nbytes
        lengths = self.query_start.diff()
        shape = StepShape(int((lengths == 1).sum()), int(lengths.max()), int(self.positions.max()) + 1)
        return StepTensors(**tensors, shape=shape)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat.view(torch.uint8) if len(flat) else flat.to(torch.uint8)  # an empty one may have a stride of 0
