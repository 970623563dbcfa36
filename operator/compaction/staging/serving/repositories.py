"""The repositories of a staging area as requests use them: opened once, as long as their records stay the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from compaction.staging.flows.area import Area
from compaction.staging.store import StagingStore

MOST_OPEN: Final = 64


class OpenRepositories:
    """Areas by the names of their repositories. May be used by many threads."""

    def __init__(self, store: StagingStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._areas: OrderedDict[str, Area] = OrderedDict()

    def area(self, name: str) -> Area:
        """One repository; its record is read each time, because it may have been deleted and created again.

        Raises as `StagingStore.area`.
        """
        found = self._store.repositories.get(name)
        with self._lock:
            area = self._areas.get(name)
            if area is not None and area.repository == found:
                self._areas.move_to_end(name)
                return area
        area = self._store.area(name)
        with self._lock:
            self._areas[name] = area
            while len(self._areas) > MOST_OPEN:
                self._areas.popitem(last=False)
        return area
