"""One scan of a store as plain data, and its debt: how far behind the store is, and until when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compaction.core.planning.candidates import Candidate
from compaction.core.planning.planner import LeftOut

# One scan of a store, as plain data: what the sensor hands to planning.


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
        """Return whether both scans found the same in the store; when they ran, and their numbers, do not count."""
        before = {candidate.target: candidate for candidate in other.candidates}
        if len(self.candidates) != len(other.candidates) or _besides(self) != _besides(other):
            return False
        return all(
            (known := before.get(candidate.target)) is not None
            and replace(candidate, sensed_at=known.sensed_at) == known
            for candidate in self.candidates
        )

    def identity(self, target: str, source: str) -> str:
        """The identity of a source as of this scan, or "" when it was not scanned or is gone."""
        return self.identities.get((target, source), "")


def _besides(reading: ScanResult) -> ScanResult:
    """Everything but the candidates, and when it was made."""
    return replace(reading, number=0, started=0.0, ended=0.0, wall=0.0, candidates=())


# The debt of a store and its end: sums over candidates, measured speed, time of arrival.

RECENT_JOBS = 20
"""Speed is measured over so many of the newest receipts."""
LEAST_SECONDS = 0.5
"""Jobs shorter than this together say nothing about speed."""
LEAST_JOB_SECONDS = 0.1
"""What a job takes at least, however small: to be assigned, reported, and written down."""


@dataclass(frozen=True, slots=True)
class LevelDebt:
    """Debt of one level: so many `sources` would be gone or rewritten."""

    level: int
    bytes: int
    sources: int


@dataclass(frozen=True, slots=True)
class TenantDebt:
    """Debt of one tenant."""

    tenant: str
    bytes: int
    sources: int


@dataclass(frozen=True, slots=True)
class Debt:
    """Debt of a policy. `targets` counts those that have any; `oldest_at` is epoch seconds; `tenants` have the most
    first. `copy_bytes` are to be copied to work it off.
    """

    bytes: int = 0
    sources: int = 0
    targets: int = 0
    levels: tuple[LevelDebt, ...] = ()
    oldest_at: float | None = None
    copy_bytes: int = 0
    tenants: tuple[TenantDebt, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """A finished job: bytes it was estimated to copy, seconds from assignment to end (what it costs to hand a job out
    and to hear of its end included: for many small logs that is most of it), when it ended (epoch).
    """

    cost_bytes: int
    seconds: float
    finished_at: float


def debt_of(reading: ScanResult) -> Debt:
    """The debt that a scan found, by level and tenant."""
    return total_debt(reading.candidates, reading.beyond)


def total_debt(candidates: Iterable[Candidate], beyond: Iterable[UnofferedDebt] = ()) -> Debt:
    """The debt of all candidates together, and of what is due and not offered for its number."""
    levels: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    tenants: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    targets = copy = 0
    oldest: float | None = None
    for candidate in candidates:
        if candidate.is_empty:
            continue
        targets += 1
        copy += sum(group.copy_bytes for group in candidate.groups)
        _add(levels[candidate.level], tenants[candidate.tenant], candidate.debt_bytes, candidate.debt_sources)
        if candidate.oldest_debt_at is not None:
            oldest = candidate.oldest_debt_at if oldest is None else min(oldest, candidate.oldest_debt_at)
    # Due as well, and no candidates only because there are so many: without them the debt would seem smaller than it
    # is.
    for more in beyond:
        targets += more.targets
        copy += more.bytes
        _add(levels[more.level], tenants[more.tenant], more.bytes, more.sources)
    ranked = sorted(tenants.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))
    return Debt(
        bytes=sum(row[0] for row in levels.values()),
        sources=sum(row[1] for row in levels.values()),
        targets=targets,
        levels=tuple(LevelDebt(level, *row) for level, row in sorted(levels.items())),
        oldest_at=oldest,
        copy_bytes=copy,
        tenants=tuple(TenantDebt(tenant, *row) for tenant, row in ranked if tenant),
    )


def _add(level: list[int], tenant: list[int], size: int, sources: int) -> None:
    for into in (level, tenant):
        into[0] += size
        into[1] += sources


def bytes_per_second(work: Iterable[FinishedWork]) -> float | None:
    """Bytes copied per second of one job, over the newest jobs; None when nothing was measured yet."""
    newest = sorted(work, key=lambda w: w.finished_at)[-RECENT_JOBS:]
    seconds = sum(max(LEAST_JOB_SECONDS, item.seconds) for item in newest)
    copied = sum(item.cost_bytes for item in newest)
    return copied / seconds if seconds >= LEAST_SECONDS and copied > 0 else None


def eta_seconds(remaining_bytes: int, speed: float | None, *, parallel: int) -> float | None:
    """Seconds until `remaining_bytes` are copied by `parallel` jobs at once; 0 for none left, None when unknown."""
    if remaining_bytes <= 0:
        return 0.0
    if speed is None or parallel <= 0:
        return None
    return remaining_bytes / (speed * parallel)
