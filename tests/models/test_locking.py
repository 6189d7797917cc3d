import multiprocessing
import multiprocessing.connection
from pathlib import Path

import pytest
from support.stay_inside import stay_inside

from batchgen.models.locking import exclusive

SPAWN = multiprocessing.get_context("spawn")


def test_one_at_a_time_and_a_killed_process_leaves(tmp_path: Path) -> None:
    processes, pipes = [], []
    for _ in range(2):
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=stay_inside, args=(tmp_path / "new" / "folder", theirs))
        process.start()
        processes.append(process)
        pipes.append(ours)
    first = multiprocessing.connection.wait(pipes, timeout=60)
    assert len(first) == 1
    inside = pipes.index(first[0])  # type: ignore[arg-type]
    waiting = pipes[1 - inside]
    assert not waiting.poll(0.3)
    processes[inside].kill()
    assert waiting.poll(60)
    waiting.recv()
    waiting.send("leave")
    for process in processes:
        process.join(60)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), exclusive(tmp_path / "file" / "folder"):
        pass
