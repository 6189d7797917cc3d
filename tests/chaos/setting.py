"""Where runs are made: the inputs, the options of each child, and a small disk that can be filled."""

import contextlib
import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.fake_jobs import write_input
from support.tiny_jobs import write_tiny_jobs

from chaos.checks import Leaves, read_leaves
from chaos.child import Order
from chaos.instruments import INSTRUMENTS
from chaos.server import Server, text_of

DISK_BYTES = 16 << 20
TINY_KV_BYTES = 7 * 2 * 2 * 2 * 2 * 32 * 32  # the least that holds a sequence of max_model_len 200: preemptions


class Setting:
    """One engine, one job, one disk."""

    def __init__(self, engine: str, folder: Path, disk: Path | None) -> None:
        """`disk` is a small file system of its own, where there is one."""
        self.engine, self.folder, self.disk = engine, folder, disk
        self._numbers = itertools.count()
        self._undisturbed: tuple[Leaves, str] | None = None
        self.environment = {"BATCHGEN_CACHE": str(folder / "cache")}
        self.longest = 0.45 if engine == "fake" else 1.1  # seconds until a signal
        (folder / "runs").mkdir(parents=True)
        if engine == "fake":
            write_input(folder, 60, bad=[7])
        else:
            write_tiny_jobs(folder)

    def new_run(self) -> Path:
        """A folder that is not there yet."""
        return (self.disk or self.folder) / "runs" / f"run-{next(self._numbers):04}"

    def order(self, out: Path, chance: random.Random, fault: str, way: str = "", log: str = "child.log") -> Order:
        """A child with options of its own."""
        instrument = way if way in INSTRUMENTS else ""
        count = {
            "before": lambda: chance.randint(1, 90),
            "inside": lambda: chance.randint(1, 25),
            "enospc": lambda: chance.randint(1, 25),
            "limit": lambda: chance.randint(200, 9000),
        }.get(instrument, lambda: 0)()
        return Order(
            engine=self.engine,
            folder=str(self.folder),
            out=str(out),
            log=str(self.folder / log),
            how=self._options(chance),
            order=chance.randrange(1000),
            seconds=chance.uniform(0.0005, 0.003),
            instrument=instrument,
            count=count,
            fault=fault,
        )

    def undisturbed(self, server: Server) -> tuple[Leaves, str]:
        """The leaves of a run that nobody stopped, in order, and its root. It is made once."""
        if self._undisturbed:
            return self._undisturbed
        out = self.folder / "undisturbed"
        log = self.folder / "undisturbed.log"
        server.start(Order(self.engine, str(self.folder), str(out), str(log), {"rows_per_shard": 1000}))
        assert server.wait() == 0, text_of(log)
        whole = read_leaves(out / "rows" / "part-00000.parquet")
        assert whole is not None
        self._undisturbed = whole, text_of(log).split()[-1]
        return self._undisturbed

    def spoil_cache(self, chance: random.Random) -> bool:
        """The packed weights are gone, or a bit of them is another; False when there are none."""
        files = sorted(Path(self.environment["BATCHGEN_CACHE"]).rglob("*.packed"))
        for file in files:
            if chance.random() < 0.5:
                file.unlink()
                continue
            data = bytearray(file.read_bytes())
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
        return bool(files)

    @contextlib.contextmanager
    def full_disk(self, chance: random.Random, wanted: bool) -> Iterator[None]:
        """All but a little of the disk is taken, while the block runs."""
        if not wanted or self.disk is None:
            yield
            return
        ballast, room = self.disk / "ballast", os.statvfs(self.disk)
        ballast.write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - chance.randrange(64 << 10))))
        try:
            yield
        finally:
            ballast.unlink()

    def _options(self, chance: random.Random) -> dict[str, Any]:
        """Fields of RunConfig: how, never what."""
        options: dict[str, Any] = {
            "max_num_seqs": chance.choice([1, 2, 3, 5, 8, 16]),
            "rows_per_shard": chance.choice([2, 3, 4, 7]),
            "probe": chance.choice([0, 0.005, 0.2, 1]),
        }
        if self.engine == "tiny":
            options |= {
                "max_num_batched_tokens": chance.choice([5, 16, 33, 64, 256]),
                "threads": chance.randint(1, 3),
                "prefix_cache": chance.random() < 0.5,
                "kv_cache_bytes": chance.choice([None, TINY_KV_BYTES]),
            }
        return options


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[Path | None]:
    """A tmpfs at `at`; None where this user may not mount one."""
    at.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(at)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        (at / "runs").mkdir()
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)
