"""One run in a process of its own, to be stopped; and a server that forks such processes, so that each starts at once.

python child.py fake|tiny reads orders from standard input, one JSON object a line (the fields of `Order`). For each it
forks, writes {"pid": ...}, waits for the child, and writes {"status": ...}, as subprocess counts it.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_engine import FakeEngine
from support.fake_jobs import make_job

from batchgen.errors import BatchgenError
from batchgen.executor.local import run_local
from batchgen.executor.run_book import JobReport
from batchgen.executor.run_config import RunConfig
from chaos.faults import FAULTS
from chaos.instruments import install


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to do."""

    engine: str  # fake or tiny
    folder: str  # of the inputs
    out: str
    log: str  # a file for its standard output and error
    how: Mapping[str, Any] = field(default_factory=dict)  # fields of RunConfig
    order: int = 0  # of the fake engine
    seconds: float = 0.0  # of each of its steps
    instrument: str = ""  # one of instruments.INSTRUMENTS
    count: int = 0  # when it acts, or its size
    fault: str = ""  # one of faults.FAULTS: a product that is broken on purpose


def run(order: Order) -> JobReport:
    config = RunConfig(Path(order.out), **order.how)
    if order.engine == "fake":
        engine = FakeEngine(order.order, config.max_num_seqs, order.seconds)
        return run_local(make_job(Path(order.folder)), engine, config)
    from batchgen.job import run_job

    return run_job(Path(order.folder) / "job.yaml", config)


def obey(order: Order) -> int:
    """The exit status: 0 for a finished run, with errors in rows or not, else that of the error."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        return attempt(order)
    except KeyboardInterrupt:  # before the run can hear it, or after; as in batchgen.__main__
        return 130


def attempt(order: Order) -> int:
    try:
        if order.fault:
            FAULTS[order.fault]()
        install(order.instrument, order.count, order.out)
        print("root", run(order).root, flush=True)
    except BatchgenError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def serve() -> None:
    if sys.argv[1] == "tiny":
        import batchgen.job  # noqa: F401  torch, once for all children

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until a child can hear it
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(obey(Order(**json.loads(line))))
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve()
