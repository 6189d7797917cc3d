"""A signal ends a block, whatever it does to the code that it comes into."""

import os
import signal
from pathlib import Path

import pytest

from batchgen.errors import Interrupted, VerifyError
from batchgen.executor.stoppable import stoppable
from batchgen.io.run_folder import RunFolder


def half_done(number: signal.Signals | None, error: Exception) -> None:
    """An import, say, that a signal leaves with an error of its own."""
    try:
        if number:
            os.kill(os.getpid(), number)
    finally:
        raise error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_becomes_another_error(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with RunFolder.open(tmp_path) as folder:
        with pytest.raises(Interrupted, match=f"stopped by {number.name}; nothing was made"), stoppable(folder):
            half_done(number, AttributeError("half an import"))
        with pytest.raises(VerifyError), stoppable(folder):
            half_done(number, VerifyError("two answers differ"))
        with pytest.raises(AttributeError), stoppable(folder):
            half_done(None, AttributeError("a fault"))
    assert signal.getsignal(number) is before
