"""The proof of single ops: on the same rows twice, on some of them, alone and in crowds, the bits must be the same."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from batchgen import kernels
from batchgen.engine.bits import Checks, as_bits
from batchgen.engine.canary import POSITIONS
from batchgen.kernels import PackedExperts, PackedWeight, Pairs

Tensor = torch.Tensor

SIZES = (1, 2, 3, 7, 16, 17, 33)  # first rows that are compared with the same rows of all
SINGLE = (1, 32, POSITIONS - 1)
AFFORDABLE = 2**29  # products of a linear that is also tried on as many rows as a step can have


class Ops:
    """Proves one op after the other, and counts."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.checks = Checks()
        self.count = 0
        self.max_rows = POSITIONS
        self._most = max_num_batched_tokens

    def prove(self, what: str, op: Callable[[slice], tuple[Tensor, ...]], further: Sequence[slice] = ()) -> Tensor:
        """The first output of the op on all rows, once it is the same on any of them. op: rows -> outputs."""
        self.count += 1
        whole = op(slice(POSITIONS))
        self.checks.same(op(slice(POSITIONS)), whole, f"{what}: a second launch", "the first")
        for rows in (*map(slice, SIZES), *(slice(row, row + 1) for row in SINGLE), *further):
            start, expected = rows.start or 0, [output[rows] for output in whole]
            how = f"{what}: a launch of {rows.stop - start} rows, from row {start},"
            self.checks.same(op(rows), expected, how, f"one of {POSITIONS}")
        return whole[0]

    def linear(
        self, name: str, x: Tensor, weight: PackedWeight, *, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        def op(x: Tensor, residual: Tensor | None) -> Tensor:
            return kernels.linear(x, weight, bias, residual)

        what = f"linear ({name}, {weight.rows} x {weight.columns})"
        out = self.prove(what, lambda r: (op(x[r], None if residual is None else residual[r]),))
        self._many(
            what, weight.rows * weight.columns, out, lambda t: op(t(x), None if residual is None else t(residual))
        )
        return out

    def gated(self, name: str, x: Tensor, weight: PackedWeight) -> Tensor:
        what = f"linear_silu_mul ({name}, {weight.rows} x {weight.columns})"
        out = self.prove(what, lambda r: (kernels.linear_silu_mul(x[r], weight),))
        self._many(what, weight.rows * weight.columns, out, lambda t: kernels.linear_silu_mul(t(x), weight))
        return out

    def experts(self, x: Tensor, slots: Tensor, gate_up: PackedExperts, down: PackedExperts) -> Tensor:
        """[T, k, H] of slots int32 [T, k]. Where the rows are few, most experts have none of them, and others one."""
        backwards = torch.arange(slots.numel(), device=x.device).flip(0)

        def op(x: Tensor, slots: Tensor, order: Tensor | None = None) -> Tensor:
            T, k = slots.shape
            pairs = torch.arange(T * k, device=x.device) if order is None else order
            rows = (pairs // k).to(torch.int32)
            y = kernels.experts(x, Pairs(rows, slots.reshape(-1)[pairs]), gate_up, down)
            return torch.empty_like(y).index_copy_(0, pairs, y).view(T, k, y.shape[1])

        what = f"experts ({down.slots} of {gate_up.rows} x {gate_up.columns})"
        out = self.prove(what, lambda r: (op(x[r], slots[r]),))
        self.checks.same([op(x, slots, backwards)], [out], f"{what}: a launch of pairs backwards", "one in their order")
        cost = slots.shape[1] * 3 * down.rows * down.columns
        self._many(what, cost, out, lambda t: op(t(x), t(slots)))
        return out

    def _many(self, what: str, cost: int, out: Tensor, op: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
        """As many rows as a step can have, or as are affordable: copies of the others. `cost`: products of a row."""
        rows = min(self._most, AFFORDABLE // cost)
        if rows <= POSITIONS:
            return
        self.max_rows = max(self.max_rows, rows)

        def tiled(x: Tensor) -> Tensor:
            return torch.from_numpy(as_bits(x)[np.arange(rows) % len(x)]).view(x.dtype).to(x.device)

        self.checks.same([op(tiled)], [tiled(out)], f"{what}: a launch of {rows} rows", f"one of {POSITIONS}")
