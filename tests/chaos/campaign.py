"""Runs that are stopped in every way, damaged, taken up again with other options, and looked at after every event."""

import random
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchgen.errors import Interrupted, RunError
from batchgen.io.manifest import read_manifest
from chaos.checks import (
    ChaosError,
    Leaves,
    State,
    check_counts,
    check_finished,
    check_readers,
    check_verify,
    read_leaves,
    state_of,
)
from chaos.child import Order
from chaos.plants import PLANTS, OldManifests, spoil_manifest
from chaos.server import Server, text_of
from chaos.setting import Setting
from chaos.tally import WAYS, Tally

# What Python itself prints of a second signal that comes within the handling of the first.
SECOND_SIGNAL = re.compile(
    r"(Exception ignored in: .*\n)?Traceback .*\n(  .*\n)*\n?(KeyboardInterrupt: .*|OSError: Signal \d+ ignored .*)\n"
)
KILLED, DISK = -signal.SIGKILL, RunError.exit_code
# What a child may end with, when it has not finished first (0).
MAY_END: dict[str, set[int]] = {
    "kill": {KILLED},
    "before": {KILLED},
    "inside": {KILLED},
    "interrupt": {Interrupted.exit_code},
    "terminate": {Interrupted.exit_code, -signal.SIGTERM},  # the latter before the run begins
    "twice": {Interrupted.exit_code, -signal.SIGTERM, -signal.SIGINT},
    "enospc": {DISK},
    "limit": {DISK},
    "full": {DISK},
}


