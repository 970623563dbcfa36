"""Versions of a catalog by their activation times: of a manager, or listed where there is no catalog."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable

from compaction.catalogs.errors import ParticipantStateError
from compaction.catalogs.model.catalog import Catalog


class ListedVersions:
    """For a participant that keeps no catalog. Version 0 is active at first, as in every one. Safe for threads."""

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


class CatalogVersions:
    """Versions of a catalog that this process keeps: `active` of its manager."""

    def __init__(self, active: Callable[[int], Catalog]) -> None:
        self._active = active

    def add(self, version: int, activation: int) -> None:
        """Raises ParticipantStateError: the catalog says which versions there are."""
        raise ParticipantStateError(f"version {version} at {activation}: this participant follows a catalog")

    def active(self, timestamp: int) -> tuple[int, int]:
        """Version active at `timestamp`, and its activation time. Raises CatalogNotFoundError."""
        found = self._active(timestamp)
        return found.version, found.activation_time
