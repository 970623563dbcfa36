"""The contract between a catalog and the log that keeps its updates (docs/design/catalogs.md#update-log)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from compaction.catalogs.model.descriptors import later
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An update or a snapshot as the log keeps it.

    `timestamp`: hybrid, of an update's writing: it is active `delay` later; a snapshot has its activation time here.
    `revision`: of the log when this was written, ascending along a watch. Where a watch lists what it missed, the
    revision of the listing: then several events have the same. `writer`: name of the process that wrote it.
    """

    event: Event
    timestamp: int
    revision: int
    writer: str = ""

    @property
    def activation_time(self) -> int:
        """From when on the version is active, a hybrid timestamp."""
        return self.timestamp if isinstance(self.event, Snapshot) else later(self.timestamp, self.event.delay)


@dataclass(frozen=True, slots=True)
class Recovered:
    """All that a log holds: a snapshot or version 1 first, then every version up to the last without a gap.

    `revision`: a watch goes on after this one. `version` is 0 for an empty log. `token`: the largest fencing token that
    the log has seen, 0 for none.
    """

    events: tuple[LogEvent, ...]
    version: int
    revision: int
    token: int = 0


@dataclass(frozen=True, slots=True)
class LogTime:
    """Between which milliseconds since the epoch the clock of the log's own server stands now. `source` names it."""

    earliest: int
    latest: int
    source: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """The rule by which an append takes another timestamp: `now` gives it once `seconds` have passed without an answer.
    A version with an older one would be active at a time that others hold for complete (`wait_complete`).
    """

    seconds: float
    now: Callable[[], int]


class SnapshotOutcome(StrEnum):
    """The result of saving a snapshot."""

    SAVED = "Saved"
    NOT_NEWER = "NotNewer"
    FENCED = "Fenced"
    """The log has seen a larger fencing token."""


class Watch(Protocol):
    """Delivers events in order, each once, until it is closed; reconnects by itself."""

    def close(self) -> None:
        """No event is delivered after this returns."""
        ...


class UpdateLog(Protocol):
    """The versions of one catalog. Each call raises CatalogLogError when the log does not answer."""

    @property
    def writer(self) -> str:
        """Name of this process, as the log keeps it beside what is written through this object."""
        ...

    def time(self) -> LogTime | None:
        """Return the time by the log's own clock, None when it has none."""
        ...

    def recover(self) -> Recovered:
        """Everything kept. Raises CorruptCatalogLogError for a gap or a value that does not decode."""
        ...

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        """Write `update` as the version after the last one; False, and nothing is written, when another version is
        last. The stored activation time is strictly later than that of the version before: a timestamp that is too
        early is moved. Raises CatalogLogLimitError, and writes nothing, for a version larger than the log takes.
        `renewal`: for a log that does not answer at once.
        """
        ...

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        """Replace the updates up to and including the snapshot's version by it, unless the log has a later snapshot or
        has seen a larger token. What lies below the snapshot is deleted, also what an earlier call left.
        """
        ...

    def sweep(self) -> None:
        """Delete what lies below the snapshot, which no reader sees: it takes no space, also where the log has none
        left for anything else.
        """
        ...

    def claim(self, least: int, *, begins: bool = True) -> int:
        """Take a fencing token: `least`, or one more than the largest that the log has seen when that is larger. Each
        call has another one, and a snapshot with a smaller one is refused from then on. Without
        `begins` a log that is not there is not made: CatalogLogRewoundError.
        """
        ...

    def watch(self, after: int, deliver: Callable[[LogEvent], None], failed: Callable[[Exception], None]) -> Watch:
        """Deliver every event with a revision above `after`, from a thread of the log's own. What the log cut meanwhile
        arrives as the snapshot that replaced it. `failed` gets the error that no reconnection repairs.
        """
        ...

    def close(self) -> None:
        """Free connections; watches end."""
        ...
