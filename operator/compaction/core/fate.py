"""What becomes of a job whose attempt ends for a reason: the one table behind parking, splitting and replanning.

A reason is one word for all kinds: a kind adds its own words with their fates, and gives no other fate to a word that
is known already (`registry.register` refuses it).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.enums import JobReason


class Fate(StrEnum):
    """What becomes of a job."""

    RETRY = "Retry"  # tried again until its attempts are used up, then parked as a whole: its parts are not to blame
    SPLIT = "Split"  # the same, and then planned again in halves: one of its parts may be to blame
    PARK = "Park"  # parked at once: another attempt would end the same
    REPLAN = "Replan"  # parked at once, for the record: its work is planned again from what there is
    REFUSE = "Refuse"  # never tried, and raising maxAttempts changes nothing

    @property
    def is_final(self) -> bool:
        """Whether one such end is enough to park the job."""
        return self in (Fate.PARK, Fate.REPLAN)


FATES: Final[Mapping[str, Fate]] = MappingProxyType(
    {
        JobReason.SOURCE_CORRUPT: Fate.PARK,
        JobReason.SOURCES_CHANGED: Fate.REPLAN,
        JobReason.INVALID_JOB: Fate.PARK,
        JobReason.TOO_MANY_ATTEMPTS: Fate.PARK,
        JobReason.STORE_UNREADABLE: Fate.RETRY,
        JobReason.OTHER_STORE: Fate.REFUSE,
        JobReason.SOURCES_GONE: Fate.REFUSE,
    }
)
"""Of the reasons that every kind has; every other one is SPLIT, as what a worker met may lie in one of the parts."""
