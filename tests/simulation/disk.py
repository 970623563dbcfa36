"""The log directories as simulated processes use them: real files, and a stop before every call that changes one.

Every mutating call of the store goes through `compaction.segments.directory.fs`. Here each gives way first, so
that any other process may act in between, the caller may die or be paused right there, and the disk may be slow or
full.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from compaction.segments.commit import fence
from compaction.segments.directory import fs, lock
from simulation.processes import EPOCH, PROCESS, Process, give_way
from simulation.schedule import Faults
from support.faults.sudden_death import MUTATING, DyingFilesystem, SuddenDeath

ODDS = {"death-before": 0.0025, "death-after": 0.0025, "stall": 0.003, "full": 0.001}

FREEZES = 0.012
"""Odds that a process is stopped just before it takes a lock: what it knew before may be wrong when it goes on."""
TICK = 1 / 256
"""Seconds between two stamps of the file system; what happens within one leaves the same stamp."""


class Observer(Protocol):
    """Who looks at every change of a log directory."""

    def before(self, process: Process, call: str, paths: list[Path]) -> None: ...

    def after(self, process: Process, call: str, paths: list[Path]) -> None: ...


@dataclass
class Disk:
    """`die` is told of a process that dies at a system call, `died` of the directory it was changing then.

    `fragile`: odds of a death before a source is replaced, between the commit point and the end of a commit.
    """

    faults: Faults
    observer: Observer
    die: Callable[[Process], None]
    log: Callable[[Process, str], None]
    clock: Callable[[], float]
    trouble: float = 1.0
    fragile: float = 0.0
    died: Callable[[str, Path], None] = lambda moment, log: None
    replacing: dict[Process, Path] = field(default_factory=dict)
    places: dict[Process, Path] = field(default_factory=dict)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The store's system calls go through this disk within the block."""
        original = {name: getattr(fs, name) for name in MUTATING}
        reader, opener, toucher = fence.read, lock._open, fs.touch
        for name in MUTATING:
            setattr(fs, name, self._wrapped(name, original[name]))
        setattr(fence, "read", self._looked(reader))  # noqa: B010 - a function of another signature, for a while
        setattr(lock, "_open", self._opened(opener))  # noqa: B010
        setattr(fs, "touch", self.stamp)  # noqa: B010
        try:
            yield
        finally:
            fence.read, lock._open, fs.touch = reader, opener, toucher
            for name, function in original.items():
                setattr(fs, name, function)

    def _looked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A look at a file is a moment too: what was true before it may not be true after it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            give_way(0.0)
            return function(*args, **kwargs)

        return call

    def _opened(self, function: Callable[[Path], int]) -> Callable[[Path], int]:
        """The lock's file is made when it is opened for the first time."""

        def call(path: Path) -> int:
            process = PROCESS.get()
            if process is not None and not process.dead:
                moment = f"{process.name}/lock/{process.number('lock')}"
                if self.faults.chance(f"{moment}:freeze", FREEZES * self.trouble):
                    self._freeze(process, self.faults.dice(moment).uniform(5.0, 40.0))
            give_way(0.0)
            new = not path.exists()
            fd = function(path)
            if new:
                self.stamp(path.parent)
            return fd

        return call

    def _freeze(self, process: Process, seconds: float) -> None:
        self.log(process, f"frozen for {seconds:.1f} s before it takes a lock")
        process.pause()
        process.loop.call_later(seconds, process.resume, context=Context())

    def is_replacing(self, directory: Path) -> bool:
        """Whether a living process stands between its last look at a name there and the call that replaces it."""
        return any(place == directory and not process.dead for process, place in self.replacing.items())

    def stamp(self, what: Path | int) -> float:
        """The file server's clock: simulated like all others, and in ticks."""
        now = int((EPOCH + self.clock()) / TICK) * TICK
        if isinstance(what, int):
            os.utime(what, (now, now))
        else:
            os.utime(what, (now, now), follow_symlinks=False)
        return now

    def _stamp_all(self, call: str, paths: list[Path], args: tuple[Any, ...], answer: Any) -> None:
        if call == "create":
            self.stamp(answer)
        elif call == "write":
            self.stamp(args[0])
        elif call == "symlink":
            self.stamp(paths[-1])
        if paths and call in ("create", "link", "symlink", "rename", "unlink"):
            self.stamp(paths[-1].parent)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            process = PROCESS.get()
            if process is None:
                return function(*args, **kwargs)
            if process.dead:
                raise SuddenDeath
            moment = f"{process.name}/disk/{process.number('disk')}"
            fault = self.faults.choose(moment, {kind: odds * self.trouble for kind, odds in ODDS.items()})
            if fault is None and name == "symlink":
                between = self.faults.chance(f"{moment}:death-in-commit", self.fragile)
                fault = "death-before" if between else None
            dice = self.faults.dice(f"{moment}/latency")
            paths = [argument for argument in args if isinstance(argument, Path)]
            if paths:
                self.places[process] = paths[-1].parent
            if name == "rename":
                self.replacing[process] = paths[-1].parent
            give_way(dice.uniform(5.0, 30.0) if fault == "stall" else dice.uniform(0.0, 0.002))
            self.replacing.pop(process, None)
            if fault == "full" and name in ("create", "write", "link", "symlink", "sync"):
                self.log(process, f"{name} {_said(paths)} -> no space")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if fault == "death-before":
                if name == "write":
                    DyingFilesystem._half(*args)
                self._die(process, moment, f"before {name} {_said(paths)}")
            self.observer.before(process, name, paths)
            answer = function(*args, **kwargs)
            self._stamp_all(name, paths, args, answer)
            if name not in ("write", "sync", "set_owner", "set_mode"):
                self.log(process, f"{name} {_said(paths)}")
            self.observer.after(process, name, paths)
            if fault == "death-after":
                self._die(process, moment, f"after {name} {_said(paths)}")
            return answer

        return call

    def _die(self, process: Process, moment: str, where: str) -> None:
        self.log(process, f"dies {where}")
        self.die(process)
        if process in self.places:
            self.died(moment, self.places[process])
        raise SuddenDeath


def _said(paths: list[Path]) -> str:
    return " ".join(path.name for path in paths)
