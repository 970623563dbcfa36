"""When a policy is idle: nothing has to be decided again until something that it depends on changes.

An idle policy costs its scans of the store and nothing else: no plan is created again from what was planned from, no
status is put together to find out that it is the same. The rule is conservative. A policy that has a worker, a job in
progress, a task in the store, or anything that ends by itself and that no plan has been made after, does not rest; and
no policy is idle for longer than `LAZY_GAP`, after which the status gets the time of the last scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from compaction.api.enums import JobState
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import Decision, Rest, RunStoreTask
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.planning.approval import is_pending
from compaction.core.reconcile.status.summary import LAZY_GAP
from compaction.core.reconcile.timing import approved_hash
from compaction.core.reconcile.workers.assigning import soonest

_END_BY_THEMSELVES: Final = frozenset({LeftOutReason.COOLDOWN.value, LeftOutReason.RECENTLY_EVICTED.value})
"""What was left out of a plan for these reasons is in a later one, though the store is the same."""


def rest_of(
    snapshot: PolicySnapshot,
    policy: CompactionPolicy,
    decision: Decision,
    *,
    steps: Sequence[JobStep],
    look: RunStoreTask,
    seconds: Sequence[float | None],
) -> Rest | None:
    """The rest after a decision; None when there is none. `seconds` until something changes by itself, looks and sweeps
    aside; `look` is how the store is scanned meanwhile.
    """
    memory, now, reading = decision.memory, snapshot.now, snapshot.reading
    if decision.acts or decision.store_tasks or decision.events or reading is None or snapshot.held_by:
        return None
    if not (_is_idle(snapshot, memory, steps) and _is_planned_out(snapshot, policy, memory)):
        return None
    interval = float(policy.spec.trigger.interval)
    due = soonest(*seconds, store_work.next_sweep(snapshot, memory), LAZY_GAP)
    return Rest(
        look,
        look_at=now.monotonic + store_work.sense_in(snapshot, policy, memory),
        until=now.monotonic + (due if due is not None else LAZY_GAP),
        interval=interval,
        waits_since=store_work.waits_since(snapshot, policy, memory),
    )


def _is_idle(snapshot: PolicySnapshot, memory: Memory, steps: Sequence[JobStep]) -> bool:
    """No worker or task is at work for the policy, or about to be."""
    coming = memory.workers.launches or memory.planning.unmade.jobs
    busy = snapshot.workers or snapshot.processes or snapshot.stray_leases or coming
    running = any(step.state is JobState.IN_PROGRESS or step.lease is not None for step in steps)
    return not (busy or running or memory.store.sense_running or memory.store.sweep_running)


def _is_planned_out(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory) -> bool:
    """Another plan from a scan that finds the same is the same: it was created from these very jobs, and what it left
    out does not become due by the clock.
    """
    reading = snapshot.reading
    if reading is None or reading.problem is not None or reading.generation != policy.metadata.generation:
        return False
    if reading.started < memory.store.look_wanted or memory.finished or memory.planning.evicted:
        return False
    plan = memory.planning.plan or policy.status.plan
    if plan is not None and is_pending(plan) and plan.hash == approved_hash(policy):
        return False
    planned = memory.planning.reading == reading.number
    if policy.spec.trigger.schedule is not None and not planned:
        return True  # a plan is made at its times, whatever looks find in between
    if plan is not None and any(row.reason in _END_BY_THEMSELVES for row in plan.left_out):
        return False
    return planned and memory.planning.jobs == snapshot.job_versions
