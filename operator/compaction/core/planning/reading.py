"""One scan of a store, as plain data: what the sensor hands to planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compaction.core.planning.candidates import Candidate
from compaction.core.planning.planner import LeftOut


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that exists and has not succeeded: its target, its level, and the sources that are in no other job."""

    target: str
    level: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """A target that could not be planned, or cleaned."""

    target: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class UnofferedDebt:
    """Sources of one level and tenant that are due, in so many targets, and in no candidate."""

    level: int
    tenant: str
    sources: int
    bytes: int
    targets: int = 1


@dataclass(frozen=True, slots=True)
class Conflict:
    """Sources of a tenant that belong together and are not compacted with one another.

    classes: how many there are, each of which is compacted by itself.
    message: what keeps them apart, for a person.
    alone: sources that would be compacted, were it not for their class.
    """

    tenant: str
    classes: int
    sources: int
    message: str
    alone: int = 0


@dataclass(frozen=True, slots=True)
class TargetMeasures:
    """The measures of one target, by name: what is behind there, and what compaction would leave."""

    target: str
    measures: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ScanResult:
    """One scan of the store. `started` and `ended` are monotonic seconds, `wall` is when it ended (epoch seconds).

    `identities` has an entry per source that was in quarantine when it began, keyed (target, source); "" for one that
    is gone, or was released. `problem` is set when the store as a whole could not be read; there are no candidates
    then. `targets` are those of everything found, readable or not; of stores that know no others, those of candidates.
    `measures` are the numbers that the kind adds (`core.kind.Measure`), `beyond` is debt that is in no candidate
    because a scan offers a bounded number; `conflicts` are sources that their classes keep apart, the most first.
    `behind` are a few targets that are furthest behind, the worst first, also those that are left out.
    `left_out` is what is in no candidate, with the store's own reasons. `outdated` are names of jobs that can never be
    done any more: some of their sources are gone, or in quarantine.
    """

    number: int
    generation: int
    started: float
    ended: float
    wall: float
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[TargetProblem, ...] = ()
    problem: TargetProblem | None = None
    targets: frozenset[str] = frozenset()
    identities: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    measures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    behind: tuple[TargetMeasures, ...] = ()
    beyond: tuple[UnofferedDebt, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    outdated: frozenset[str] = frozenset()

    def says_the_same(self, other: ScanResult) -> bool:
        """Whether both found the same in the store; when they ran, and their numbers, do not count."""
        before = {one.target: one for one in other.candidates}
        if len(self.candidates) != len(other.candidates) or _besides(self) != _besides(other):
            return False
        return all(
            (known := before.get(one.target)) is not None and replace(one, sensed_at=known.sensed_at) == known
            for one in self.candidates
        )

    def identity(self, target: str, source: str) -> str:
        """The identity of a source as of this scan, or "" when it was not scanned or is gone."""
        return self.identities.get((target, source), "")


def _besides(reading: ScanResult) -> ScanResult:
    """Everything but the candidates, and when it was made."""
    return replace(reading, number=0, started=0.0, ended=0.0, wall=0.0, candidates=())
