"""A job's lease as the worker knows it: held, lost, or to be given up.

The worker never compares wall clocks with anyone. A renewal counts from the moment its request was *sent*, on the local
monotonic clock: the coordinator cannot have started its own measurement earlier
(docs/design/leases-and-tokens.md#expiry). The deadline is judged when it is asked for, so a process that was stopped
for an hour finds its lease lost before anything else had time to tell it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from compaction.worker.errors import JobStoppedError, LeaseLostError
from compaction.worker.ports import Assignment

Clock = Callable[[], float]


class HeldJobLease:
    """One held job lease; implements `ports.HeldLease`. Thread safe; nothing here blocks or talks to the network."""

    def __init__(self, assignment: Assignment, *, sent_at: float, clock: Clock) -> None:
        self.assignment = assignment
        self._clock = clock
        self._lock = threading.Lock()
        self._sent_at = sent_at
        self._lost: str | None = None
        self._stop: str | None = None
        self._progress = 0
        self._granted = assignment.bytes_per_second
        self._taken = False

    def __repr__(self) -> str:
        return f"JobLease({self.job_name} token {self.token})"

    @property
    def job_name(self) -> str:
        """Name of the job and of its Lease."""
        return self.assignment.job_name

    @property
    def token(self) -> int:
        """The fencing token of this attempt."""
        return self.assignment.token

    @property
    def progress(self) -> int:
        """Percent, as last set by the job."""
        return self._progress

    @property
    def bytes_per_second(self) -> int | None:
        """See `ports.HeldLease`."""
        return self._granted

    @property
    def taken(self) -> bool:
        """True when another worker is known to hold the lease now (or it is gone): no report is expected."""
        return self._taken

    @property
    def why_lost(self) -> str | None:
        """Why the lease counts as lost, or None while it is held."""
        with self._lock:
            if self._lost is None and self._clock() >= self._sent_at + self.assignment.lease_seconds:
                # Latched: an attempt that once had to assume the worst never goes on, even if a late renewal succeeds.
                self._lost = f"not renewed for {self.assignment.lease_seconds:g} s"
            return self._lost

    def renewed(self, *, sent_at: float, granted: int | None = None) -> None:
        """A renewal sent at `sent_at` (monotonic seconds) succeeded; it found so many bytes per second granted."""
        with self._lock:
            self._sent_at = max(self._sent_at, sent_at)
            # A job that began without a limit has no budget; a Lease that names no share (any more) changes nothing.
            if self._granted is not None and granted is not None:
                self._granted = granted

    def lose(self, why: str) -> None:
        """The lease is known to be lost, for good."""
        with self._lock:
            self._lost = self._lost or why
            self._taken = True

    def request_stop(self, why: str) -> None:
        """Ask the job to stop before its next commit; the lease itself stays held, so that it can still report."""
        with self._lock:
            self._stop = self._stop or why

    def should_stop(self) -> bool:
        """See `ports.HeldLease`."""
        return self._stop is not None or self.why_lost is not None

    def ensure_held(self) -> None:
        """See `ports.HeldLease`."""
        if (why := self.why_lost) is not None:
            raise LeaseLostError(f"job {self.job_name}, token {self.token}: lease lost: {why}")
        if self._stop is not None:
            raise JobStoppedError(f"job {self.job_name}, token {self.token}: stopped: {self._stop}")

    def set_progress(self, percent: int) -> None:
        """See `ports.HeldLease`. Never goes backwards."""
        self._progress = max(self._progress, min(100, max(0, percent)))
