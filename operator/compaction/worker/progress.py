"""How far a job is, by bytes of the sources that are settled (committed or given up)."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Progress:
    """Counts settled bytes of a known total and tells a listener the percent. Thread safe.

    At most 99: that a job is done is only said by its receipt.
    """

    def __init__(self, total_bytes: int, tell: Callable[[int], None]) -> None:
        self._total = max(1, total_bytes)
        self._tell = tell
        self._done = 0.0
        self._lock = threading.Lock()

    @property
    def percent(self) -> int:
        """0 to 99."""
        return min(99, int(self._done * 100 / self._total))

    def add(self, done_bytes: float) -> None:
        """So many bytes more are settled."""
        with self._lock:
            self._done += done_bytes
            self._tell(self.percent)
