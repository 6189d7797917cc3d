"""One way to make one row of a run again: whose engine, with which limits, beside whom."""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchgen.engine.engine import Engine
from batchgen.engine.trace import Place, Recorder, Trace, TracingRunner
from batchgen.errors import VerifyError
from batchgen.executor.run_config import RunConfig
from batchgen.executor.start import Weights, start_engine
from batchgen.io.hashing import ROW_HASH
from batchgen.io.schema import Row, rows_to_table
from batchgen.kernels.cpu.native import set_threads
from batchgen.models.op_names import op_names
from batchgen.verify.ledger import LIMITS, Ledger
from batchgen.verify.stored_row import StoredRow


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a row that was made again."""

    table: pa.Table  # of the one row, with the columns of the stored one
    token_ids: tuple[int, ...]
    trace: Trace


class Side:
    """An engine that makes one row, as often as it is asked to."""

    def __init__(self, name: str, row: StoredRow, config: RunConfig, weights: Weights, *, alone: bool) -> None:
        """Raises EngineError when the engine does not start."""
        assert row.request
        ledger = row.ledger
        self.name = name
        self.row = row
        self.config = config
        self.request = row.request
        self.engine: Engine = start_engine(ledger.spec, ledger.model, config, weights)
        self._runner = self.engine.runner
        self.requests = (self.request,) if alone else (*row.before, self.request, *row.after)

    @property
    def how(self) -> dict[str, Any]:
        """JSON: the limits, and what the engine runs on."""
        limits = {name: getattr(self.config, name) for name in LIMITS}
        return limits | {name: self.engine.about.get(name) for name in ("device", "threads", "instruction_set")}

    def make(self, keep: Place | None = None) -> Made:
        """The row, made by an engine that remembers nothing. `keep`: a place whose outputs the trace is to hold."""
        recorder = Recorder(op_names(self.row.ledger.model.config), keep)
        self.engine.runner = TracingRunner(self._runner, recorder, self.request)
        self.engine.blocks.forget()
        if threads := self.how["threads"]:  # none on a GPU
            set_threads(int(threads))
        name = (self.request.row_key, self.request.sample_index)
        with closing(self.engine.generate(self.requests)) as completions:
            for completion in completions:
                if (completion.row_key, completion.sample_index) == name:
                    asked = self.request
                    row = Row(asked.seed, asked.prompt_token_ids, completion, sampling=asked.sampling)
                    return Made(self._as_stored(row), completion.token_ids, recorder.trace)
        raise VerifyError("the engine gave no answer", where=f"row {name[0]!r} sample {name[1]}")

    def _as_stored(self, row: Row) -> pa.Table:
        stored = self.row.table
        names = stored.column_names
        passthrough = stored.select(names[names.index(ROW_HASH) + 1 :])
        return rows_to_table([row], passthrough, self.row.ledger.params, stored.schema)


def lone_config(ledger: Ledger) -> RunConfig:
    """One sequence at a time, chunks that begin and end elsewhere, nothing shared."""
    budget = 48 if ledger.config.max_num_batched_tokens != 48 else 80
    return RunConfig(ledger.run, max_num_seqs=1, max_num_batched_tokens=budget, prefix_cache=False, probe=0)
