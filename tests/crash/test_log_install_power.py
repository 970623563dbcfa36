"""A log in which snapshots are installed loses its power at every call: with tails that are replaced, aborted, again.

Whatever subset of the unsynced changes is left, the log is what it was before the step that was under way, or what that
step makes of it: never entries with gaps, never a tail that an installed snapshot has replaced, never a snapshot
without all of its live entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.errors import SegmentLogError
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes
from compaction.segments.system import content, installs
from compaction.segments.system import log as log_module
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.faults.power_loss import Disk, Recorder, Without, lose_power_everywhere
from support.segments.owned_logs import conforms
from support.timing import at_depth

LIMITS = SystemLimits(
    wal=WalLimits(max_entries=7), segments=NewSegments(max_count=9), rolled_files=1, snapshot_grace=0.0
)
SHARE = 3
"""A short run loses the power at one of so many calls."""


def entries(indexes: Iterable[int], term: int) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(index, term, b"%d@%d" % (index, term)) for index in indexes)


@dataclass(frozen=True)
class State:
    """What a log holds: its entries, its snapshot with what is live, its last index."""

    held: tuple[LogEntry, ...] = ()
    snapshot: int | None = None
    live: tuple[int, ...] = ()

    @classmethod
    def of(cls, log: Log) -> State:
        assert log.last == log.last_written
        state = cls(tuple(log.read(log.indexes())), log.row.snapshot_index, tuple(log.row.live or ()))
        assert (-1 if log.last is None else log.last.index) == state.last
        return state

    @property
    def last(self) -> int:
        return max([entry.index for entry in self.held] + [-1 if self.snapshot is None else self.snapshot])

    def below(self, index: int) -> State:
        return State(tuple(entry for entry in self.held if entry.index < index), self.snapshot, self.live)

    def appended(self, added: tuple[LogEntry, ...]) -> State:
        return State(self.below(added[0].index).held + added, self.snapshot, self.live)

    def installed(self, index: int, live: tuple[int, ...], sent: tuple[LogEntry, ...]) -> State:
        kept = tuple(entry for entry in self.held if entry.index in live and entry.index < sent[0].index if sent)
        return State(kept + sent, index, live)


@dataclass
class Life:
    """Steps of one log, each begun when the one before is durable; `possible[n]`: what may be left during step n."""

    recorder: Recorder
    system: LogSystem
    leader: dict[int, Log]
    state: State = field(default_factory=State)
    possible: list[list[State]] = field(default_factory=list)

    @property
    def log(self) -> Log:
        return self.system.open_log("a")

    def step(self, act: Callable[[], object], after: State, *between: State) -> None:
        self.possible.append([self.state, *between, after])
        act()
        assert State.of(self.log) == after
        self.state = after
        self.recorder.mark(len(self.possible))

    def append(self, first: int, last: int, term: int) -> None:
        """Two logs share the files; of a batch any first part may be left."""
        added = entries(range(first, last + 1), term)
        other = self.system.open_log("b")
        following = 1 if other.last is None else other.last.index + 1

        def act() -> None:
            other.append([LogEntry(following, 1, b"other")])
            self.log.append(added).result(PATIENCE_SECONDS)

        parts = [self.state.appended(added[:count]) for count in range(1, len(added))]
        self.step(act, self.state.appended(added), *parts)

    def install(self, index: int, applied: int | None) -> None:
        """Entries above the applied index may be gone before the snapshot is there, or those above its index."""
        leader = self.leader[index]
        live = tuple(leader.row.live or ())
        base = -1 if applied is None else applied
        kept = tuple(entry for entry in self.state.held if entry.index in live and entry.index <= base)
        sent = tuple(leader.read(i for i in live if i > base))
        after = State(kept + sent, index, live)

        def act() -> None:
            install_snapshot(leader, self.log, term=9, transfer=index, applied=applied)

        self.step(act, after, self.state.below(base + 1), self.state.below(index + 1))

    def abort(self, index: int, applied: int) -> None:
        """After two of the live entries."""
        leader = self.leader[index]
        live = [i for i in leader.row.live or () if i > applied][:2]
        after = self.state.below(applied + 1)

        def act() -> None:
            sizes = {"indexes_bytes": len(encode_indexes(LiveSet.empty())), "data_bytes": 99}
            install = self.log.begin_install(index, 2, applied=applied, **sizes)
            for previous, i in zip([applied, *live], live, strict=False):
                install.write(leader.read([i])[0], previous)
            install.chunk(b"part of it")
            install.abort()

        self.step(act, after)

    def snapshot(self, index: int, live: tuple[int, ...]) -> None:
        held = tuple(entry for entry in self.state.held if entry.index > index or entry.index in live)
        after = State(held, index, live)
        self.step(
            lambda: self.log.snapshot(index, 2, b"\x83j", LiveSet.from_indexes(live)).result(PATIENCE_SECONDS), after
        )

    def flush(self) -> None:
        def act() -> None:
            self.system.roll().result(PATIENCE_SECONDS)
            assert self.system.drain(PATIENCE_SECONDS)

        self.step(act, self.state)


def run(life: Life) -> None:
    """Into an empty log; with a tail that ends below the snapshot, above it, and above it without live entries to
    send; aborted, with and without what follows; with flushes in between.
    """
    life.install(12, None)
    life.append(13, 20, 2)
    life.flush()
    life.append(15, 23, 3)
    life.abort(30, 14)
    life.append(15, 18, 4)
    life.flush()
    life.abort(30, 16)
    life.install(30, 16)
    life.append(31, 33, 4)
    life.append(32, 58, 5)
    life.install(50, 33)
    life.flush()
    life.append(51, 53, 6)
    life.append(53, 75, 7)
    life.flush()
    life.install(60, 53)
    life.append(61, 62, 8)
    life.snapshot(62, (11, 30))
    life.flush()
    life.append(63, 64, 9)


LIVE = {12: (3, 7, 8, 11), 30: (3, 11, 17, 25, 26, 30), 50: (3, 11, 30, 40), 60: (11, 30)}
"""Of each snapshot: so some need entries above what the follower has applied, and the last one needs none."""


def record(root: Path, resources: ExitStack) -> tuple[Recorder, Life, Disk]:
    leading = resources.enter_context(LogSystem(root / "leading"))
    leaders: dict[int, Log] = {}
    for index, live in LIVE.items():
        leader = leaders[index] = leading.open_log(f"until-{index}")
        leader.append(entries(range(1, 71), 2)).result(PATIENCE_SECONDS)
        leader.snapshot(index, 2, b"\x83j", LiveSet.from_indexes(live)).result(PATIENCE_SECONDS)
    (root / "disk").mkdir()
    disk = Disk(root / "disk")
    with Recorder() as recorder:
        life = Life(recorder, LogSystem(root / "disk" / "system", limits=LIMITS), leaders)
        run(life)
        life.system.close()
    return recorder, life, disk


def check(directory: Path, life: Life, calls: int) -> None:
    """What is left is one of the possible states, also once all of it is in segments, and takes the next entry."""
    done = max(life.recorder.promised(calls), default=0)
    possible = life.possible[done] if done < len(life.possible) else [life.state]
    if not directory.exists():
        assert done == 0
        return
    conforms(directory)
    with LogSystem(directory, limits=LIMITS) as system:
        log = system.open_log("a")
        found = State.of(log)
        assert found in possible, f"step {done}: {found} is none of {possible}"
        # With the next entry in the file of this start, in the one before, or not yet there.
        append, flush = ((False, True), (True, False), (True, True))[calls // SHARE % 3]
        if append:
            found = found.appended(entries([found.last + 1], 99))
            log.append(found.held[-1:]).result(PATIENCE_SECONDS)
        if flush:
            system.roll().result(PATIENCE_SECONDS)
            assert system.drain(PATIENCE_SECONDS)
    with LogSystem(directory, limits=LIMITS) as system:
        assert State.of(system.open_log("a")) == found
        assert system.drain(PATIENCE_SECONDS)
        assert State.of(system.open_log("a")) == found


def lose(root: Path, *, kept: frozenset[str] = frozenset(), every: int = 1) -> int:
    with ExitStack() as resources:
        recorder, life, disk = record(root, resources)

        def check_left(left: Path, number: int) -> None:
            check(left / "system", life, number)

        return lose_power_everywhere(root, recorder, disk, check_left, kept=kept, every=every)


def test_power_is_lost_at_every_call_of_installations(tmp_path: Path) -> None:
    assert lose(tmp_path, every=at_depth(short=SHARE, deep=1)) > 100


def nothing_is_cut(*_: object) -> None:
    pass


def covers_nothing(*_: object) -> bool:
    return False


DEFECTS: dict[str, tuple[Any, str, object]] = {
    "the cut's name is not synced": (content, "fs", Without("sync_directory")),
    "no cut is written": (log_module, "write_cut", nothing_is_cut),
    "entries behind the cut count": (content.LogCut, "covers", covers_nothing),
    "the files of the snapshot are not synced": (installs, "fs", Without("sync")),
    "the name of the snapshot is not synced": (content, "fs", Without("sync_directory")),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_missing_step_is_found(defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would pass whatever the code does."""
    target, name, replacement = DEFECTS[defect]
    monkeypatch.setattr(target, name, replacement)
    with pytest.raises((AssertionError, SegmentLogError)):
        lose(tmp_path, kept=frozenset({"nothing", "some"}))
