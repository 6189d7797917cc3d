"""A run in a process of its own, to be stopped: child_run.py IN OUT [--seconds S] [--kill POINT:COUNT] [--limit BYTES]

Prints a line once the first sample is done. --kill ends the process with SIGKILL right before the COUNTth time that it
does POINT, one of POINTS; or before or after the COUNTth object of a kind is put, one of OBJECT_POINTS. --limit is
RLIMIT_FSIZE. --lease is the time that a lease holds, in seconds.
"""

import argparse
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_engine import FakeEngine
from support.fake_jobs import make_job

from batchgen.errors import BatchgenError
from batchgen.executor.base import Progress
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io import lease
from batchgen.object_path import ObjectPath
from batchgen.places import place

POINTS = ("open part", "rename part", "open manifest", "rename manifest")
OBJECT_POINTS = ("before job", "before part", "before manifest", "after manifest")


def kill_at_object(when: str, what: str, count: int) -> None:
    """Around the requests that the product makes, each by one method of ObjectPath."""
    left = count

    def killing(write: Callable[..., Any]) -> Callable[..., Any]:
        def put(path: ObjectPath, *told: Any) -> Any:
            nonlocal left
            left -= path.name.startswith(what)
            if not left and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = write(path, *told)
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return put

    for method in ("write", "write_new", "write_over"):
        setattr(ObjectPath, method, killing(getattr(ObjectPath, method)))


def kill_at(point: str, count: int) -> None:
    """Audit events come before the call that they name is done."""
    verb, what = point.split()
    if point in OBJECT_POINTS:
        kill_at_object(verb, what, count)
        return
    left = count

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event == {"open": "open", "rename": "os.rename"}[verb] and re.search(rf"\.{what}[^/]*\.tmp$", str(args[0])):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=place)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--kill")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--lease", type=float, default=lease.SECONDS)
    options = parser.parse_args()
    lease.SECONDS = options.lease
    if options.kill:
        point, count = options.kill.split(":")
        kill_at(point, int(count))
    if options.limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.limit, options.limit))

    def on_progress(progress: Progress) -> None:
        if progress.done == progress.resumed + 1:
            print("begun", flush=True)

    config = RunConfig(options.out, rows_per_shard=4)
    try:
        run_local(make_job(options.folder), FakeEngine(seconds=options.seconds), config, on_progress)
    except BatchgenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
