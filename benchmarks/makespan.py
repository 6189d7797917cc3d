"""When is a job done on a thousand replicas that fail and straggle? The driver's way against others, by simulation.

    python -m benchmarks.makespan --out benchmarks/results/makespan.json

Everything is drawn from a seed; every strategy meets the same replicas, failures and shards. See README.md.
"""

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Floats = NDArray[np.float64]

OUTSTANDING = 2  # shards of a replica: the one that it makes, and the next


@dataclass(frozen=True, slots=True)
class World:
    """What the replicas and the rows are like. Times are in seconds."""

    replicas: int = 1000
    shards_each: float = 16.0  # for each replica
    rows: int = 512  # of a shard
    row_seconds: float = (
        1.0  # of a median row, of one replica: rows of a batch run side by side, and this is their share
    )
    spread: float = 1.0  # sigma of the logarithm of a row's length
    drift: float = 0.5  # the same, of what the rows of one shard have in common: neighbours in the input are alike
    known: float = 0.8  # correlation of a shard's length with what its prompts let one expect
    speeds: float = 0.05  # sigma of the logarithm of a replica's speed
    stragglers: float = 0.01  # share of the replicas that are slow
    slowness: float = 4.0  # of these
    hours_between_failures: float = 100.0  # of one replica; what it has in hand is lost
    start_seconds: float = 120.0  # of a replica that replaces another


@dataclass(frozen=True, slots=True)
class Strategy:
    """How shards get to replicas."""

    name: str
    pull: bool = True  # else each replica is given its share at the start
    long_first: bool = True
    twins: bool = True


