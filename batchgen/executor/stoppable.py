"""A block that a signal can stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from batchgen.errors import Interrupted
from batchgen.io.run_folder import RunFolder


@contextlib.contextmanager
def stoppable(folder: RunFolder) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the block with Interrupted; a second one ends the process at once."""
    signals = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    except KeyboardInterrupt as stopped:
        there = folder.manifest
        kept = f"{there.counts.rows} of {there.plan.num_samples} samples are kept" if there else "nothing was made"
        hint = "the same command goes on from here"
        raise Interrupted(f"stopped by {stopped}; {kept}", where=str(folder.path), hint=hint) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
