"""What a job is made of, in words that all kinds share: the parts that a plan put together and may put apart again."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.core.planning.candidates import LEAST_MERGED, Candidate


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups of a job and what it drops; `divisible` groups may be taken apart (`GroupCandidate.divisible`)."""

    base_version: str = ""
    groups: tuple[tuple[str, ...], ...] = ()
    obsolete: tuple[str, ...] = ()
    divisible: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source that the job names."""
        return (*(name for group in self.groups for name in group), *self.obsolete)

    @property
    def may_be_halved(self) -> bool:
        """Whether there are two halves to plan when the whole has failed."""
        several = len(self.groups) + bool(self.obsolete) > 1
        return several or (self.divisible and any(len(group) >= 2 * LEAST_MERGED for group in self.groups))

    def is_offered(self, candidate: Candidate) -> bool:
        """Whether a plan from this candidate could make the very job again: as long as any part of it is there; of
        divisible groups while all sources are, since the name is made of them.
        """
        if candidate.base_version != self.base_version:
            return False  # the names of all its jobs are different ones now
        if self.divisible:
            return candidate.sources.issuperset(*self.groups)
        groups = {group.sources for group in candidate.groups}
        names = {one.name for one in candidate.obsolete}
        return any(group in groups for group in self.groups) or not names.isdisjoint(self.obsolete)
