"""Steps computed ahead of their draws, on a CPU: the graphs and the device's sampler are stood in for by the ops."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from batchgen import kernels
from batchgen.engine import ahead_runner
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.decode_graphs import FromDraws, GraphSize, Row
from batchgen.engine.step_ahead import StepAhead
from batchgen.kernels.sample_rows import Draws, SampleRows
from batchgen.layers.step import StepTensors
from batchgen.models.any_decoder import AnyDecoder, Cache

I32 = torch.int32


@dataclass
class PlainGraphs:
    """What DecodeGraphs computes, without a graph; nobody may keep what an earlier call gave."""

    decoder: AnyDecoder
    cache: list[Cache]
    last: torch.Tensor | None = None
    sizes: list[GraphSize] = field(default_factory=list)

    def forward(
        self, rows: Sequence[Row], draws: FromDraws | None = None, size: GraphSize | None = None
    ) -> torch.Tensor:
        assert size
        assert len(rows) <= size.rows
        self.sizes.append(size)
        assert all(row.position < size.positions for row in rows)
        if self.last is not None:
            self.last.fill_(torch.nan)
        if not rows:
            self.decoder.idle()
            return torch.empty(0, self.decoder.config.vocab_size)
        ids = [row.token_id for row in rows]
        if draws:
            tokens, which = draws
            ids = tokens.clamp(min=0).tolist() if which is None else tokens[torch.tensor(which)].clamp(min=0).tolist()
        width = max(len(row.block_table) for row in rows)
        slots = [row.block_table[row.position // 32] * 32 + row.position % 32 for row in rows]
        step = StepTensors(
            token_ids=torch.tensor(ids, dtype=I32),
            positions=torch.tensor([row.position for row in rows], dtype=I32),
            slots=torch.tensor(slots),
            query_start=torch.arange(len(rows) + 1, dtype=I32),
            block_tables=torch.tensor([(row.block_table + [0] * width)[:width] for row in rows], dtype=I32),
            sample_rows=torch.arange(len(rows)),
        )
        self.last = self.decoder.forward(step, self.cache).clone()
        return self.last


@dataclass
class HostDraws:
    """Draws as of a device."""

    draws: Draws

    @property
    def token(self) -> torch.Tensor:
        return torch.from_numpy(self.draws.token)

    def fetch(self) -> Callable[[], Draws]:
        return lambda: self.draws


@contextmanager
def ahead_on_cpu(decoder: AnyDecoder, cache: list[Cache], max_model_len: int) -> Iterator[AheadRunner]:
    """An AheadRunner that needs no GPU, while the block lasts."""

    def draw(logits: torch.Tensor, rows: SampleRows, *, processed_logprobs: bool) -> HostDraws:
        return HostDraws(kernels.sample(logits.contiguous(), rows, processed_logprobs=processed_logprobs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(ahead_runner, "upload", lambda rows, V, device: rows)
        patch.setattr(ahead_runner, "draw", draw)
        made = AheadRunner(decoder, cache, max_model_len, processed_logprobs=False)
        made.graphs = PlainGraphs(decoder, cache)  # type: ignore[assignment]
        made._ahead = StepAhead(made.graphs)
        yield made