STRATEGIES = (
    Strategy("static split", pull=False, long_first=False, twins=False),
    Strategy("pull", long_first=False, twins=False),
    Strategy("pull, long first", twins=False),
    Strategy("pull, twins", long_first=False),
    Strategy("pull, long first, twins"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one job. `ideal`: all useful work, spread evenly over the speeds of all replicas that never fail."""

    makespan: float
    ideal: float
    wasted: float  # share of the work done that was done twice or lost

    @property
    def ratio(self) -> float:
        return self.makespan / self.ideal


@dataclass(frozen=True, slots=True)
class Drawn:
    """One world, drawn."""

    work: Floats  # [shards] seconds at speed 1
    expected: Floats  # [shards] what the prompts let one expect, in any unit
    speeds: Floats  # [replicas]
    chance: int  # seed of the failures


def draw(world: World, seed: int) -> Drawn:
    """The length of a row is log-normal; that of a shard is the sum of its rows and of what they have in common."""
    chance = np.random.default_rng(seed)
    shards = round(world.replicas * world.shards_each)
    common, noise = chance.standard_normal((2, shards))
    mean = np.exp(world.spread**2 / 2)
    scatter = np.sqrt((np.exp(world.spread**2) - 1) / world.rows) * chance.standard_normal(shards)
    work = world.row_seconds * world.rows * mean * np.exp(world.drift * common) * np.maximum(0.1, 1 + scatter)
    expected = np.exp(world.drift * (world.known * common + np.sqrt(1 - world.known**2) * noise))
    speeds = np.exp(world.speeds * chance.standard_normal(world.replicas))
    speeds[chance.random(world.replicas) < world.stragglers] /= world.slowness
    return Drawn(work, expected, speeds, int(chance.integers(2**62)))


@dataclass(slots=True)
class _Replica:
    speed: float
    dies: float  # when
    queue: deque[int] = field(default_factory=deque)  # shards that it has, the one that it makes first
    given: deque[float] = field(default_factory=deque)  # when it got each
    began: float = 0.0  # to make the first
    turn: int = 0  # events of earlier turns are void


class Simulation:
    """The replicas of one world under one strategy."""

    def __init__(self, world: World, strategy: Strategy, seed: int) -> None:
        self.world, self.strategy, self.drawn = world, strategy, draw(world, seed)
        self._chance = np.random.default_rng(self.drawn.chance)
        self._replicas = [_Replica(float(speed), self._lifetime()) for speed in self.drawn.speeds]
        self._events: list[tuple[float, int, int, str]] = []  # when, replica, turn, what
        self._done: set[int] = set()
        self._holders: dict[int, set[int]] = {}
        self._spent = 0.0  # seconds at speed 1
        order = np.argsort(-self.drawn.expected, kind="stable") if strategy.long_first else np.arange(self._shards)
        self._waiting = deque(int(shard) for shard in order)

    @property
    def _shards(self) -> int:
        return len(self.drawn.work)

    def run(self) -> Outcome:
        """To the last shard."""
        if not self.strategy.pull:
            for at, shard in enumerate(list(self._waiting)):  # neighbours stay together, as in files
                self._give(at * len(self._replicas) // self._shards, shard, 0.0)
            self._waiting.clear()
        for number in range(len(self._replicas)):
            self._fill(number, 0.0)
        now = 0.0
        while len(self._done) < self._shards:
            now, number, turn, what = heapq.heappop(self._events)
            if turn == self._replicas[number].turn:
                {"made": self._made, "died": self._died, "started": self._fill}[what](number, now)
        useful = float(self.drawn.work.sum())
        ideal = useful / float(self.drawn.speeds.sum())
        spent = self._spent + sum(self._spent_on(number, now) for number in range(len(self._replicas)))
        return Outcome(now, ideal, 1 - useful / spent)

    def _lifetime(self) -> float:
        return float(self._chance.exponential(self.world.hours_between_failures * 3600))

    def _fill(self, number: int, now: float) -> None:
        """Give it what it can have, and let it go on."""
        replica = self._replicas[number]
        while self._waiting and len(replica.queue) < OUTSTANDING:
            self._give(number, self._waiting.popleft(), now)
        if not replica.queue and self.strategy.twins and (shard := self._twin(number)) is not None:
            self._give(number, shard, now)
        self._go_on(number, now)

    def _give(self, number: int, shard: int, now: float) -> None:
        self._replicas[number].queue.append(shard)
        self._replicas[number].given.append(now)
        self._holders.setdefault(shard, set()).add(number)

    def _twin(self, number: int) -> int | None:
        """The shard that has been with another for longest, and that no third has."""
        alone = ((shard, *holders) for shard, holders in self._holders.items() if len(holders) == 1)
        ages = ((self._given(other, shard), shard) for shard, other in alone if other != number)
        return min(ages, default=(0.0, None))[1]

    def _given(self, number: int, shard: int) -> float:
        replica = self._replicas[number]
        return replica.given[replica.queue.index(shard)]

    def _go_on(self, number: int, now: float) -> None:
        replica = self._replicas[number]
        replica.began = now
        replica.turn += 1
        if replica.queue:
            end = now + float(self.drawn.work[replica.queue[0]]) / replica.speed
            what = "made" if end <= replica.dies else "died"
            heapq.heappush(self._events, (min(end, max(replica.dies, now)), number, replica.turn, what))

    def _spent_on(self, number: int, now: float) -> float:
        replica = self._replicas[number]
        return max(0.0, now - replica.began) * replica.speed if replica.queue else 0.0

    def _made(self, number: int, now: float) -> None:
        replica = self._replicas[number]
        self._spent += self._spent_on(number, now)
        shard = replica.queue[0]
        replica.queue.popleft()
        replica.given.popleft()
        self._done.add(shard)
        self._holders.pop(shard, None)  # a twin of it goes on to its end
        self._fill(number, now)

    def _died(self, number: int, now: float) -> None:
        """What it had goes to others, or under a static split waits for the one that takes its place."""
        replica = self._replicas[number]
        self._spent += self._spent_on(number, now)
        if self.strategy.pull:
            for shard in reversed(replica.queue):
                holders = self._holders.get(shard, {number})
                holders.discard(number)
                if not holders and shard not in self._done:
                    self._waiting.appendleft(shard)
            replica.queue.clear()
            replica.given.clear()
        back = now + self.world.start_seconds
        replica.dies = back + self._lifetime()
        replica.turn += 1
        heapq.heappush(self._events, (back, number, replica.turn, "started"))


def simulate(world: World, strategy: Strategy, seed: int) -> Outcome:
    """One job."""
    return Simulation(world, strategy, seed).run()


WORLDS: dict[str, Callable[[World], World]] = {
    "as it comes": lambda world: world,
    "no failure, no straggler": lambda world: replace(world, stragglers=0.0, hours_between_failures=1e6),
    "spot machines: a failure in 10 h": lambda world: replace(world, hours_between_failures=10.0),
    "5% stragglers": lambda world: replace(world, stragglers=0.05),
    "lengths not known before": lambda world: replace(world, known=0.0),
    "shards alike": lambda world: replace(world, drift=0.0),
    "2 shards for each replica": lambda world: replace(world, shards_each=2.0, rows=4096),
    "8": lambda world: replace(world, shards_each=8.0, rows=1024),
    "64": lambda world: replace(world, shards_each=64.0, rows=128),
}


def cases(world: World, seeds: int) -> Iterator[dict[str, object]]:
    for name, change in WORLDS.items():
        for strategy in STRATEGIES:
            outcomes = [simulate(change(world), strategy, seed) for seed in range(seeds)]
            ratios = [outcome.ratio for outcome in outcomes]
            yield {
                "world": name,
                "strategy": strategy.name,
                "ratio": float(np.mean(ratios)),
                "worst": max(ratios),
                "ideal_seconds": float(np.mean([outcome.ideal for outcome in outcomes])),
                "wasted": float(np.mean([outcome.wasted for outcome in outcomes])),
            }


@click.command()
@click.option("--replicas", default=1000, show_default=True)
@click.option("--seeds", default=10, show_default=True, help="Draws of each world.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
def main(replicas: int, seeds: int, out: Path | None) -> None:
    """Simulate, print a table: makespan over the ideal."""
    world = World(replicas=replicas)
    results = list(cases(world, seeds))
    table = Table(title=f"makespan over the ideal, mean (worst) of {seeds} draws; {replicas:,} replicas")
    for name in ("world", *(strategy.name for strategy in STRATEGIES)):
        table.add_column(name, justify="left" if name == "world" else "right")
    for name in WORLDS:
        row = [case for case in results if case["world"] == name]
        table.add_row(name, *(f"{case['ratio']:.2f} ({case['worst']:.2f})" for case in row))
    Console(width=140).print(table)
    if out:
        out.write_text(json.dumps({"world": asdict(world), "seeds": seeds, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
