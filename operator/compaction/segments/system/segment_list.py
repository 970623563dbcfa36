"""A log's list of segments while others change the directory: the segment writer, compactions, sweeps.

No notification is needed. A reader that opens a file finds out whether it still is the one that was parsed, by name and
inode; if it is not, the list is read again, for this reader and all that follow. Who knows of a change says so by
`refresh`, which only saves the next reader the detour.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from compaction.segments.errors import LogChangedError
from compaction.segments.model import FileIdentity
from compaction.segments.system.changes import OnChange, changes_between
from compaction.segments.system.segments import SegmentView

_logger = logging.getLogger(__name__)
_PAUSE: Final = 0.05
_PATIENCE: Final = 600
"""Pauses of so many seconds, so half a minute together."""


class SegmentList:
    """Any number of threads. `view` is replaced, never changed, and never by an older reading."""

    def __init__(self, directory: Path, on_change: OnChange | None = None) -> None:
        self.view = SegmentView(directory, {}, ())
        self._on_change = on_change
        # Held from reading the directory until the view is replaced and reported: two refreshes at once could replace
        # a newer view by an older one. Reentrant: who is told of a change may read the log.
        self._refreshing = threading.RLock()

    def refresh(self) -> SegmentView:
        """The segments as they are now, for all readers from now on; errors as `SegmentView.refreshed`."""
        with self._refreshing:
            self._replace(_settled(self.view))
            return self.view

    def drop(self, obsolete: Mapping[str, FileIdentity]) -> SegmentView:
        """From now on no reader begins with these files, which are about to be deleted; errors as `refresh`."""
        with self._refreshing:
            self._replace(_settled(replace(self.view, dropped={**self.view.dropped, **obsolete})))
            return self.view

    def _replace(self, view: SegmentView) -> None:
        changes = changes_between(self.view, view)
        self.view = view
        if changes and self._on_change is not None:
            try:
                self._on_change(changes)
            except Exception:
                # The log's work must not depend on who listens.
                _logger.exception("%s: what is to be called at changes of segments failed", view.directory)


def _settled(view: SegmentView) -> SegmentView:
    """`view` as it is now. A long compaction of a large log may change names during every one of the readings that
    `refreshed` makes: it ends, and a flush that gave up would stop the log.
    """
    for _ in range(_PATIENCE):
        try:
            return view.refreshed()
        except LogChangedError:
            time.sleep(_PAUSE)
    return view.refreshed()
