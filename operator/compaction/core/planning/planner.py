"""From candidates that are due to jobs: deterministic, within limits, with a reason for each that is left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from compaction.api.names import name_stem
from compaction.core.collecting import collector_paused
from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftOutReason, ObsoleteSource

# Candidates that are due now: thresholds, cooldown, suspension.
#
# A candidate that is not due gets exactly one reason, the first that holds in the order of the checks.


def _always(candidate: Candidate) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PlanTrigger:
    """The conditions under which a target is due: its debt is enough (`is_due`, the kind's own rule) and the cooldown
    is over (seconds).
    """

    is_due: Callable[[Candidate], bool] = _always
    cooldown: float = 0.0
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """The recent past of a target: when its last finished job ended, on both clocks (epoch, monotonic)."""

    finished_at: float | None = None
    finished_monotonic: float | None = None
    has_unfinished_job: bool = False


_NO_HISTORY = TargetHistory()


def reason_not_due(
    candidate: Candidate, trigger: PlanTrigger, history: TargetHistory, *, now: float
) -> LeftOutReason | None:
    """Return the reason for which `candidate` gets no job now, or None when it is due. `now` is epoch seconds, like
    `finished_at`.
    """
    if candidate.is_empty:
        return LeftOutReason.NOTHING_TO_GAIN
    if not trigger.is_due(candidate):
        return LeftOutReason.BELOW_THRESHOLD
    if trigger.suspended:
        return LeftOutReason.SUSPENDED
    if history.has_unfinished_job:
        return LeftOutReason.JOB_UNFINISHED
    if history.finished_monotonic is not None and candidate.sensed_at <= history.finished_monotonic:
        # Read before the last job's end: the sources it names may be replaced already.
        return LeftOutReason.SCAN_OUTDATED
    if candidate.compacted_at is not None:
        history = replace(history, finished_at=candidate.compacted_at)
    if cooldown_left(trigger, history, now=now) > 0:
        return LeftOutReason.COOLDOWN
    return None


def cooldown_left(trigger: PlanTrigger, history: TargetHistory, *, now: float) -> float:
    """Seconds until the cooldown of a target is over. An end that is still to come was written by a clock that was
    ahead: it begins no cooldown.
    """
    if trigger.cooldown <= 0 or history.finished_at is None or history.finished_at > now:
        return 0.0
    return max(0.0, history.finished_at + trigger.cooldown - now)


def split_due(
    candidates: tuple[Candidate, ...], trigger: PlanTrigger, history: Mapping[str, TargetHistory], *, now: float
) -> tuple[list[Candidate], list[tuple[Candidate, LeftOutReason]]]:
    """The due candidates and the others with their reason, both in the given order."""
    due: list[Candidate] = []
    others: list[tuple[Candidate, LeftOutReason]] = []
    for candidate in candidates:
        reason = reason_not_due(candidate, trigger, history.get(candidate.target, _NO_HISTORY), now=now)
        if reason is None:
            due.append(candidate)
        else:
            others.append((candidate, reason))
    return due, others


# From candidates to jobs: deterministic, within limits, with a reason for everything left out.
#
# Invariants (tests/core/planning):
#
# * The same candidates give the same jobs with the same names, in whatever order they come.
# * Every group and every obsolete source of a candidate is in exactly one planned job, or the candidate is left out
#   with a reason.
# * A job holds parts of one target only, at most `max_bytes_per_job` of them to copy (a single larger group is a job
#   of its own).
# * A Faulty job is never planned again as it was: with several groups it is split in halves, so that what ails one of
#   them does not hold back the others (docs/design/scheduling.md#faulty-jobs); a single group stays parked until its
#   sources change or the limit is raised. A group whose sources may be rewritten apart is halved in turn, as long as
#   each half has two of them, and what failed by itself is not put together again with what else is left of it.
# * What a store leaves out itself stands beside what the planner leaves out.

PLANNED_GROUPS_PER_JOB = 256
PLANNED_OBSOLETE_PER_JOB = 1024
"""Keep one job's object far below etcd's 1.5 MiB, whatever the size of a target."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """`spec.limits`, the part that planning uses. Bytes to copy per job; jobs that may exist unfinished or Faulty."""

    max_bytes_per_job: int
    max_jobs_queued: int


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to be created. `cost_bytes` are copied, `gain_bytes` freed."""

    name: str
    target: str
    tenant: str
    level: int
    base_version: str
    groups: tuple[GroupCandidate, ...]
    obsolete: tuple[ObsoleteSource, ...]
    cost_bytes: int
    gain_bytes: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many candidates (or parts of them) have no job for this reason; `example` names the first.

    Of sources that wait for more: their `bytes`, when the first of them are `due` (epoch seconds), and how many are
    `missing` for these to be due at once.
    """

    reason: str
    count: int
    example: str
    bytes: int = 0
    due: float | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A set of jobs. `hash` is of the names, hence of sources and groups of every job, and of `parameters`, what all
    jobs receive besides. `evict` makes room for `jobs`.
    """

    jobs: tuple[PlannedJob, ...]
    left_out: tuple[LeftOut, ...]
    evict: tuple[str, ...]
    cost_bytes: int
    gain_bytes: int
    parameters: str = ""

    @property
    def hash(self) -> str:
        """16 hex digits; empty for a plan without jobs."""
        if not self.jobs:
            return ""
        text = "\n".join((self.parameters, *sorted(job.name for job in self.jobs)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JobInventory:
    """The jobs that exist: all names, those parked as Faulty (and which of them may be split), and the size of the
    queue.

    `queue_size` counts every job that is not Succeeded and not a mere record of the past; `evictable` are Faulty jobs
    without a live lease, the one to go first in front. `recently_evicted` are names that must not come back at once.
    `parked` has the sources of Faulty jobs by target, where sources of a group may be rewritten apart.
    """

    names: frozenset[str] = frozenset()
    faulty: frozenset[str] = frozenset()
    splittable: frozenset[str] = frozenset()
    evictable: tuple[str, ...] = ()
    queue_size: int = 0
    recently_evicted: frozenset[str] = frozenset()
    parked: Mapping[str, Sequence[tuple[str, ...]]] = field(default_factory=lambda: MappingProxyType({}))


_NOTHING: Final = LeftOut("", 0, "")


class _Tally:
    """Counts reasons and remembers the first example of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._rows: dict[str, LeftOut] = {}

    def add(self, reason: str, example: str) -> None:
        self._counts[reason] += 1
        self._examples.setdefault(reason, example)

    def add_part(self, reason: str, path: str, name: str) -> None:
        """As `add`; the example is put together only when it is the first: there may be a million parts."""
        if reason in self._examples:
            self._counts[reason] += 1
        else:
            self.add(reason, str(PurePosixPath(path) / name))

    def add_row(self, row: LeftOut) -> None:
        self._counts[row.reason] += row.count
        self._examples.setdefault(row.reason, row.example)
        self._rows.setdefault(row.reason, row)

    def rows(self) -> tuple[LeftOut, ...]:
        return tuple(
            replace(self._rows.get(reason, _NOTHING), reason=reason, count=count, example=self._examples[reason])
            for reason, count in sorted(self._counts.items())
        )


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one policy. `owner_uid` keeps the names of a policy and of its later namesake apart; `parameters` are
    the parameters of its jobs, in a stable text.
    """

    policy_name: str
    owner_uid: str
    limits: PlanLimits
    trigger: PlanTrigger
    parameters: str = ""

    def plan(
        self,
        candidates: Iterable[Candidate],
        history: Mapping[str, TargetHistory],
        inventory: JobInventory,
        *,
        now: float,
        left_out: Iterable[LeftOut] = (),
    ) -> Plan:
        """One plan over all candidates. `now` is epoch seconds (cooldown); `left_out` is no candidate to begin with."""
        with collector_paused():
            return self._plan(candidates, history, inventory, now, left_out)

    def _plan(
        self,
        candidates: Iterable[Candidate],
        history: Mapping[str, TargetHistory],
        inventory: JobInventory,
        now: float,
        left_out: Iterable[LeftOut],
    ) -> Plan:
        ordered = tuple(sorted(candidates, key=lambda c: (c.level, c.turn, c.target)))
        tally = _Tally()
        for row in left_out:
            tally.add_row(row)
        for candidate in ordered:
            for part in candidate.left_alone:
                tally.add_part(part.reason, candidate.target, part.name)
        due, others = split_due(ordered, self.trigger, history, now=now)
        for candidate, reason in others:
            tally.add(reason, candidate.target)
        wanted: list[PlannedJob] = []
        for candidate in due:
            wanted += self._jobs_of(candidate, inventory, tally)
        jobs, evict = self._within_queue(wanted, inventory, tally)
        return Plan(
            jobs=jobs,
            left_out=tally.rows(),
            evict=evict,
            cost_bytes=sum(job.cost_bytes for job in jobs),
            gain_bytes=sum(job.gain_bytes for job in jobs),
            parameters=self.parameters,
        )

    def _jobs_of(self, candidate: Candidate, inventory: JobInventory, tally: _Tally) -> Iterator[PlannedJob]:
        parked = inventory.parked.get(candidate.target, ())
        for job in self._apart(candidate, parked) if parked else self._cut(candidate):
            for piece in self._split_faulty(candidate, job, inventory):
                if piece.name in inventory.faulty:
                    tally.add(LeftOutReason.FAULTY_JOB, piece.name)
                elif piece.name in inventory.names:
                    # The name contains everything that a job is: the reading is from before the commit of that job.
                    tally.add(LeftOutReason.JOB_FINISHED, piece.name)
                elif piece.name in inventory.recently_evicted:
                    tally.add(LeftOutReason.RECENTLY_EVICTED, piece.name)
                else:
                    yield piece

    def _apart(self, candidate: Candidate, parked: Sequence[tuple[str, ...]]) -> Iterator[PlannedJob]:
        """Plan each part as a job of its own: what failed by itself stays apart, else what is left of a batch would be
        tried as a whole again and again.
        """
        for group in candidate.groups:
            for part in group.apart(parked):
                yield self._job(candidate, (part,), ())

    def _cut(self, candidate: Candidate) -> Iterator[PlannedJob]:
        """The candidate's parts in order, cut where the next group would exceed the limit of a job."""
        groups: list[GroupCandidate] = []
        obsolete = candidate.obsolete
        size = 0
        for group in candidate.groups:
            full = size + group.copy_bytes > self.limits.max_bytes_per_job or len(groups) >= PLANNED_GROUPS_PER_JOB
            # `groups`: a single group above the limit is a job of its own, or it would never be compacted.
            if groups and full:
                yield self._job(candidate, tuple(groups), obsolete[:PLANNED_OBSOLETE_PER_JOB])
                groups, obsolete, size = [], obsolete[PLANNED_OBSOLETE_PER_JOB:], 0
            groups.append(group)
            size += group.copy_bytes
        while groups or obsolete:
            yield self._job(candidate, tuple(groups), obsolete[:PLANNED_OBSOLETE_PER_JOB])
            groups, obsolete = [], obsolete[PLANNED_OBSOLETE_PER_JOB:]

    def _split_faulty(self, candidate: Candidate, job: PlannedJob, inventory: JobInventory) -> Iterator[PlannedJob]:
        if job.name not in inventory.faulty:
            yield job
            return
        parts = len(job.groups) + bool(job.obsolete)
        halves = job.groups[0].halves() if parts == 1 and job.groups else None
        # Not splittable is, for instance, a log that is unreadable as a whole: every half would fail for the same
        # reason.
        if (parts < 2 and halves is None) or job.name not in inventory.splittable:
            yield job
            return
        if halves is not None:
            for item in halves:
                yield from self._split_faulty(candidate, self._job(candidate, (item,), ()), inventory)
            return
        half = len(job.groups) // 2
        # Dropping obsolete sources needs no rewrite: it goes with the smaller half, or alone.
        yield from self._split_faulty(candidate, self._job(candidate, job.groups[:half], job.obsolete), inventory)
        yield from self._split_faulty(candidate, self._job(candidate, job.groups[half:], ()), inventory)

    def _job(
        self, candidate: Candidate, groups: tuple[GroupCandidate, ...], obsolete: tuple[ObsoleteSource, ...]
    ) -> PlannedJob:
        return PlannedJob(
            name=self._name(candidate, groups, obsolete),
            target=candidate.target,
            tenant=candidate.tenant,
            level=candidate.level,
            base_version=candidate.base_version,
            groups=groups,
            obsolete=obsolete,
            cost_bytes=sum([group.copy_bytes for group in groups]),
            gain_bytes=sum([group.gain_bytes for group in groups]) + sum([item.gain_bytes for item in obsolete]),
        )

    def _name(
        self, candidate: Candidate, groups: tuple[GroupCandidate, ...], obsolete: tuple[ObsoleteSource, ...]
    ) -> str:
        said = [self.owner_uid, candidate.target, candidate.base_version]
        for group in groups:
            said.append("group")
            if group.identities == group.sources:  # names that stand for one content for ever
                said += group.sources
            else:
                for pair in zip(group.sources, group.identities, strict=True):
                    said += pair
        for item in obsolete:
            said += ("obsolete", item.name, item.identity)
        said.append("")
        return f"{name_stem(self.policy_name)}-{hashlib.sha256(chr(0).join(said).encode()).hexdigest()[:10]}"

    def _within_queue(
        self, wanted: list[PlannedJob], inventory: JobInventory, tally: _Tally
    ) -> tuple[tuple[PlannedJob, ...], tuple[str, ...]]:
        """As many jobs as the queue takes; a queue AT its limit evicts Faulty ones (docs/design/scheduling.md)."""
        room = max(0, self.limits.max_jobs_queued - inventory.queue_size)
        over = max(0, inventory.queue_size - self.limits.max_jobs_queued)
        # Nothing is evicted while nothing else wants the place: parked jobs are worth reading. What is over the limit
        # (it was lowered) goes with the first new work.
        short = max(0, len(wanted) - room) + over if wanted else 0
        evict = inventory.evictable[:short]
        room += max(0, len(evict) - over)
        for job in wanted[room:]:
            tally.add(LeftOutReason.QUEUE_FULL, job.name)
        return tuple(wanted[:room]), evict
