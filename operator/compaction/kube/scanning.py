"""Scans of a store and sweeps of it that return whatever happens.

A scan that ends without a reading, or a sweep that leaves its due time where it was, would be started again at once,
for ever. So an unexpected error becomes what the expected ones are: a problem in the reading, which makes the
policy Stalled with a reason and lets its interval pass; a sweep that is repeated later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import structlog

from compaction.api.enums import PolicyReason
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicySpec
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.core.reconcile.actions import RunStoreTask
from compaction.core.reconcile.observations import PreviewScans
from compaction.core.reconcile.preview import reads_alike
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, StoreAdapter, Swept

log = structlog.get_logger(__name__)

NOT_SWEPT = Swept(0, 0, (), SWEEP_AGAIN)


def request_of(task: RunStoreTask, number: int, policy: CompactionPolicy, *, asked: float) -> SenseRequest:
    """Look number `number`, as it was decided on at that moment (monotonic seconds)."""
    return SenseRequest(
        number=number,
        generation=policy.metadata.generation,
        asked=asked,
        quarantined=task.quarantined,
        busy=task.busy,
        jobs=task.jobs,
        released=task.released,
    )


def scan(
    store: StoreAdapter, request: SenseRequest, *, root: str, before: ScanResult | None, clock: Callable[[], float]
) -> Sensed:
    """`store.sense`, in a thread; never raises. The traceback is logged unless `before` had the same problem."""
    try:
        return store.sense(request)
    except Exception as error:  # a boundary like the work queue's: without a reading the look would start at once again
        problem = TargetProblem(
            root, PolicyReason.SENSE_FAILED, f"unexpected {_told(error)}; the operator's log has more"
        )
        known = before is not None and before.problem == problem
        log.error("the scan of a store failed", root=root, error=_told(error), exc_info=None if known else error)
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=clock(),
            wall=time.time(),
            problem=problem,
        )
        return Sensed(reading, SWEEP_AGAIN)


def preview(
    open_store: Callable[[CompactionPolicySpec], StoreAdapter],
    policy: CompactionPolicy,
    task: RunStoreTask,
    *,
    asked: float,
    clock: Callable[[], float],
) -> PreviewScans:
    """The scans of a preview, in a thread; never raises. They change nothing, and have stores of their own: what those
    of the policy remember, and are doing, stays.
    """
    request = replace(request_of(task, 0, policy, asked=asked), recover=False)
    assert task.proposed is not None, "a preview proposes a spec"

    def found(spec: CompactionPolicySpec) -> ScanResult:
        with closing(open_store(spec)) as store:
            return scan(store, request, root=spec.store.location, before=None, clock=clock).reading

    in_force = found(policy.spec)
    # Of two scans the second one may find what has arrived in between: where one will do, there is one.
    proposed = in_force if reads_alike(policy.spec, task.proposed) else found(task.proposed)
    return PreviewScans(task.mark, policy.metadata.uid, policy.metadata.generation, in_force, proposed)


def sweep(store: StoreAdapter, *, root: str, active: frozenset[tuple[str, int]]) -> Swept:
    """`store.sweep`, in a thread; never raises."""
    try:
        return store.sweep(active=active)
    except Exception as error:  # the same: a sweep that stays due would start again at once
        log.error("the sweep of a store failed", root=root, error=_told(error), exc_info=error)
        return NOT_SWEPT


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
