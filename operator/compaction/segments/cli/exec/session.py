"""What the operations of a history share: the system of logs, and its logs, each opened once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from compaction.segments.errors import LogClosedError, UnknownLogError
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits


@dataclass(slots=True)
class Session:
    """A history that runs. Closes the system when the history ends, unless an operation has."""

    directory: Path
    limits: SystemLimits
    lock_timeout: float
    _system: LogSystem | None = None
    _transfers: int = 0
    _logs: dict[str, Log] = field(default_factory=dict)

    def start(self) -> None:
        """Open the system, as its owner. Errors as of `LogSystem`."""
        self._logs = {}
        self._system = LogSystem(self.directory, limits=self.limits, lock_timeout=self.lock_timeout)

    def next_transfer(self) -> int:
        """A number for an installation, larger than all before, of earlier processes too."""
        self._transfers = max(self._transfers + 1, time.time_ns())
        return self._transfers

    @property
    def system(self) -> LogSystem:
        """LogClosedError: an operation has closed it."""
        if self._system is None:
            raise LogClosedError(str(self.directory), "the system of logs is closed: reopen it")
        return self._system

    def open(self, name: str, *, live: Callable[[], LiveSet] | None = None) -> Log:
        """A log that is there, or a new one. `live`: what is live, where its snapshot does not say it."""
        rebuild = None if live is None else lambda _snapshot: live()
        log = self._logs[name] = self.system.open_log(name, rebuild_live=rebuild)
        return log

    def log(self, name: str) -> Log:
        """A log that is there. UnknownLogError: there is none; errors as of `LogSystem.open_log`."""
        system = self.system
        if name not in self._logs:
            if name not in system.uids:
                raise UnknownLogError(str(self.directory), name)
            self.open(name)
        return self._logs[name]

    def close(self) -> None:
        """Close the system; again is harmless."""
        system, self._system = self._system, None
        self._logs = {}
        if system is not None:
            system.close()
