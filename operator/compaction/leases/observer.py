"""When is a lease expired? Decided from what this process saw change, by its own monotonic clock, and nothing else.

client-go's rule (docs/design/leases-and-tokens.md#expiry): remember the record and the local time at which it was last
seen to *change*; the lease is expired once its own duration has passed since then without a change. Remote timestamps
are never compared with a local clock, so clock skew does not matter, only clock rate. A process that has just started
measures afresh: it may find a dead lease later than necessary, never a live one expired.

The clock must not count time the machine was suspended, or everything would look expired on waking, before the first
fresh observation: `time.monotonic` on Linux is right.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from compaction.leases.record import LeaseRecord

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """The last record seen for a key and the local time (seconds, own clock) at which it was first seen like this."""

    record: LeaseRecord
    changed_at: float


class LeaseObserver(Generic[Key]):
    """Keeps one observation per key. Not thread safe: one owner, one loop."""

    def __init__(self, *, default_duration: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._default_duration = default_duration
        self._seen: dict[Key, LeaseObservation] = {}

    def observe(self, key: Key, record: LeaseRecord) -> bool:
        """Note a record read just now; True when it differs from the last one, which restarts the measure."""
        previous = self._seen.get(key)
        if previous is not None and previous.record == record:
            return False
        self._seen[key] = LeaseObservation(record, self._clock())
        return True

    def forget(self, key: Key) -> None:
        """The lease is gone, or no longer of interest."""
        self._seen.pop(key, None)

    def last(self, key: Key) -> LeaseObservation | None:
        """What was observed for the key."""
        return self._seen.get(key)

    def expires_at(self, key: Key) -> float | None:
        """Local time from which the lease counts as expired; None when it was never observed.

        A lease without a holder is free from the moment this was seen. The duration is the one its holder wrote; the
        default applies only to a record without one.
        """
        seen = self._seen.get(key)
        if seen is None:
            return None
        if seen.record.holder is None:
            return seen.changed_at
        duration = seen.record.duration_seconds
        return seen.changed_at + (self._default_duration if duration is None else duration)

    def expired(self, key: Key) -> bool:
        """True from the exact instant `expires_at`. A lease never observed is not expired: nothing was measured."""
        expires_at = self.expires_at(key)
        return expires_at is not None and self._clock() >= expires_at

    def remaining(self, key: Key) -> float | None:
        """Seconds until expiry, never negative; None when never observed. The natural delay for the next read."""
        expires_at = self.expires_at(key)
        return None if expires_at is None else max(0.0, expires_at - self._clock())

    def __contains__(self, key: Key) -> bool:
        return key in self._seen

    def keys(self) -> tuple[Key, ...]:
        """Every key with an observation."""
        return tuple(self._seen)
