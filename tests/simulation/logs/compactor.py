"""The compactor: plans, rewrites, commits and sweeps through the store, each at a moment of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.errors import SegmentLogError, SourcesChangedError, StoreIOError
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.plan import LogPlan
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.scan.sense import SenseSettings
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.log import Log
from simulation.logs.steps import SteppedSystem
from support.faults.power_loss import Recorder
from support.segments.segment_logs import leftovers

LIMITS = SegmentLimits(max_entries=16, max_sources=4)
ROUNDS = 8
"""Jobs one after the other, which is more than any log here needs."""


@dataclass
class Compaction:
    """A job on one log: what is planned, and what is rewritten and not committed yet."""

    job: str
    token: int
    plan: LogPlan
    rewritten: list[RewrittenGroup] = field(default_factory=list)


@dataclass
class Compactor:
    """Its process dies with the owner's. `numbers`: of jobs, in all lives: a token is never used twice."""

    root: Path
    dice: Random
    uids: tuple[str, ...]
    numbers: list[int]

    def __post_init__(self) -> None:
        settings = SenseSettings(limits=LIMITS)
        self.store = SegmentLogStore(self.root, settings, holder="simulation", lock_timeout=0.0)
        self.running: dict[str, Compaction] = {}
        self.full = False
        """The disk was full at one of its calls, so the step in which that was has failed."""

    def act(self) -> str:
        """The next step of a job on one log, a sweep, or a recovery. What the store refuses is no violation."""
        uid = self.dice.choice(self.uids)
        action = self.dice.choices((self.advance, self.sweep, self.recover), (8, 2, 1))[0]
        try:
            return f"{uid}: {action.__name__}: {action(uid)}"
        except SegmentLogError as error:
            if isinstance(error, StoreIOError) and not self.full:
                raise
            self.full = False
            self.running.pop(uid, None)
            return f"{uid}: {action.__name__}: {type(error).__name__}"

    def advance(self, uid: str) -> str:
        running = self.running.get(uid)
        if running is None:
            return self._begin(uid)
        if running.rewritten:
            groups = running.rewritten[: self.dice.choice((1, len(running.rewritten)))]
            del running.rewritten[: len(groups)]
            outcomes = self.store.commit_all(uid, job=running.job, token=running.token, groups=groups)
            for outcome in outcomes:
                if isinstance(outcome, SegmentLogError):
                    raise outcome
            return f"committed {[group.sources for group in groups]}"
        names = [item.name for item in running.plan.unreferenced]
        del self.running[uid]
        marked = self.store.commit_unreferenced(uid, job=running.job, token=running.token, names=names)
        self.store.retire(uid, running.job)
        return f"marked {len(marked)}"

    def _begin(self, uid: str) -> str:
        plan = self.store.plan(uid)
        if not plan.debt_segments:
            return "nothing"
        self.numbers.append(len(self.numbers) + 1)
        running = Compaction(f"job-{self.numbers[-1]}", self.numbers[-1], plan)
        self.store.claim(uid, job=running.job, token=running.token)
        snapshot = open_log(self.root / uid).snapshot_index or 0
        prepared = self.store.prepare(
            uid, job=running.job, groups=[group.sources for group in plan.groups], snapshot_index=snapshot
        )
        for group in prepared.groups:
            if group.error is not None:
                raise group.error
            if group.ranges is not None:
                rewritten = self.store.rewrite(
                    uid, group=group, live=prepared.live, job=running.job, token=running.token
                )
                running.rewritten.append(rewritten)
        self.running[uid] = running
        return f"rewrote {[group.sources for group in running.rewritten]}"

    def sweep(self, uid: str) -> str:
        return f"deleted {[item.name for item in self.store.sweep(uid, grace_seconds=0.0).deleted]}"

    def finish(self) -> list[SegmentLogError]:
        """In peace: everything that can be compacted is, nothing half-done is left. Returns the errors of last jobs."""
        self.running.clear()
        errors = []
        for uid in self.uids:
            if not any((self.root / uid).glob("*.segment")):
                continue
            for _ in range(ROUNDS):
                failed = self._job(uid)
                if isinstance(failed, SourcesChangedError):
                    # Recovery has finished a commit since the plan was made: the next plan knows it.
                    continue
                if failed is not None or not self.store.plan(uid).debt_segments:
                    break
            else:
                raise AssertionError(f"{uid}: after {ROUNDS} jobs {self.store.plan(uid)}")
            self.store.sweep(uid, grace_seconds=0.0, active=frozenset())
            assert leftovers(self.root / uid) == [], f"{uid}: {leftovers(self.root / uid)}"
            errors += [failed] if failed is not None else []
        return errors

    def _job(self, uid: str) -> SegmentLogError | None:
        try:
            self._begin(uid)
            while uid in self.running:
                self.advance(uid)
        except SegmentLogError as error:
            self.running.pop(uid, None)
            return error
        return None

    def recover(self, uid: str) -> str:
        self.store.recover(uid)
        return ""


# A follower: a log of the same system that gets snapshots of another one installed, with their live entries.

FOLLOWER, LEADER = "c", "a"


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot that was installed, or begun to be: its index, and the live entries that belong to it."""

    index: int
    content: dict[int, LogEntry]


@dataclass
class Follower:
    """Over all lives. `offered`: in order; the log holds exactly one of them, or nothing."""

    offered: list[Offered]

    def install(self, stepped: SteppedSystem, busy: set[str], recorder: Recorder) -> str:
        """The leader's newest snapshot, if the follower does not have it."""
        source, target = stepped.system.open_log(LEADER), stepped.system.open_log(FOLLOWER)
        while stepped.threads["snapshots"]():
            pass
        index, applied = source.row.snapshot_index, target.row.snapshot_index
        if index is None or (applied is not None and index <= applied):
            return "nothing"
        self.offered.append(Offered(index, {entry.index: entry for entry in source.read(source.indexes(0, index))}))
        count = len(self.offered)
        busy.add("snapshots")
        try:
            with stepped.patient():
                installed = install_snapshot(source, target, term=1, transfer=count, applied=applied)
        finally:
            busy.discard("snapshots")
        assert installed is not None
        assert installed.index == index
        recorder.mark(("installed", FOLLOWER, count))
        self.check(target, count)
        return f"at {index}, {len(self.offered[-1].content)} live"

    def check(self, log: Log, promised: int) -> None:
        """It holds a snapshot that was reported as installed, or a later one, with its live entries and no others."""
        row = log.row
        content = {entry.index: entry for entry in log.read(log.indexes())}
        found = None if row.snapshot_index is None else Offered(row.snapshot_index, content)
        allowed: list[Offered | None] = [None, *self.offered]
        assert found in allowed[promised:], f"follower: {row}, {sorted(content)}; {promised} promised, {allowed[-3:]}"
        assert found is not None or content == {}, f"follower: {sorted(content)} of an interrupted installation"

    def left(self, log: Log) -> Follower:
        """After a failure: what is there is promised."""
        if log.row.snapshot_index is None:
            return Follower([])
        return Follower([Offered(log.row.snapshot_index, {entry.index: entry for entry in log.read(log.indexes())})])
