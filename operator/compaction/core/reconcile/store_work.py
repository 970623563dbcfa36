"""Scans and sweeps of a store, and which of two policies over one store compacts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import JobState
from compaction.api.policy.policy import CompactionPolicy, QuarantinedSource
from compaction.api.policy.store import StoreSpec
from compaction.core.planning.debt import HeldJob
from compaction.core.planning.planner import PlannedJob
from compaction.core.reconcile.actions import CreateJob, RunStoreTask, StoreTask
from compaction.core.reconcile.jobs.job import state_of, token_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Memory, PolicySnapshot, frozen
from compaction.core.reconcile.planning import approval
from compaction.core.reconcile.planning.approval import NO_RELEASE, Release
from compaction.core.reconcile.timing import is_of_now
from compaction.registry import kind_of, kind_of_job

# Times of scans and sweeps of the store, and the one of the two that starts now.

SOON: Final = 0.5
"""Seconds between a scan and the next one that does not wait for the interval."""
SWEEP_PAUSE: Final = 1.0
"""Least seconds between two sweeps."""
LONGEST_PAUSE: Final = 600.0
"""Seconds between two scans of a policy that has no worker and cannot be given one, unless its interval is longer."""


def start(
    snapshot: PolicySnapshot,
    policy: CompactionPolicy,
    memory: Memory,
    *,
    steps: Sequence[JobStep],
    quarantined: Iterable[QuarantinedSource],
    created: Iterable[CreateJob] = (),
    release: Release = NO_RELEASE,
) -> tuple[tuple[RunStoreTask, ...], Memory]:
    """The tasks that are due, and the memory of having started them. `created` are jobs of this very decision;
    `release` is the annotation that is acted upon now.
    """
    if snapshot.held_by:
        return (), memory  # the store is another policy's: it is neither read nor cleaned for this one
    tasks = []
    running = [step for step in steps if step.state is JobState.IN_PROGRESS]
    if not memory.store.sense_running and sense_in(snapshot, policy, memory) <= 0:
        tasks.append(look_of(policy, memory, steps=steps, quarantined=quarantined, created=created, release=release))
        memory = sense_started(memory)
    due = memory.store.sweep_due
    if not memory.store.sweep_running and due is not None and due <= snapshot.now.monotonic and not snapshot.hold:
        # Also attempts that end with this very decision: until that is written, they are not over.
        ending = (step.view.job for step in steps if state_of(step.view.job.status) is JobState.IN_PROGRESS)
        active = {(job.metadata.name, token_of(job.status)) for job in ending}
        active |= {(step.name, token_of(step.status)) for step in running}
        tasks.append(RunStoreTask(StoreTask.SWEEP, active=frozenset(active)))
        memory = replace(memory, store=replace(memory.store, sweep_running=True))
    return tuple(tasks), memory


def look_of(
    policy: CompactionPolicy,
    memory: Memory,
    *,
    steps: Sequence[JobStep],
    quarantined: Iterable[QuarantinedSource],
    created: Iterable[CreateJob] = (),
    release: Release = NO_RELEASE,
) -> RunStoreTask:
    """A scan of the store, with what it has to know of the jobs; see `start`."""
    return RunStoreTask(
        StoreTask.SENSE,
        quarantined=approval.quarantined_by_target(quarantined),
        busy=frozenset(step.target for step in steps if step.state is JobState.IN_PROGRESS),
        jobs=held_by_jobs(steps, created, (*memory.planning.unmade.jobs, *memory.planning.pending)),
        released=release.of(policy.status.quarantined),
    )


def held_by_jobs(
    steps: Iterable[JobStep], created: Iterable[CreateJob], planned: Iterable[PlannedJob]
) -> Mapping[str, HeldJob]:
    """Jobs of divisible groups that exist and have not succeeded, that will be made within moments, or that wait for
    approval: a scan must not offer their sources in another target.
    """
    specs = [(step.name, step.view.job.spec) for step in steps if step.state is not JobState.SUCCEEDED]
    specs += [(item.name, item.spec) for item in created]
    held = {}
    for name, spec in specs:
        parts = kind_of_job(spec.kind).parts(spec)
        if parts.divisible:
            held[name] = HeldJob(spec.target, spec.level, parts.sources)
    for job in planned:
        if any(group.divisible for group in job.groups):
            sources = tuple(source for group in job.groups for source in group.sources)
            held[job.name] = HeldJob(job.target, job.level, sources)
    return frozen(held)


def sense_started(memory: Memory) -> Memory:
    """The memory of having started a scan."""
    return replace(memory, store=replace(memory.store, sense_running=True))


def ended(memory: Memory, task: StoreTask) -> Memory:
    """The memory after a task, however it ended."""
    if task is StoreTask.SENSE:
        return replace(memory, store=replace(memory.store, sense_running=False))
    if task is StoreTask.PREVIEW:
        return replace(memory, store=replace(memory.store, preview_running=False))
    return replace(memory, store=replace(memory.store, sweep_running=False))


def scanned(memory: Memory, *, sweep_in: float | None, look_in: float | None, now: float) -> Memory:
    """The memory after a scan that says in how many seconds there is something to delete, and something new."""
    sweep_due = None if sweep_in is None else now + sweep_in
    look_due = None if look_in is None else now + look_in
    return replace(memory, store=replace(memory.store, sweep_due=sweep_due, look_due=look_due))


def swept(memory: Memory, *, sweep_in: float | None, now: float) -> Memory:
    """The memory after a sweep that says in how many seconds there is something to delete again."""
    due = None if sweep_in is None else now + max(SWEEP_PAUSE, sweep_in)
    return replace(memory, store=replace(memory.store, sweep_due=due))


def sense_in(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory) -> float:
    """Seconds until the store is scanned again: the interval, when it will have something new, soon after a job has
    changed it, or at once. Looks take a quarter of the time at most, whatever the store says; a policy that waits for
    a worker looks ever more rarely.
    """
    reading = snapshot.reading
    if not is_of_now(reading, policy, memory):
        return 0.0
    since = waits_since(snapshot, policy, memory)
    due = reading.started + pause(float(policy.spec.trigger.interval), started=reading.started, waits_since=since)
    soon = reading.ended + max(SOON, 3 * (reading.ended - reading.started))
    if any(at >= reading.started for at in memory.finished.values()):
        due = min(due, soon)
    if memory.store.look_due is not None:
        due = min(due, max(memory.store.look_due, soon))
    return due - snapshot.now.monotonic


def pause(interval: float, *, started: float, waits_since: float | None) -> float:
    """Seconds from the start of a scan to the next one: as many as the policy had waited for a worker then, between
    its interval and `LONGEST_PAUSE`; so the pauses double. What a scan finds meanwhile could not be worked on, and at
    its turn the policy scans at once.
    """
    waited = started - waits_since if waits_since is not None else 0.0
    return max(interval, min(LONGEST_PAUSE, waited))


def waits_since(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory) -> float | None:
    """Since when (monotonic) the policy waits for one of the workers that all policies share; None when it does not, or
    has one, or may have one now.
    """
    if snapshot.workers or memory.workers.launches or snapshot.allowance.workers_within(policy.spec.workers.max):
        return None
    first = min((memory.waits or {}).values(), default=None)
    now = snapshot.now
    return None if first is None else now.monotonic - max(0.0, now.wall - first.timestamp())


def next_sweep(snapshot: PolicySnapshot, memory: Memory) -> float | None:
    """Seconds until a sweep is due; None when none is."""
    if memory.store.sweep_running or memory.store.sweep_due is None or snapshot.hold is not None:
        return None
    return max(0.0, memory.store.sweep_due - snapshot.now.monotonic)


def next_task(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory) -> float | None:
    """Seconds until a task is due."""
    moments: list[float] = []
    if snapshot.held_by:
        return None
    if not memory.store.sense_running:
        moments.append(max(0.0, sense_in(snapshot, policy, memory)))
    if (sweep := next_sweep(snapshot, memory)) is not None:
        moments.append(sweep)
    return min(moments, default=None)


# Two policies over one store: which of them compacts it, and what keeps the other one from it.
#
# Both would start workers for the same sources, set the same damage aside, and judge each other's files. The older
# policy goes on; the younger one plans and starts nothing until the older one is gone or they are apart. Decided from
# the specs alone, so it is known before anything is read.


@dataclass(frozen=True, slots=True)
class Claimant:
    """A policy and its store. `created` is epoch seconds."""

    namespace: str
    name: str
    created: float
    store: StoreSpec

    @classmethod
    def of(cls, policy: CompactionPolicy) -> Claimant:
        """Of a policy that exists."""
        meta = policy.metadata
        created = meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0
        return cls(meta.namespace, meta.name, created, policy.spec.store)

    @property
    def age(self) -> tuple[float, str, str]:
        """The order of policies: the oldest first; of the same second, by namespace and name."""
        return self.created, self.namespace, self.name

    @property
    def places(self) -> tuple[str, ...]:
        """The places of the policy's store, in paths of parts between slashes. A policy that shares a store with it has
        a place that is the same, around or inside one of these; most that have none need not be compared.
        """
        return kind_of(self.store).places(self.store, self.namespace)


def older_owner(policy: Claimant, others: Iterable[Claimant]) -> Claimant | None:
    """The oldest of the policies that are older than this one and compact the same store, or a part of it."""
    older = [other for other in others if other.age < policy.age and share_a_store(policy, other)]
    return min(older, key=lambda item: item.age, default=None)


def said(policy: Claimant, owner: Claimant) -> str:
    """Return the message of the younger policy about the overlap."""
    remedy = kind_of(policy.store).overlap_remedy
    return (
        f"{policy.store.location} is compacted by the older policy {owner.namespace}/{owner.name}: delete one of the "
        f"two, or {remedy}; until then nothing of this one is planned or started"
    )


def share_a_store(claimant: Claimant, other: Claimant) -> bool:
    """Return whether both policies may select the same source."""
    kind = kind_of(claimant.store)
    if kind_of(other.store) is not kind:
        return False
    return kind.overlap(claimant.store, other.store, same_namespace=claimant.namespace == other.namespace)
