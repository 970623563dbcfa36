"""Whether a process works on an open job, by the evidence on this machine.

A holder on this machine is judged by its process (pid and start time: a pid alone is used again); any other one by its
silence. Claims of a cluster have no holder: its coordinator judges them by their Leases, and local runs leave them
alone. A process that is taken over although it lives loses only its work: its commit is refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from compaction.blocks.index.claims import JobRecord
from compaction.blocks.index.holders import HolderRecord
from compaction.blocks.model import SECOND
from compaction.storage.processes import ThisProcess

STRAY_CLAIM: Final = 3600 * SECOND
"""Microseconds after which the claim of a job that gives no sign of life is taken for a leftover."""


class Sign(StrEnum):
    """What is known of the one who claimed a job. UNKNOWN: no local process did, so a cluster has it, or had it."""

    ALIVE = "Alive"
    DEAD = "Dead"
    SILENT = "Silent"
    UNKNOWN = "Unknown"

    @property
    def is_gone(self) -> bool:
        """No process works on the job, and a local run takes it over."""
        return self in (Sign.DEAD, Sign.SILENT)


def sign_of(holder: HolderRecord | None, here: ThisProcess | None) -> Sign:
    """What is known of a holder, seen from this process (None: from a place without processes of its own)."""
    if holder is None:
        return Sign.UNKNOWN
    one = holder.holder
    if here is not None and one.id == here.holder.id:
        return Sign.ALIVE  # however long the index could not be reached
    same_place = here is not None and bool(one.place) and one.place == here.holder.place
    if same_place and here is not None and here.has_ended(one.pid, one.started):
        return Sign.DEAD
    return Sign.SILENT if holder.is_silent else Sign.ALIVE


def is_parked(job: JobRecord, sign: Sign, *, now: int) -> bool:
    """No process seems to work on this open job; its blocks wait until it is released. `now`: microseconds."""
    return sign.is_gone or (sign is Sign.UNKNOWN and now - job.changed_at > STRAY_CLAIM)
