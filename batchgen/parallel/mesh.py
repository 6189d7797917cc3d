"""Mesh: the ranks of one replica, how they meet, and the few collectives that they use. None of them adds numbers."""

import math
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore

from batchgen.errors import EngineError
from batchgen.parallel import meeting
from batchgen.parallel.meeting import Guest

_NEW_NAME = "all_gather_single"  # of all_gather_into_tensor, which later torch warns about
_all_gather = getattr(dist, _NEW_NAME, None) or dist.all_gather_into_tensor


class Mesh:
    """Rank `rank` of `size`, whose tensors lie on `device`.

    Data travels over gloo between CPUs and over NCCL between GPUs, control numbers always over gloo. One process is
    one rank. Every collective is entered by every rank, in the same order.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device

    @classmethod
    def alone(cls, device: torch.device) -> Self:
        """Rank 0 of 1: nothing is sent anywhere."""
        return cls(0, 1, device)

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        address: str,
        device: torch.device,
        *,
        patience: float = 60.0,
        step_limit: float = 1800.0,
    ) -> Self:
        """Meet the other ranks at `address`, "host:port", where rank 0 listens.

        `patience` is how many seconds a rank waits for the others to come, `step_limit` how many for their part of a
        collective. Raises EngineError on every rank that has come: the port cannot be bound, a rank stays away, NCCL is
        missing, two ranks share a GPU, the GPUs differ.
        """
        if not 0 <= rank < size:
            raise EngineError(f"there is no rank {rank} among {size}", hint="ranks count from 0")
        if size == 1:
            return cls.alone(device)
        deadline = time.monotonic() + patience
        store = meeting.open_store(rank, address, deadline)
        meeting.meet(store, Guest.of(rank, size, device), size, deadline)
        meeting.prefer_loopback(address)
        # Multicast adds inside the switch. Nothing is added here, so nothing is lost, and one thing less can fail.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                store=PrefixStore("group", store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=step_limit),
                device_id=device if on_gpu else None,
            )
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"the ranks met at {address}, and cannot be joined: {error}") from error
        return cls(rank, size, device)

    def close(self) -> None:
        """Leave the others. The mesh is not used again."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def gather_ints(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Every rank's numbers, as many on each, over the control group -> int64 [size, n]."""
        mine = torch.tensor(list(numbers), dtype=torch.int64)
        if self.size == 1:
            return mine.numpy()[None]
        of_rank = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            dist.all_gather(of_rank, mine)
        except RuntimeError as error:
            raise self._lost(error) from error
        return torch.stack(of_rank).numpy()

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's x, of one shape on all.  uint8 [n] on the mesh's device -> uint8 [size, n]. No host sync."""
        if self.size == 1:
            return x[None]
        out = x.new_empty(self.size * len(x))
        try:
            _all_gather(out, x)
        except RuntimeError as error:
            raise self._lost(error) from error
        return out.view(self.size, len(x))

    def all_to_all(self, x: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> torch.Tensor:
        """Rows by the rank that they go to -> rows by the rank that they come from; bytes as they are.

        x [sum(send), ...], contiguous, on the mesh's device; `send` and `receive` are rows for each rank. Returns
        [sum(receive), ...].
        """
        if self.size == 1:
            return x
        out = x.new_empty(sum(receive), *x.shape[1:])
        try:
            dist.all_to_all_single(_bytes(out), _bytes(x), list(receive), list(send))
        except RuntimeError as error:
            raise self._lost(error) from error
        return out

    def _lost(self, error: RuntimeError) -> EngineError:
        return EngineError(
            f"rank {self.rank} of {self.size} lost the others: {str(error).splitlines()[0]}",
            hint="the rank that failed first says why",
        )


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """x [n, ...] as uint8 [n, bytes of a row], for not every backend knows every dtype."""
    return x.view(len(x), math.prod(x.shape[1:])).view(torch.uint8)
