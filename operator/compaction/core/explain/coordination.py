"""The coordinator of the policies of a namespace, read from Leases. Shown to users; no decision depends on it."""

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
"""A Lease without a renewal for so many of its durations, by the writer's clock, counts as silent."""
_DURATION: Final = 15


class Leadership(StrEnum):
    """What a coordinator's Lease says."""

    LEADS = "Leads"
    SILENT = "Silent"  # its holder has not renewed it for long
    RELEASED = "Released"  # the last holder ended in order
    ABSENT = "Absent"  # there is none: no operator has led yet
    UNKNOWN = "Unknown"  # Leases may not be read here


MISSING: Final = frozenset({Leadership.SILENT, Leadership.RELEASED, Leadership.ABSENT})
"""The states in which no operator coordinates."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The coordinator. `renewed`: the holder's own time of the last renewal."""

    state: Leadership = Leadership.UNKNOWN
    holder: str = ""
    renewed: datetime | None = None

    @property
    def is_missing(self) -> bool:
        """True when no operator coordinates: nothing happens until one does."""
        return self.state in MISSING

    def sentence(self, now: datetime) -> str:
        """The reason when no operator coordinates; "" when one does, or Leases cannot be read."""
        match self.state:
            case Leadership.SILENT:
                ago = format_age((now - self.renewed).total_seconds()) if self.renewed is not None else "long"
                return f"No operator coordinates: {self.holder} last renewed its Lease {ago} ago, by its own clock."
            case Leadership.RELEASED:
                return "No operator coordinates: the last one released its Lease."
            case Leadership.ABSENT:
                return "No operator coordinates: none has held the Lease yet."
        return ""


UNKNOWN: Final = Coordination()


def coordination(leases: Sequence[Lease] | None, namespace: str, now: datetime, *, complete: bool) -> Coordination:
    """The coordinator of the policies of a namespace: the coordinator of that namespace, else one of any other, because
    an operator may watch several.

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
