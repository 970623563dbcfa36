"""Reasons: what becomes of a job for each, and what each means to a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.enums import JobReason

# The fate of a job whose attempt ends for a reason: the one table behind parking, splitting and replanning.
#
# A reason is one word for all kinds: a kind adds its own words with their fates, and gives no other fate to a word
# that is known already (`registry.register` refuses it).


class Fate(StrEnum):
    """The consequence that the end of an attempt has for its job."""

    RETRY = "Retry"  # tried again until its attempts are used up, then parked as a whole: its parts are not to blame
    SPLIT = "Split"  # the same, and then planned again in halves: one of its parts may be to blame
    PARK = "Park"  # parked at once: another attempt would end the same
    REPLAN = "Replan"  # parked at once, for the record: its work is planned again from what there is
    REFUSE = "Refuse"  # never tried, and raising maxAttempts changes nothing

    @property
    def is_final(self) -> bool:
        """Return whether one such end is enough to park the job."""
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


# The meaning of a reason to a person: a sentence, what the operator does next, and what a user can do.
#
# The reasons themselves are closed sets elsewhere (api/enums.py, core/planning/candidates.py, the wings); here each
# gets its words, and tests/core/explain checks that none is without. docs/resources.md is the dictionary, these are the
# sentences of `kubectl compaction why`.


@dataclass(frozen=True, slots=True)
class Meaning:
    """Texts may hold `{policy}`, `{job}`, `{catalog}` and `{n}` (the flag `-n NAMESPACE`), filled in by `Names`.

    `says`: the state; `next`: what happens without a user; `do`: what a user can do, empty when there is
    nothing to do but wait.
    """

    says: str
    next: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """The names that replace `{policy}`, `{job}`, `{catalog}` and `{n}`."""

    namespace: str
    policy: str = "POLICY"
    job: str = "JOB"
    catalog: str = "CATALOG"

    def fill(self, text: str) -> str:
        """The text with the names in it."""
        return text.format(policy=self.policy, job=self.job, catalog=self.catalog, n=f"-n {self.namespace}")


def meaning_of(words: Mapping[str, Meaning], reason: str) -> Meaning:
    """The meaning of a reason; a newer operator may have written one that is not known here."""
    known = words.get(reason)
    if known is not None:
        return known
    return Meaning(
        says=f"The reason {reason} is not known to this version of the command.",
        next="The message beside it is the operator's own.",
        do="Use the command of the same version as the operator.",
    )
