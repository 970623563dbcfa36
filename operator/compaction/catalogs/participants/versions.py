"""Versions of a catalog by their activation times, for a participant that keeps no catalog of its own."""

from __future__ import annotations

import threading
from bisect import bisect_right

from compaction.exceptions import ParticipantStateError


class ListedVersions:
    """Version 0 is active at first, as in every catalog. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times, self._versions = [1], [0]

    def add(self, version: int, activation: int) -> None:
        """Raises ParticipantStateError when it is not later than the last one, in number and time."""
        with self._lock:
            if version <= self._versions[-1] or activation <= self._times[-1]:
                last = f"version {self._versions[-1]} at {self._times[-1]}"
                raise ParticipantStateError(f"version {version} at {activation} does not follow {last}")
            self._times.append(activation)
            self._versions.append(version)

    def active(self, timestamp: int) -> tuple[int, int]:
        """Version active at `timestamp`, and its activation time. Raises ParticipantStateError before the first."""
        with self._lock:
            index = bisect_right(self._times, timestamp) - 1
            if index < 0:
                raise ParticipantStateError(f"no version of the catalog is active at {timestamp}")
            return self._versions[index], self._times[index]
