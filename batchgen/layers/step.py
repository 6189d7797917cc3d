"""The tensors that say where a step's tokens stand."""

from typing import NamedTuple

import torch

_STAGED = 65_536  # bytes that the driver itself copies aside, so that the call need not wait for the device


class StepTensors(NamedTuple):
    """T tokens of S sequences, side by side; prefill and decode look alike."""

    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T], absolute
    slots: torch.Tensor  # int64 [T], block * 32 + offset: where the token's key and value go
    query_start: torch.Tensor  # int32 [S + 1]
    block_tables: torch.Tensor  # int32 [S, blocks of the longest]
    sample_rows: torch.Tensor  # int64 [R], the tokens whose logits are wanted

    def on(self, device: torch.device) -> "StepTensors":
        """The same on `device`: one copy, which does not wait for it."""
        if device.type == "cpu":
            return self
        wide_first = sorted(range(len(self)), key=lambda i: -self[i].itemsize)  # so that all are aligned
        host = torch.cat([self[i].reshape(-1).view(torch.uint8) for i in wide_first])
        there = (host.pin_memory() if len(host) > _STAGED else host).to(device, non_blocking=True)
        parts: dict[int, torch.Tensor] = {}
        at = 0
        for i in wide_first:
            size = self[i].nbytes
            parts[i] = there[at : at + size].view(self[i].dtype).view(self[i].shape)
            at += size
        return StepTensors(*(parts[i] for i in range(len(self))))
