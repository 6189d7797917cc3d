"""A block that a signal can stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from batchgen.errors import BatchgenError, Interrupted
from batchgen.io.run_folder import RunFolder

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Which signal has asked to stop; "" while none has."""

    def __init__(self) -> None:
        self.asked = ""


@contextlib.contextmanager
def stoppable(folder: RunFolder) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the block with Interrupted; a second one ends the process at once.

    It may come in the middle of anything, such as the import of a library, and then often turns into another error.
    """
    found = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        found.asked = signal.Signals(number).name
        raise KeyboardInterrupt(found.asked)

    before = {each: signal.signal(each, stop) for each in SIGNALS}
    try:
        yield
    except BatchgenError:
        raise
    except BaseException as error:
        if not (found.asked or isinstance(error, KeyboardInterrupt)):
            raise
        raise interrupted(folder, found.asked or str(error)) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def asking_to_stop() -> Iterator[Stop]:
    """The first SIGINT or SIGTERM is told to whoever looks; a second one ends the process at once."""
    found = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        found.asked = signal.Signals(number).name

    before = {each: signal.signal(each, note) for each in SIGNALS}
    try:
        yield found
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def interrupted(folder: RunFolder, by: str) -> Interrupted:
    """What to raise when the signal `by` has ended the work on a run."""
    there = folder.manifest
    kept = f"{there.counts.rows} of {there.plan.num_samples} samples are kept" if there else "nothing was made"
    return Interrupted(f"stopped by {by}; {kept}", where=str(folder.path), hint="the same command goes on from here")
