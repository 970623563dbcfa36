"""One schedule: lives of an owner and a compactor on one disk, each life ended by a power failure at one of its calls.

`simulate(seed)` is the same in every run. After each failure the system opens, holds every acknowledged entry and every
snapshot that was reported durable, and no entry that was never written; then the next life goes on from there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from compaction.segments.directory import lock
from compaction.segments.system import compactions
from simulation.logs.compactor import FOLLOWER, Compactor, Follower
from simulation.logs.owner import UIDS, Owner
from simulation.logs.steps import damage
from support.faults.power_loss import INODES, Disk, Recorder, all_kept, by_chance, nothing_kept
from support.segments.owned_logs import History

LIVES, ACTS = 3, 160
BETWEEN = 0.05
"""Odds that the other one acts between two system calls of one."""
SOON_AFTER = 0.6
"""Odds that a power failure comes about when a commit replaces a name, or a snapshot gets its own."""
FULL = 0.002
NEED_ROOM = frozenset({"create", "write", "write_at", "link", "symlink", "sync"})


@dataclass
class Schedule:
    """A seed's run. `trace`: what happened, in order."""

    seed: int
    root: Path
    trace: list[str]

    def run(self) -> None:
        """AssertionError or SegmentLogError: something was lost, or what is there cannot be read."""
        held = set(lock._held)
        try:
            self._run()
        finally:
            # A schedule that has found something ends in the middle: as a kernel does, with what it had open.
            for fd in lock._held - held:
                lock._release(fd)

    def _run(self) -> None:
        dice = Random(self.seed)
        numbers: list[int] = []
        here = self.root / "0"
        here.mkdir()
        histories: dict[str, History] = {}
        follower = Follower([])
        # Another thread that waits for a lock would wait for ever: both are steps of this one.
        with INODES.kept(), mock.patch.object(compactions, "_LOCK_SECONDS", 0.0):
            for life in range(1, LIVES + 1):
                self.trace.append(f"life {life}")
                recorder, disk = Recorder(), Disk(here)
                self._live(here, dice, histories, follower, recorder, numbers)
                following = self.root / str(life)
                following.mkdir()
                at = self._lose_power(disk, recorder, dice, following)
                histories, follower = _left(following / "system", histories, follower, recorder, at)
                shutil.rmtree(here)
                here = following
            self._end(here / "system", dice, histories, follower, numbers)

    def _end(
        self, system: Path, dice: Random, histories: dict[str, History], follower: Follower, numbers: list[int]
    ) -> None:
        """Peace: everything is flushed and compacted, and is there. Then one entry is damaged: it is named, nothing is
        half-done, and all others are there.
        """
        owner, compactor = (
            Owner(system, dice, histories, Recorder(), follower),
            Compactor(system, dice, (*UIDS, FOLLOWER), numbers),
        )
        owner.check_files()
        assert (errors := compactor.finish()) == [], errors
        owner.check_files()
        for _ in range(ACTS // 4):
            owner.act()
        owner.check_files()
        found = damage(system, dice, owner)
        if found is not None:
            self.trace.append(f"damage of {found.uid} at {found.index}")
            errors = compactor.finish()
            assert all(found.is_named_by(error) for error in errors), errors
            assert found.is_untouched(), f"{found}: the damaged segment was replaced"
            owner.check_all_but(found)
        owner.stepped.close()

    def _live(
        self,
        here: Path,
        dice: Random,
        histories: dict[str, History],
        follower: Follower,
        recorder: Recorder,
        numbers: list[int],
    ) -> None:
        with recorder:
            owner = Owner(here / "system", dice, histories, recorder, follower)
            compactor = Compactor(here / "system", dice, (*UIDS, FOLLOWER), numbers)
            for _ in range(dice.randint(ACTS // 2, ACTS)):
                first, second = (owner, compactor) if dice.random() < 0.75 else (compactor, owner)
                recorder.before = self._between(dice, first, second)
                self.trace.append(first.act())
            recorder.before = lambda name: None
            # What closing still does and promises is not on the disk that loses its power.
            promised = list(recorder.marks)
        owner.stepped.close()
        recorder.marks[:] = promised

    def _between(self, dice: Random, one: Owner | Compactor, other: Owner | Compactor) -> Callable[[str], None]:
        """Lets the other one, or another thread of the owner, act before some of the system calls of one, and no
        further. Now and then the disk is full for the compactor.
        """
        acting: Owner | Compactor | None = one

        def before(name: str) -> None:
            nonlocal acting
            if isinstance(acting, Compactor) and name in NEED_ROOM and dice.random() < FULL:
                acting.full = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if acting is None or dice.random() >= BETWEEN:
                return
            acting = None
            try:
                alone = isinstance(one, Owner) and dice.random() < 0.5
                self.trace.append(f"  {one.step_one() if isinstance(one, Owner) and alone else other.act()}")
            finally:
                acting = one

        return before

    def _lose_power(self, disk: Disk, recorder: Recorder, dice: Random, left: Path) -> int:
        """Before one of the calls; returns which."""
        at = dice.randint(dice.choice((0, len(recorder.calls) // 2)), len(recorder.calls))
        moments = [number for number, call in enumerate(recorder.calls) if _takes_effect(call)]
        if moments and dice.random() < SOON_AFTER:
            at = min(max(0, dice.choice(moments) + dice.randint(-1, 8)), len(recorder.calls))
        for call in recorder.calls[:at]:
            disk.replay(call)
        keep, name = dice.choice(((nothing_kept, "nothing"), (all_kept, "everything"), (by_chance(dice), "some")))
        torn = dice.random() < 0.5
        cut: Callable[[int], int] = (lambda size: dice.randrange(size + 1)) if torn else (lambda size: size)
        self.trace.append(f"power lost before call {at} of {len(recorder.calls)}, kept: {name}, torn: {torn}")
        disk.leave(left, keep, cut)
        return at


def _takes_effect(call: tuple[Any, ...]) -> bool:
    return call[0] in ("link", "symlink") or (call[0] == "rename" and call[1].name.endswith(".partial"))


def _left(
    directory: Path, histories: dict[str, History], follower: Follower, recorder: Recorder, at: int
) -> tuple[dict[str, History], Follower]:
    """What is promised from here on: what was found, which is checked against what was promised before."""
    promised: dict[tuple[str, str], int] = {}
    for what, uid, count in recorder.promised(at):
        promised[what, uid] = max(count, promised.get((what, uid), 0))
    if not directory.exists():
        assert promised == {}
        return {}, Follower([])
    found: dict[str, History] = {}
    owner = Owner(directory, Random(0), {}, Recorder(), follower)
    for uid, history in histories.items():
        log = owner.stepped.system.open_log(uid)
        kept = (promised.get(("written", uid), 0), promised.get(("snapshot", uid), 0))
        history.check(log, acknowledged=kept[0], snapshots=kept[1])
        found[uid] = History(log.read(log.indexes()))
        if log.row.snapshot_index is not None:
            found[uid].snapshots.append((log.row.snapshot_index, tuple(log.row.live or ())))
    log = owner.stepped.system.open_log(FOLLOWER)
    follower.check(log, promised.get(("installed", FOLLOWER), 0))
    left = follower.left(log)
    owner.stepped.close()
    return found, left
