"""When the store is looked at and when it is swept, and which of the two begins now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from compaction.api.enums import JobState
from compaction.api.policy import CompactionPolicy, QuarantinedSource
from compaction.reconcile import quarantine
from compaction.reconcile.actions import RunStoreTask, StoreTask
from compaction.reconcile.job import state_of, token_of
from compaction.reconcile.observations import Memory, Snapshot
from compaction.reconcile.steps import JobStep


def start(
    snapshot: Snapshot,
    policy: CompactionPolicy,
    memory: Memory,
    *,
    steps: Sequence[JobStep],
    quarantined: Iterable[QuarantinedSource],
) -> tuple[tuple[RunStoreTask, ...], Memory]:
    """The tasks that are due, and the memory of having started them."""
    tasks = []
    running = [step for step in steps if step.state is JobState.IN_PROGRESS]
    if not memory.sense_running and sense_in(snapshot, policy, memory) <= 0:
        busy = frozenset(step.log for step in running)
        tasks.append(RunStoreTask(StoreTask.SENSE, quarantined=quarantine.by_log(quarantined), busy=busy))
        memory = replace(memory, sense_running=True)
    due = memory.sweep_due
    if not memory.sweep_running and due is not None and due <= snapshot.now.monotonic:
        # Also attempts that end with this very decision: until that is written, they are not over.
        ending = (step.view.job for step in steps if state_of(step.view.job.status) is JobState.IN_PROGRESS)
        active = {(job.metadata.name, token_of(job.status)) for job in ending}
        active |= {(step.name, token_of(step.status)) for step in running}
        tasks.append(RunStoreTask(StoreTask.SWEEP, active=frozenset(active)))
        memory = replace(memory, sweep_running=True)
    return tuple(tasks), memory


def sense_in(snapshot: Snapshot, policy: CompactionPolicy, memory: Memory) -> float:
    """Seconds until the store is looked at again: the interval, soon after a job has changed it, or at once."""
    reading = snapshot.reading
    if reading is None or reading.generation != policy.metadata.generation or reading.started < memory.look_wanted:
        return 0.0
    due = reading.started + float(policy.spec.trigger.interval)
    if any(at >= reading.started for at in memory.finished.values()):
        due = min(due, reading.ended + max(0.5, 3 * (reading.ended - reading.started)))
    return due - snapshot.now.monotonic


def next_task(snapshot: Snapshot, policy: CompactionPolicy, memory: Memory) -> float | None:
    """Seconds until a task is due."""
    moments: list[float] = []
    if not memory.sense_running:
        moments.append(max(0.0, sense_in(snapshot, policy, memory)))
    if not memory.sweep_running and memory.sweep_due is not None:
        moments.append(max(0.0, memory.sweep_due - snapshot.now.monotonic))
    return min(moments, default=None)
