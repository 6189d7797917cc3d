"""The tensors that say where a step's tokens stand."""

from typing import NamedTuple

import torch


class StepTensors(NamedTuple):
    """T tokens of S sequences, side by side; prefill and decode look alike."""

    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T], absolute
    slots: torch.Tensor  # int64 [T], block * 32 + offset: where the token's key and value go
    query_start: torch.Tensor  # int32 [S + 1]
    block_tables: torch.Tensor  # int32 [S, blocks of the longest]
    sample_rows: torch.Tensor  # int64 [R], the tokens whose logits are wanted
