"""The low watermark: reads before it are refused, so history before it is not needed for reads
(docs/design/catalog-compaction.md#low-watermark).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.hybrid import MINIMUM, later

AVAILABILITY_MILLISECONDS: Final = 600_000
UPDATE_MILLISECONDS: Final = 300_000
SKEW_MILLISECONDS: Final = 500


class WatermarkStore(Protocol):
    """Where the watermark survives the process."""

    def load(self) -> int:
        """UNDEFINED when none was saved. Raises WatermarkFileError."""
        ...

    def save(self, timestamp: int) -> None:
        """Durable when it returns. Raises WatermarkFileError."""
        ...


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """Milliseconds. `availability`: how long the past stays readable; `skew`: how far clocks may differ."""

    availability: int = AVAILABILITY_MILLISECONDS
    update: int = UPDATE_MILLISECONDS
    skew: int = SKEW_MILLISECONDS

    def candidate(self, now: int) -> int:
        """The watermark that the clock allows; UNDEFINED when the clock is younger than that."""
        behind = self.availability + self.skew
        return later(now, -behind) if now - (behind << 16) >= MINIMUM else UNDEFINED


Listener = Callable[[int], None]


class LowWatermark:
    """Grows, never falls. Read-only transactions lock the timestamp they read at; the watermark waits for those that
    are older than where it goes. Safe for threads.
    """

    def __init__(self, store: WatermarkStore, settings: WatermarkSettings | None = None) -> None:
        self._store, self._settings = store, settings or WatermarkSettings()
        self._lock = threading.Lock()
        self._value = self._candidate = UNDEFINED
        self._moving = False
        self._readers: dict[object, int] = {}
        self._listeners: list[Listener] = []

    @property
    def value(self) -> int:
        """UNDEFINED until the first one."""
        with self._lock:
            return self._value

    @property
    def waiting(self) -> bool:
        """Whether a read-only transaction holds it."""
        with self._lock:
            return self._candidate > self._value

    def listen(self, listener: Listener) -> None:
        """Called with each new value after it was saved, in order, by the thread that moved it."""
        with self._lock:
            self._listeners.append(listener)

    def start(self, earliest: int) -> int:
        """Load what was saved. `earliest`: activation time of the earliest version that the catalog keeps: a watermark
        that fell behind it, while this process was down, is raised to it, since reads before it can no longer be
        answered. One that was never set stays undefined. Raises WatermarkFileError.
        """
        saved = self._store.load()
        raised = max(saved, earliest) if saved else UNDEFINED
        if raised > saved:
            self._store.save(raised)
        with self._lock:
            self._value = self._candidate = raised
            self._readers.clear()
        return raised

    def acquire(self, reader: object, timestamp: int) -> bool:
        """Lock `timestamp` for a reader. False when reads there are refused: the watermark has passed it, or is on its
        way past it, or else readers that come one after the other would hold it for ever.
        """
        with self._lock:
            if timestamp < self._candidate:
                return False
            self._readers[reader] = timestamp
            return True

    def release(self, reader: object) -> None:
        """The reader is done; a watermark that waited for it moves on. Raises WatermarkFileError."""
        with self._lock:
            self._readers.pop(reader, None)
        self._advance()

    def update(self, now: int) -> int:
        """Go where `now`, a hybrid timestamp, allows, as soon as no reader is in the way; the value after this call.
        Raises WatermarkFileError: the value is what it was.
        """
        return self.raise_to(self._settings.candidate(now))

    def raise_to(self, timestamp: int) -> int:
        """The same for a given timestamp; one that is not later than what is on its way changes nothing."""
        with self._lock:
            self._candidate = max(self._candidate, timestamp)
        return self._advance()

    def keep_updating(self, clock: Callable[[], int], stop: threading.Event) -> None:
        """Update at once, then every interval until `stop` is set; for a thread of its own. Raises
        WatermarkFileError.
        """
        while not stop.is_set():
            self.update(clock())
            stop.wait(self._settings.update / 1000)

    def _advance(self) -> int:
        """Save, then change, then announce; one thread at a time, which also goes on to what others asked for."""
        while True:
            with self._lock:
                target = self._candidate
                held = any(timestamp < target for timestamp in self._readers.values())
                if self._moving or held or target <= self._value:
                    return self._value
                self._moving = True
                listeners = tuple(self._listeners)
            try:
                self._store.save(target)
                with self._lock:
                    self._value = target
                for listener in listeners:
                    listener(target)
            finally:
                with self._lock:
                    self._moving = False
