"""Who coordinates the policies of a namespace, as far as Leases tell. For people only: nothing is decided on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from compaction.api.names import COORDINATOR_LEASE
from compaction.api.text.formatting import format_age
from compaction.leases.record import Lease

SILENT_AFTER: Final = 4
"""So many lease durations without a renewal, by the writer's own clock, and nobody seems to be there."""
_DURATION: Final = 15


class Leadership(StrEnum):
    """What a coordinator's Lease says."""

    LEADS = "Leads"
    SILENT = "Silent"  # its holder has not renewed it for long
    RELEASED = "Released"  # the last holder ended in order
    ABSENT = "Absent"  # there is none: no operator has led yet
    UNKNOWN = "Unknown"  # Leases may not be read here


MISSING: Final = frozenset({Leadership.SILENT, Leadership.RELEASED, Leadership.ABSENT})
"""Nobody coordinates, as far as can be told."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """Who coordinates. `renewed` is when its holder says to have renewed the Lease last."""

    state: Leadership = Leadership.UNKNOWN
    holder: str = ""
    renewed: datetime | None = None

    @property
    def is_missing(self) -> bool:
        """True when nobody coordinates, as far as can be told: nothing happens until somebody does."""
        return self.state in MISSING

    def sentence(self, now: datetime) -> str:
        """What is the case when nobody coordinates; "" when somebody does, or nothing is known."""
        match self.state:
            case Leadership.SILENT:
                ago = format_age((now - self.renewed).total_seconds()) if self.renewed is not None else "long"
                return f"Nobody seems to coordinate: {self.holder} renewed its Lease {ago} ago, by its own clock."
            case Leadership.RELEASED:
                return "Nobody coordinates: the last operator has released its Lease."
            case Leadership.ABSENT:
                return "Nobody coordinates: no operator has led here yet."
        return ""


UNKNOWN: Final = Coordination()


def coordination(leases: Sequence[Lease] | None, namespace: str, now: datetime, *, complete: bool) -> Coordination:
    """Who coordinates the policies of a namespace: the coordinator of that namespace, else one of any other, because an
    operator may watch several.

    Args:
        leases: None when they may not be read; others than coordinators' do not matter.
        complete: whether these are the Leases of all namespaces.
    """
    found = [one for one in leases or () if one.name == COORDINATOR_LEASE]
    own = [_of(one, now) for one in found if one.namespace == namespace]
    if own:
        return own[0]
    others = [_of(one, now) for one in found]
    leading = next((one for one in others if one.state is Leadership.LEADS), None)
    if leading is not None:
        return leading
    if leases is None or not complete:
        return UNKNOWN
    return max(others, key=lambda one: (one.renewed is not None, one.renewed or now), default=_ABSENT)


_ABSENT: Final = Coordination(Leadership.ABSENT)


def _of(lease: Lease, now: datetime) -> Coordination:
    record = lease.record
    if record.holder is None:
        return Coordination(Leadership.RELEASED, renewed=record.renew_time)
    patience = timedelta(seconds=SILENT_AFTER * (record.duration_seconds or _DURATION))
    silent = record.renew_time is not None and now - record.renew_time > patience
    return Coordination(Leadership.SILENT if silent else Leadership.LEADS, record.holder, record.renew_time)
