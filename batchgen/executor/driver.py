"""A job on several replicas. They pull shards; the driver alone writes the run. Start reading at `run_replicas`."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

from batchgen.errors import BatchgenError, EngineError
from batchgen.executor.base import Job
from batchgen.executor.fleet import POLL, Fleet, Heard, Lost
from batchgen.executor.gathering import Gathering
from batchgen.executor.host import host
from batchgen.executor.members import ClusterProgress, Member, difference
from batchgen.executor.open_run import open_run, trusted_shards
from batchgen.executor.reuse import Reuse
from batchgen.executor.run_book import JobReport, RunBook, finish, report
from batchgen.executor.run_config import RunConfig
from batchgen.executor.shard_queue import ShardQueue, prompt_bytes
from batchgen.executor.stoppable import Stop, asking_to_stop, interrupted
from batchgen.executor.twins import Twins
from batchgen.executor.work import Failure, Made, News, ShardReader, Started, Told
from batchgen.io.events import EventLog
from batchgen.io.hashing import MerkleTree
from batchgen.io.run_folder import RunFolder
from batchgen.plan import Shard

MOST_LOSSES = 8, 3  # of replicas in a row, and for each replica that there should be
OUTSTANDING = 2  # shards of a replica, so that its engine does not run dry at the end of one
LEAST_PATIENCE = 60.0  # seconds without a word of a replica; it says something every other second
MOST_PAUSE = 60.0  # seconds between starts that fail

_log = logging.getLogger(__name__)


def run_replicas(
    job: Job, fleet: Fleet, config: RunConfig, on_progress: Callable[[ClusterProgress], None] = lambda _: None
) -> JobReport:
    """As executor.local.run_local, by the replicas of `fleet`, as many as `config` says. It is closed at the end.

    A replica that is lost is replaced, and its shards go to others. Raises as run_local does, and EngineError when
    replicas are lost again and again without a shard being made, or do not compute alike.
    """
    with ExitStack() as stack:
        stack.callback(fleet.close)
        folder = stack.enter_context(RunFolder.open(config.out))
        stop = stack.enter_context(asking_to_stop())
        gathering = Gathering(job, fleet, config, folder, stop)
        reference = gathering.reference()
        plan, schema = open_run(folder, job, reference, config)
        tree = MerkleTree()
        trusted = trusted_shards(folder, plan, tree)
        missing = [shard for shard in plan.shards if shard.index not in trusted]
        resumed = plan.num_samples - sum(shard.num_rows for shard in missing) * plan.n
        progress = ClusterProgress(samples=plan.num_samples, done=resumed, resumed=resumed)
        on_progress(progress)
        if missing or folder.started.root is None:
            events = stack.enter_context(EventLog.open(folder.path))
            book = RunBook(job, reference, config, folder, tree, events, progress)
            book.start(host())
            queue = ShardQueue(missing, prompt_bytes(job.inputs, plan))
            reuse = Reuse.open(config.reuse, job.spec, job.fingerprint(reference), folder)
            reader = ShardReader(job.inputs, schema, reuse)
            driver = Driver(book, fleet, queue, reader, reference, config.replicas)
            driver.run(gathering.starting, gathering.heard, stop, on_progress)
            book.finish()
        else:
            finish(folder, tree.root(plan.num_samples))
        return report(folder, progress)


class Driver:
    """Hands out shards and takes them in until the run is whole."""

    def __init__(
        self, book: RunBook, fleet: Fleet, queue: ShardQueue, reader: ShardReader, reference: Started, wanted: int
    ) -> None:
        """`wanted`: how many replicas are to work; `reference`: what all of them must equal."""
        self._book, self._fleet, self._queue, self._reader = book, fleet, queue, reader
        self._reference, self._wanted = reference, wanted
        self._members: dict[str, Member] = {}
        self._starting: set[str] = set()
        self._left = len(queue)  # shards that are not committed
        self._losses = 0  # of replicas, since a shard was made
        self._failed_starts, self._start_at = 0, 0.0  # in a row; when the next one may be tried
        self._patience = max(book.config.watchdog_seconds, LEAST_PATIENCE)
        self._listened = perf_counter()  # when the news was asked for
        self._counts = Told()  # of what was committed
        self._gone = 0  # replicas and processes that died
        self._twins = Twins(book)

    def run(
        self,
        starting: set[str],
        heard: list[tuple[str, Heard]],
        stop: Stop,
        on_progress: Callable[[ClusterProgress], None],
    ) -> None:
        """Until every shard is committed. `starting` were started before, and `heard` is what they have said since.

        Raises Interrupted, after what was complete by then is committed; and as run_replicas.
        """
        self._starting = set(starting)
        while True:
            for name, said in heard:
                self._take(name, said)
            self._miss()
            self._show(on_progress)
            if not self._left:
                return
            if stop.asked:
                for name, said in self._fleet.hear(0.0):
                    self._take(name, said)
                raise interrupted(self._book.folder, stop.asked)
            self._fill()
            self._listened = perf_counter()
            heard = self._fleet.hear(POLL)

    def _fill(self) -> None:
        """Every replica has its shards, and there are as many replicas as there should be."""
        while len(self._members) + len(self._starting) < self._wanted and perf_counter() >= self._start_at:
            self._starting.add(self._fleet.start())
        if not self._wanted:
            raise EngineError("no replica is left that computes as the run does", hint="see the warnings above")
        for most in range(1, OUTSTANDING + 1):  # nobody waits while another has two
            for member in self._members.values():
                if self._queue and len(member.shards) < most:
                    member.is_twin = False
                    shard = self._queue.take()
                    self._twins.begun(shard)
                    self._give(member, shard)
        idle = (member for member in self._members.values() if not member.shards)
        for member, shard in zip(idle, iter(self._twins.next, None), strict=False):
            self._book.events.write("twin", shard=shard.index, replica=member.name)
            member.is_twin = True
            self._give(member, shard)

    def _give(self, member: Member, shard: Shard) -> None:
        member.shards[shard.index] = shard
        self._fleet.give(member.name, self._reader.read(shard))

    def _take(self, name: str, said: Heard) -> None:
        if isinstance(said, Started):
            self._starting.discard(name)
            self._join(name, said)
        elif isinstance(said, Lost):
            self._starting.discard(name)
            self._lose(name, said.error)
        elif name in self._members:
            self._listen(self._members[name], said)

    def _join(self, name: str, said: Started) -> None:
        if reason := difference(self._reference, said):
            _log.warning("replica %s gets no work: %s", name, reason)
            self._book.events.write("refuse", replica=name, reason=reason, host=said.host)
            self._fleet.end(name)
            self._wanted -= 1  # another one on that machine would be like it
            return
        self._book.events.write("join", replica=name, host=said.host, engine=said.about)
        self._members[name] = Member(name, said, heard=self._listened)
        self._failed_starts = 0

    def _listen(self, member: Member, news: News) -> None:
        member.told, member.heard = news.told, self._listened
        for sample in news.proven:
            self._book.log_probe(sample)
        for text in news.deaths:
            self._gone += 1
            self._book.events.write("death", replica=member.name, reason=text)
            _log.warning("a process of replica %s died and is started again: %s", member.name, text)
        for made in news.made:
            self._accept(member, made)
        if news.failure:
            self._fail(member, news.failure)

    def _accept(self, member: Member, made: Made) -> None:
        """Commit a shard, or compare it with its twin that was."""
        shard = member.shards.pop(made.shard.index, None)
        if shard != made.shard or made.table.num_rows != shard.num_rows * self._book.job.params.n:
            raise BatchgenError(f"replica {member.name} handed in another shard than {shard}", hint=_OURS)
        member.handed_in = member.handed_in + made.told
        self._losses = 0
        if self._twins.is_second(member.name, made):
            return
        self._book.commit(made, member.name)
        self._left -= 1
        self._counts = self._counts + made.told
        self._twins.committed(member.name, made, self._members.values())

    def _fail(self, member: Member, failure: Failure) -> None:
        if failure.evidence is not None and failure.probe is not None:
            facts = {**failure.evidence, "replica": member.name, "host": member.started.host}
            error = failure.error
            raise self._book.differs(f"replica {member.name}: {error.message}", error.hint, failure.probe, facts)
        if not failure.is_loss:
            raise failure.error
        self._fleet.end(member.name)
        self._lose(member.name, failure.error)

    def _miss(self) -> None:
        """Who is silent is lost: its process or its machine stands still, and nothing else would tell."""
        for member in list(self._members.values()):
            if self._listened - member.heard > self._patience:
                self._fleet.end(member.name)
                self._lose(member.name, EngineError(f"nothing was heard of it for {self._patience:g} s"))

    def _lose(self, name: str, error: BatchgenError) -> None:
        """Its shards go back, but for those that are committed or that another has."""
        member = self._members.pop(name, None)
        if member is None:  # a machine without the model, say, fails each time and at once
            self._failed_starts += 1
            self._start_at = perf_counter() + min(MOST_PAUSE, 0.1 * 2 ** min(self._failed_starts, 10))
        shards = list(member.shards.values()) if member else []
        back = [shard for shard in shards if self._twins.is_missing(shard, self._members.values())]
        self._queue.put_back(back)
        self._losses += 1
        self._gone += 1
        self._book.events.write("lost", replica=name, reason=error.message, shards=[shard.index for shard in back])
        _log.warning("replica %s is lost and replaced: %s", name, error.message)
        least, each = MOST_LOSSES
        if self._losses > max(least, each * self._wanted):
            numbers = ", ".join(str(shard.index) for shard in shards) or "none"
            raise EngineError(
                f"{self._losses} replicas were lost in a row, the last with the shards {numbers}: {error.message}",
                where=error.where,
                hint=error.hint,
            )

    def _show(self, on_progress: Callable[[ClusterProgress], None]) -> None:
        progress, told = self._book.progress, self._counts
        assert isinstance(progress, ClusterProgress)
        for member in self._members.values():
            if not member.is_twin and not all(index in self._twins.done for index in member.shards):
                told = told + member.open
        progress.done = min(progress.resumed + told.samples + told.reused, progress.samples)
        progress.reused, progress.scored, progress.errors = told.reused, told.scored, told.errors
        progress.prompt_tokens, progress.output_tokens = told.prompt_tokens, told.output_tokens
        progress.replicas = {name: member.tokens_per_second for name, member in self._members.items()}
        progress.starting, progress.lost, progress.twins = len(self._starting), self._gone, self._twins.equal
        on_progress(progress)


_OURS = "this is a fault in batchgen; what is committed is valid"
