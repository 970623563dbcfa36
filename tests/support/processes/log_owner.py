"""Writes two logs of one system as fast as it can, with overwrites, snapshots with live entries, rolls and compactions
of its own, reads them all the time, and has the snapshots of one installed in a third. It checks what it finds when it
starts; it ends when its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, Final

from compaction.segments.errors import LogClosedError, SourcesChangedError
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.compactions import OwnerCompaction
from compaction.segments.system.log import Log
from compaction.segments.system.rules import DueRules
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from compaction.storage.errors import RewriteStoppedError
from support.processes.log_follower import Follower
from support.segments.owned_logs import Journal, LogModel, entries, payload

LOGS: Final = ("a", "b")
WAIT: Final = 300.0
IN_FLIGHT: Final = 24
MOST_LIVE: Final = 800
LIMITS: Final = SystemLimits(
    wal=WalLimits(max_entries=400),
    segments=NewSegments(max_count=48),
    snapshot_grace=0.2,
    compaction=OwnerCompaction(
        due=DueRules(live_share=0.1, every=5.0), limits=SegmentLimits(max_entries=48), grace=1.0
    ),
)


class Owner:
    """One log: what is written to it, and what it must hold."""

    def __init__(self, system: LogSystem, name: str, journal: Journal, lock: threading.Condition, seed: int) -> None:
        self.system = system
        self.name = name
        self.log: Log = system.open_log(name)
        self.journal = journal
        self.lock = lock
        self.random = Random(f"{seed}/{name}")
        self._check()
        last = self.model.last
        self.next, self.term = (1, 1) if last is None else (last[0] + 1, last[1] + 1)

    @property
    def model(self) -> LogModel:
        return self.journal.models[self.name]

    def _check(self) -> None:
        """What the last life left is what some prefix of its writes makes, with every acknowledged one."""
        last, row = self.log.last, self.log.state.row
        self.journal.say("found", self.name, *(last or (None, None)), row.snapshot_index or 0)
        found = {entry.index: entry for entry in self.log.read(self.log.indexes())}
        needed = self.model.needed()
        assert found.keys() == needed.keys(), f"{self.name}: {found.keys() ^ needed.keys()} lost, or not dead"
        wrong = [e for e in found.values() if e.term != needed[e.index] or e.payload != self.payload(e)]
        assert not wrong, f"{self.name}: {wrong[:3]}"

    def payload(self, entry: LogEntry) -> bytes:
        return payload(self.name, entry.index, entry.term)

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.80:
            self.write(self.next)
        elif chance < 0.88:
            self.go_back()
        elif chance < 0.97:
            self.snapshot()
        elif chance < 0.99:
            self.system.roll()
        else:
            self.system.compact(self.name).add_done_callback(_expected)

    def write(self, first: int) -> None:
        count = self.random.choice((1, 1, 2, 8, 30))
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.model.writes) < IN_FLIGHT, WAIT)
            number = self.model.number + 1
            self.journal.say("write", self.name, number, first, count, self.term)
        self.next = first + count
        self.log.append(entries(self.name, first, count, self.term), timeout=WAIT).add_done_callback(
            lambda done: self._done("written", number, done)
        )

    def go_back(self) -> None:
        """Above every snapshot, taken or begun: by a truncation or by the write alone."""
        with self.lock:
            bound = max(snapshot.index for snapshot in (self.model.snapshot, *self.model.snapshots))
        if self.next - 1 <= bound:
            return
        first = self.random.randint(max(bound + 1, self.next - 60), self.next - 1)
        if self.random.random() < 0.5:
            self.log.truncate(first)
        self.term += 1
        self.write(first)

    def snapshot(self) -> None:
        """At an acknowledged entry; one at a time."""
        with self.lock:
            model = self.model
            assert self.lock.wait_for(lambda: not model.writes and not model.snapshots, WAIT)
            last = model.last
            if last is None or last[0] <= model.snapshot.index:
                return
            index = self.random.randint(model.snapshot.index + 1, last[0])
            live = self._live(model, index)
            number, term = model.number + 1, model.term_of(index)
            assert term is not None
            self.journal.say("snapshot", self.name, number, index, live.ranges)
        self.log.snapshot(index, term, b"\x83j", live).add_done_callback(lambda done: self._done("taken", number, done))

    def _live(self, model: LogModel, index: int) -> LiveSet:
        """Some of what was live, and of what is new: nothing, everything, every so manieth, a run. At times all that
        is older dies at once: then old segments are dead, and those that stand for several are not.
        """
        old = [i for i in model.snapshot.live if self.random.random() < 0.9]
        if self.random.random() < 0.3:
            old = old[self.random.randrange(len(old) + 1) :]
        new = range(model.snapshot.index + 1, index + 1)
        begin = self.random.randrange(len(new))
        kept = self.random.choice((new[:0], new[-40:], new[:: self.random.randint(2, 9)], new[begin : begin + 30]))
        both = [*old, *kept]
        return LiveSet.from_indexes(both[max(0, len(both) - MOST_LIVE) :])

    def _done(self, kind: str, number: int, future: Future[Any]) -> None:
        future.result()
        with self.lock:
            self.journal.say(kind, self.name, number)
            self.lock.notify_all()

    def read(self, random: Random) -> None:
        """Live entries, through whatever replaces their files meanwhile: what is live afterwards is there, as it was
        written.
        """
        with self.lock:
            model = self.model
            live = list(model.snapshot.live)
            wanted = random.sample(live, min(len(live), 200))
            before = {index: model.term_of(index) for index in wanted}
        top = self.next
        found = {e.index: e for e in self.log.read([*wanted, *range(max(0, top - 100), top)])}
        with self.lock:
            missing = [i for i in wanted if i not in found and self.model.is_live(i)]
        assert not missing, f"{self.name}: {missing} are live and were not read"
        wrong = [e for e in found.values() if e.payload != self.payload(e) or before.get(e.index, e.term) != e.term]
        assert not wrong, f"{self.name}: {wrong[:3]}"

    def settle(self) -> None:
        with self.lock:
            assert self.lock.wait_for(lambda: not self.model.writes and not self.model.snapshots, WAIT)


def _expected(done: Future[Any]) -> None:
    """Phase 1, or another compaction, may come first; the process may be about to end."""
    expected = (SourcesChangedError, RewriteStoppedError, LogClosedError)
    if (error := done.exception()) is not None and not isinstance(error, expected):
        _die(error)


def _die(error: BaseException) -> None:
    """Whatever thread it is: the test must see it, and the process must not go on."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(3)


def main(directory: Path, journal: Path, seed: int) -> None:
    stop = threading.Event()
    lock = threading.Condition(threading.RLock())
    with LogSystem(directory, limits=LIMITS) as system:
        book = Journal(journal)
        owners = [Owner(system, name, book, lock, seed) for name in LOGS]
        follower = Follower(system, book, lock)

        def loop(owner: Owner, read: bool) -> None:
            random = Random(seed)
            try:
                while not stop.is_set():
                    if not read:
                        owner.step()
                    elif not stop.wait(random.uniform(0, 0.5)):
                        # With pauses, in which the log does not notice what others do to its files.
                        owner.read(random)
            except BaseException as error:  # noqa: BLE001 - a thread that ends in silence hides what the test is for
                _die(error)

        def follow() -> None:
            try:
                follower.run(stop, Random(seed))
            except BaseException as error:  # noqa: BLE001
                _die(error)

        threads = [threading.Thread(target=loop, args=(owner, read)) for owner in owners for read in (False, True)]
        threads.append(threading.Thread(target=follow))
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
        for owner in owners:
            owner.settle()
        system.roll().result(WAIT)
        assert system.drain(WAIT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