@dataclass
class Campaign:
    """`run` is all. Raises ChaosError, with the latest events, at the first thing that is not as it must be."""

    setting: Setting
    server: Server
    chance: random.Random
    tally: Tally
    fault: str = ""  # one of faults.FAULTS, for every child
    plants: tuple[str, ...] = (*PLANTS, "old_manifest", "spoilt_manifest", "spoilt_cache")
    ways: tuple[str, ...] = tuple(WAYS)
    events: list[str] = field(default_factory=list)  # of this run, for the message
    old: OldManifests = field(default_factory=OldManifests)

    def run(self, stops: int) -> Tally:
        """New runs until so many children were stopped; the last one is left to finish."""
        started = time.perf_counter()
        whole, root = self.setting.undisturbed(self.server)
        self.tally.samples = len(whole)
        while self.tally.stops < stops:
            out = self.setting.new_run()
            self.tally.runs += 1
            self.events.clear()
            self.old = OldManifests()
            try:
                self._one_run(out, whole, root, stops)
            except ChaosError as error:
                raise ChaosError(f"{error}\n  in {out}, after: " + "\n    ".join(["", *self.events[-8:]])) from None
            shutil.rmtree(out)
        self.tally.seconds += time.perf_counter() - started
        return self.tally

    def _one_run(self, out: Path, whole: Leaves, root: str, stops: int) -> None:
        ends = 0
        while True:
            before = self._damage(out, whole)
            enough = self.tally.stops >= stops
            way = "" if enough or ends > 3 else self.chance.choice(self.ways)
            if way and self.chance.random() < 0.05:
                self._rival(out)
            ended = self._child(out, way)
            after = self._look(out, whole, before)
            if ended:
                if after.damaged or after.strays:
                    raise ChaosError(f"finished, and left {sorted(after.damaged | after.strays)}")
                check_finished(out, whole, root)
                self.tally.finished += 1
                ends += 1
                if enough or ends > 3 or self.chance.random() < 0.4:
                    return

    def _damage(self, out: Path, whole: Leaves) -> State:
        """Perhaps do something to the folder; its state after that."""
        state = state_of(out, whole)
        if state.manifest is None or not self.plants or self.chance.random() < 0.5:
            return state
        name = self.chance.choice(self.plants)
        if name == "spoilt_manifest":
            self._spoil(out, state)
            return state
        if name == "old_manifest":
            done = self.old.put_back(out, self.chance)
        elif name == "spoilt_cache":
            done = self.setting.spoil_cache(self.chance)
        else:
            done = PLANTS[name](out, self.chance)
        if not done:
            return state
        self.events.append(f"damage: {name}")
        damaged = state_of(out, whole)
        self.tally.planted[name] += 1
        self.tally.seen[name] += damaged != state
        check_verify(out, damaged)
        return damaged

    def _spoil(self, out: Path, state: State) -> None:
        """A manifest that cannot be read: the run is refused and nothing is touched; then the manifest comes back."""
        if not state.kept:
            return
        right, files = (out / "manifest.json").read_bytes(), _contents(out / "rows")
        spoil_manifest(out, self.chance)
        self.events.append("damage: spoilt manifest")
        status = self._start_and_wait(self.setting.order(out, self.chance, self.fault))
        if status != DISK:
            raise ChaosError(f"a spoilt manifest: exit {status}, not {DISK}")
        if _contents(out / "rows") != files:
            raise ChaosError("a run that was refused was changed")
        (out / "manifest.json").write_bytes(right)
        self.tally.refused += 1

    def _rival(self, out: Path) -> None:
        """Two processes at once: one makes the run, and the other is told so, or comes when it is done."""
        first = self.setting.order(out, self.chance, self.fault, log="first.log")
        second = self.setting.order(out, self.chance, self.fault, log="second.log")
        self.events.append("two processes at once")
        with Server(self.setting.engine, self.setting.environment) as other:
            self.server.start(first)
            time.sleep(self.chance.uniform(0, self.setting.longest / 2))
            other.start(second)
            statuses = [self.server.wait(), other.wait()]
        for order in (first, second):
            self._check_log(Path(order.log))
        if sorted(statuses) not in ([0, 0], [0, DISK]):
            raise ChaosError(f"two processes at once: exits {statuses}")
        self.tally.rivals += 1

    def _child(self, out: Path, way: str) -> bool:
        """Start a process on the run and stop it that way; whether it finished before it was stopped."""
        order = self.setting.order(out, self.chance, self.fault, way)
        self.events.append(f"{way or 'nothing'}: {dict(order.how)} {order.instrument} {order.count or ''}")
        with self.setting.full_disk(self.chance, way == "full"):
            self.server.start(order)
            if way in ("kill", "interrupt", "terminate", "twice"):
                self._signal(way)
            status = self.server.wait()
        self.events[-1] += f" -> {status}"
        log = self._check_log(Path(order.log))
        if status and status not in MAY_END.get(way, set()):
            raise ChaosError(f"{way or 'undisturbed'}: exit {status}\n{log}")
        if kept := re.search(r"(\d+) of \d+ samples are kept", log):
            said, there = int(kept[1]), read_manifest(out).counts.rows
            if said > there:
                raise ChaosError(f"it said that {said} samples are kept, and {there} are")
        if way:
            (self.tally.stopped if status else self.tally.ended)[way] += 1
        return status == 0

    def _signal(self, way: str) -> None:
        numbers = {
            "kill": [signal.SIGKILL],
            "interrupt": [signal.SIGINT],
            "terminate": [signal.SIGTERM],
            "twice": self.chance.choices([signal.SIGINT, signal.SIGTERM], k=2),
        }[way]
        time.sleep(self.chance.uniform(0, self.setting.longest))
        for number in numbers:
            self.server.signal(number)
            time.sleep(self.chance.uniform(0, 0.005) if len(numbers) > 1 else 0)

    def _look(self, out: Path, whole: Leaves, before: State) -> State:
        """The folder after an event: valid, and nothing that was committed is lost."""
        self.old.remember(out)
        state = state_of(out, whole)
        if state.manifest is None and before.manifest is not None:
            raise ChaosError("the manifest is gone")
        if lost := before.kept - state.kept:
            raise ChaosError(f"{len(lost)} committed samples are lost, among them {sorted(lost)[:3]}")
        if new := state.damaged - before.damaged:
            raise ChaosError(f"damaged, and nobody had planted it: {sorted(new)}")
        # A new stray was renamed and is not named yet, so it is whole; or it was damaged, and is named no more.
        for name in state.strays - before.strays - before.damaged:
            found = read_leaves(out / name)
            if found is None or any(whole.get(sample) != leaf for sample, leaf in found.items()):
                raise ChaosError(f"{name} is visible, and it is torn or holds wrong rows")
        check_counts(state)
        if state.manifest is not None:
            check_verify(out, state)
            check_readers(out, whole, state.damaged | before.damaged | before.strays)
        return state

    def _start_and_wait(self, order: Order) -> int:
        self.server.start(order)
        status = self.server.wait()
        self._check_log(Path(order.log))
        return status

    def _check_log(self, log: Path) -> str:
        text = text_of(log)
        if "Traceback" in SECOND_SIGNAL.sub("", text):
            raise ChaosError(f"a traceback:\n{text}")
        return text


def _contents(folder: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
