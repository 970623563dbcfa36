"""What a worker reacts to: one queue, three kinds of events."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import StrEnum

from compaction.worker.held import HeldJobLease


class EndReason(StrEnum):
    """Why the worker can or should not go on."""

    STOP_REQUESTED = "StopRequested"
    LEASE_GONE = "LeaseGone"
    UNREACHABLE = "Unreachable"
    HEARTBEAT_LOST = "HeartbeatLost"
    ENGINE_LOST = "EngineLost"
    EXECUTORS_OUT_OF_MEMORY = "ExecutorsOutOfMemory"
    TERMINATED = "Terminated"


@dataclass(frozen=True, slots=True)
class JobAssigned:
    """A job was assigned to this worker and its lease is renewed already."""

    lease: HeldJobLease


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The worker has to end."""

    reason: EndReason


@dataclass(frozen=True, slots=True)
class Finished:
    """A job's thread is done (reported or not)."""

    lease: HeldJobLease


Inbox = queue.SimpleQueue[JobAssigned | JobEnded | Finished]
"""What the worker reacts to. A SimpleQueue, because a signal handler may put into it."""
