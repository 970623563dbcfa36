"""The owner of the simulated logs: Ra, which knows nothing of the compactor, and may be started at any moment.

It appends, takes a snapshot under which less is live, and compacts by its own rules (`support.segments.ra_owner`): now
and then, and with good odds soon after a process of ours has died at a system call on that log, before anybody has
recovered it. The one moment that it must not use lies between our last look at a name and the call that replaces it;
docs/segment-logs.md says so.
"""

from __future__ import annotations

import os
import random
import shutil
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.segments.format.segment_file import LogWriter
from compaction.segments.model import FileIdentity
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import find_snapshots, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from simulation.invariants import LogBook, readable
from support.segments.ra_owner import RaOwner

if TYPE_CHECKING:
    from simulation.world import SimulatedSystem

PRESENT = 1 / 3
"""In so many schedules the owner is not only there to be read."""
FRAGILE = 0.05
AFTER_DEATH = 0.9
"""Odds that the owner is started soon after a death on its log."""
ACTS = (0, 1, 2)
SOON = 2.0
AGAIN = 0.001


class Owner:
    """Of all logs of a world."""

    def __init__(self, world: SimulatedSystem) -> None:
        self._world = world
        self.present = world.faults.dice("owner/runs").random() < PRESENT
        self.fragile = FRAGILE if self.present else 0.0

    def plan(self) -> None:
        """Its ordinary work of this seed."""
        dice = self._world.faults.dice("owner")
        if not self.present:
            return
        for number in range(dice.choice(ACTS)):
            at, log = dice.uniform(2.0, 45.0), dice.choice(sorted(self._world.store.logs))
            self._later(f"owner/{number}", log, at)

    def died(self, moment: str, log: Path) -> None:
        """A process of ours has died at a system call on this log."""
        name = f"owner/after/{moment}"
        if self.present and log in self._world.store.logs and self._world.faults.dice(name).random() < AFTER_DEATH:
            self._later(name, log, self._world.faults.dice(f"{name}/when").uniform(0.0, SOON))

    def _later(self, name: str, log: Path, seconds: float) -> None:
        if self._world.faults.strikes(name):
            self._world.loop.call_later(seconds, self._act, name, log, context=Context())

    def _act(self, name: str, log: Path) -> None:
        world = self._world
        if not world.faults.active or world.violation is not None:
            return
        if world.disk.is_replacing(log):
            world.loop.call_later(AGAIN, self._act, name, log, context=Context())
            return
        dice, book, before = world.faults.dice(f"{name}/what"), world.store.logs[log], _files(log)
        owner = RaOwner(log, max_count=dice.choice((16, 64, 4096)))
        owner.start()
        what = [self._live_on(log, book, dice)] if dice.random() < 0.8 else []
        if dice.random() < 0.85:
            owner.major()
            what.append("major")
        else:
            owner.minor()
            what.append("minor")
        self._stamp(log, before)
        # What the owner deleted, or made a link of its own, is no old name of ours any more.
        changed = {name for name in book.names if before.get(name) != _identity(log / name)}
        book.deleted |= {name for name in changed if not (log / name).is_file() or (log / name).is_symlink()}
        world.log(None, f"the owner of {log.name}: {', '.join(what)}")
        world.store.look(None, book, "the owner's compaction")

    def _live_on(self, log: Path, book: LogBook, dice: random.Random) -> str:
        """Append, then a snapshot further up with less live at and below it; the book is told what must survive now."""
        state = open_log(log)
        newest = state.segment(state.newest)
        last, term = int(newest.idx[-1]), int(newest.term[-1])
        with LogWriter(log, max_count=newest.max_count, sync=False) as writer:
            for index in range(last + 1, last + 1 + dice.randrange(30)):
                writer.append(index, term, b"appended %d " % index * dice.randrange(1, 4))
        content, damaged = readable(log)
        old = find_snapshots(log).newest
        index = max(old.index if old else 0, min(last, max(content, default=0)) - dice.randrange(20))
        if old is None or index <= old.index:
            book.content, book.damaged = content, damaged
            return "appended"
        share = dice.choice((0.3, 0.6, 0.9))
        kept = {i for i in sorted(content.keys() | damaged) if i > index or dice.random() < share}
        shutil.rmtree(log / "snapshots")
        live = LiveSet.from_indexes(i for i in kept if i <= index)
        write_snapshot(log, index=index, term=max(term, old.term), live=live, sync=False)
        book.content = {i: entry for i, entry in content.items() if i in kept}
        book.damaged = damaged & kept
        return f"snapshot {index}"

    def _stamp(self, log: Path, before: dict[str, FileIdentity]) -> None:
        """What it wrote bears the time of the simulated file server."""
        for name, identity in _files(log).items():
            if before.get(name) != identity:
                self._world.disk.stamp(log / name)
        self._world.disk.stamp(log)


def _identity(path: Path) -> FileIdentity | None:
    return FileIdentity.of(path.lstat()) if os.path.lexists(path) else None


def _files(log: Path) -> dict[str, FileIdentity]:
    return {str(path.relative_to(log)): FileIdentity.of(path.lstat()) for path in sorted(log.rglob("*"))}
