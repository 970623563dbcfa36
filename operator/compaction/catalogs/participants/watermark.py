"""The low watermark of a participant: kept in a file, and held back by the versions that transactions read."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import ParticipantStateError, WatermarkFileError
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MAXIMUM, MINIMUM, later

# Versions of a catalog by their activation times: of a manager, or listed where there is no catalog.


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


# Active read-write transactions: which versions of the catalog they hold
# (docs/design/catalog-compaction.md#active-transactions).


class ActiveVersions(Protocol):
    """The part of a catalog that the tracker asks, in memory and under its lock."""

    def active(self, timestamp: int) -> tuple[int, int]:
        """Version active at `timestamp`, and its activation time. Raises CatalogError when none was, or is kept."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionMinimum:
    """Hybrid timestamps. `required`: activation time of the lowest version that a transaction holds; the clock when
    there are none. `oldest`: begin time of the oldest transaction, UNDEFINED without one. `clock`: when this was so.
    """

    required: int
    oldest: int
    clock: int


@dataclass(slots=True)
class _Held:
    activation: int
    count: int


class ActiveTransactions:
    """Counts transactions by the version that was active when they began. Safe for threads; memory only: transactions
    end with their process.

    One lock makes "take a timestamp, count it" a single step: a minimum that falls between the two would be later than
    the transaction that is about to be counted.
    """

    def __init__(self, clock: Callable[[], int], versions: ActiveVersions) -> None:
        self._clock, self._versions = clock, versions
        self._lock = threading.Lock()
        self._last = UNDEFINED
        self._begun: dict[int, int] = {}
        self._held: dict[int, _Held] = {}

    def begin(self) -> int:
        """The begin time of a new transaction, which no other one has. Raises CatalogError when no version is active:
        nothing began.
        """
        with self._lock:
            timestamp = self._tick()
            version, activation = self._versions.active(timestamp)
            self._begun[timestamp] = version
            self._held.setdefault(version, _Held(activation, 0)).count += 1
            return timestamp

    def finish(self, timestamp: int) -> bool:
        """End the transaction that began then; False, and nothing changes, when there is none (a second end)."""
        with self._lock:
            version = self._begun.pop(timestamp, None)
            if version is None:
                return False
            held = self._held[version]
            held.count -= 1
            if not held.count:
                del self._held[version]
            return True

    def minimum(self) -> TransactionMinimum:
        """From when on transactions need the catalog. Later transactions begin after the `clock` of the answer.

        A transaction that begins after an answer without any needs an earlier time than that answer, never an earlier
        version: it sees the version active at the answered time, or a later one.
        """
        with self._lock:
            now = self._tick()
            if not self._held:
                return TransactionMinimum(now, UNDEFINED, now)
            # Begin times ascend, so the first that is left is the oldest; so do the versions that they see.
            return TransactionMinimum(self._held[min(self._held)].activation, next(iter(self._begun)), now)

    def finished_before(self, version: int) -> bool:
        """Return whether every transaction that began before `version` became active has ended: False while it is not
        active here, since another one could still begin below it. Raises CatalogError when no version is active.
        """
        with self._lock:
            active, _ = self._versions.active(self._tick())
            return active >= version and all(held >= version for held in self._held)

    def forget(self) -> None:
        """A restart: no transaction survives its process, and the clock is the machine's again."""
        with self._lock:
            self._last = UNDEFINED
            self._begun.clear()
            self._held.clear()

    def __len__(self) -> int:
        """Transactions under way."""
        with self._lock:
            return len(self._begun)

    def _tick(self) -> int:
        # A clock that stands or goes back must neither give two transactions one name nor let one begin before an
        # answer that promised that none would.
        self._last = max(self._clock(), self._last + 1)
        return self._last


# A low watermark in a file: replaced as a whole, durable when a save returns.

_LONGEST: Final = 20


class WatermarkFile:
    """Decimal digits and a line feed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int:
        """UNDEFINED when there is no file. Raises WatermarkFileError."""
        try:
            with self._path.open("rb") as file:
                found = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return UNDEFINED
        except OSError as error:
            raise WatermarkFileError(str(self._path), error.strerror or "cannot be read") from error
        digits = found.removesuffix(b"\n")
        if not digits.isdigit() or not 0 < int(digits) <= MAXIMUM:
            raise WatermarkFileError(str(self._path), "does not hold a hybrid timestamp")
        return int(digits)

    def save(self, timestamp: int) -> None:
        """Raises WatermarkFileError: the file is what it was."""
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with new.open("wb") as file:
                file.write(b"%d\n" % timestamp)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise WatermarkFileError(str(self._path), error.strerror or "cannot be written") from error


class WatermarkMemory:
    """For a participant whose data does not survive its process either."""

    def __init__(self, timestamp: int = UNDEFINED) -> None:
        self._timestamp = timestamp

    def load(self) -> int:
        """Return the timestamp that was saved last."""
        return self._timestamp

    def save(self, timestamp: int) -> None:
        """Until the process ends."""
        self._timestamp = timestamp


# The low watermark: reads before it are refused, so history before it is not needed for reads
# (docs/design/catalog-compaction.md#low-watermark).

AVAILABILITY_MILLISECONDS: Final = 600_000
UPDATE_MILLISECONDS: Final = 300_000
SKEW_MILLISECONDS: Final = 500


class WatermarkStore(Protocol):
    """The storage in which the watermark survives the process."""

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
        """Return whether a read-only transaction holds the watermark."""
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
