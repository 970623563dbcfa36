"""`compactor run`: one policy on one machine, until nothing is left to do.

The same reconciler and executor as in a cluster and in `run --watch`; what is different is said beside them. The run
compacts at once, so it gives the reconciler a copy of the policy without schedule, windows and cooldown (`at_once`). It
ends when nothing can come any more but by others, by time or by a person (`settled`). Jobs of other processes are left
to them (`shared`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import JobState
from compaction.api.job.report import JobReport
from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy, PlanStatus
from compaction.api.policy.spec import TriggerSpec
from compaction.api.text.values import Duration
from compaction.core.planning.planner import Plan
from compaction.core.planning.reading import HeldJob, ScanResult
from compaction.core.reconcile.jobs.job import is_finished
from compaction.core.reconcile.observations import Moment
from compaction.core.reconcile.planning.replan import plan_of
from compaction.kube.errors import PlanNotApprovedError
from compaction.local.errors import RootUnreadableError
from compaction.local.run.coordinator import LONGEST_WAIT, LocalCoordinator
from compaction.local.run.job import RunResult, ended
from compaction.local.run.objects import LocalObjects
from compaction.local.run.settled import RunState
from compaction.local.run.shared import SharedStore
from compaction.registry import kind_of
from compaction.storage.adapter import SenseRequest, StoreAdapter
from compaction.worker.ports import Assignment, HeldLease, JobRunner

WORKER: Final = "local"
_SELDOM: Final = Duration("24h")

Others = Callable[[], Mapping[str, HeldJob]]


def at_once(policy: CompactionPolicy) -> CompactionPolicy:
    """The policy as a run that ends means it: everything that is due now, whatever schedule, windows and cooldown say.
    A job that has succeeded goes, and with it its claim; one that is parked stays, or it would be tried for ever.
    """
    changes = {
        "trigger": TriggerSpec(interval=_SELDOM),
        "successful_jobs_history_limit": 0,
        "failed_jobs_history_limit": sys.maxsize,
    }
    return policy.model_copy(update={"spec": policy.spec.model_copy(update=changes)})


def look(policy: CompactionPolicy, store: StoreAdapter, *, others: Others = dict) -> tuple[ScanResult, Plan]:
    """A scan of the store, and the plan that a run would begin with. Changes nothing.

    Raises:
        RootUnreadableError: the root cannot be scanned.
    """
    meant = LocalObjects(at_once(policy)).policy
    request = SenseRequest(1, meant.metadata.generation, time.monotonic(), recover=False)
    reading = SharedStore(store, others).sense(request).reading
    if reading.problem is not None:
        raise RootUnreadableError(reading.problem.message)
    return reading, plan_of(reading, meant, _now())


class LocalRun:
    """Runs one policy to its end.

    Args:
        open_runner: starts the engine; called once, and only when there is something to do.
        progress: called with (job, bytes to copy, percent), in the thread of `run`.
        others: the jobs of others that are open now, by name, with a target of their own; their sources are left alone.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        store: StoreAdapter,
        open_runner: Callable[[], AbstractContextManager[JobRunner]],
        progress: Callable[[str, int, int], None] = lambda job, cost, percent: None,
        others: Others = dict,
    ) -> None:
        self._store = store
        self._coordinator = LocalCoordinator(
            at_once(policy),
            store=SharedStore(store, others),
            open_runner=lambda _: _charging(open_runner()),
            progress=progress,
        )
        self._jobs: dict[str, CompactionJob] = {}
        self._state = RunState({}, self._coordinator.memory)

    def run(self) -> RunResult:
        """Compact everything that is due, then delete what was replaced longer than the grace ago.

        Raises:
            RootUnreadableError: the root cannot be scanned.
            PlanNotApprovedError: the policy's plans need approval, and its annotation names another one than this.
            EngineStartError, EngineLostError
        """
        with self._coordinator as coordinator:
            while True:
                pause = self._step()
                if pause > 0 and self._state.settled:
                    break
                coordinator.wait(pause)
        return self._result()

    def _step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        coordinator = self._coordinator
        coordinator.memory = self._state.paced(time.monotonic())
        pause = coordinator.step()
        if coordinator.workers.failure is not None:
            raise coordinator.workers.failure
        repeated = set(self._state.repeated)
        for name, job in coordinator.objects.jobs.items():
            known = self._jobs.get(name, job)
            if known.metadata.uid != job.metadata.uid and is_finished(known.status):
                repeated.add(name)
            if name not in repeated or is_finished(job.status):
                self._jobs[name] = job
        state = RunState(
            dict(coordinator.objects.jobs), coordinator.memory, coordinator.reading, repeated, self._state.changed_at
        )
        if state.marks != self._state.marks:
            state = replace(state, changed_at=time.monotonic())
        self._state = state
        return LONGEST_WAIT if self._is_full() else pause

    def _is_full(self) -> bool:
        """Whether nothing can be given to the worker before an attempt ends: until then nothing is decided."""
        spec = self._coordinator.objects.policy.spec
        running = sum(job.status.state is JobState.IN_PROGRESS for job in self._state.jobs.values())
        return running >= min(spec.workers.slots, spec.limits.max_concurrent_jobs)

    def _result(self) -> RunResult:
        coordinator, reading, now = self._coordinator, self._state.reading, _now()
        assert reading is not None, "without a scan nothing is settled"
        if reading.problem is not None:
            raise RootUnreadableError(reading.problem.message)
        policy, before = coordinator.objects.policy, coordinator.swept
        swept = self._store.sweep(active=frozenset())
        result = RunResult(
            plan=policy.status.plan or PlanStatus(),
            jobs=tuple(ended(job, coordinator.memory.claims, now=now) for job in self._jobs.values()),
            reading=reading,
            quarantined=policy.status.quarantined,
            swept=replace(swept, deleted=before.deleted + swept.deleted, bytes=before.bytes + swept.bytes),
            races=kind_of(policy.spec.store).immutable_sources,
        )
        if result.unapproved and not result.jobs:
            raise PlanNotApprovedError(not_approved(result.unapproved))
        return result


def not_approved(plan: str) -> str:
    """What is to be done about a plan of this hash."""
    return (
        f"plan {plan} is not approved (spec.approval: Manual): review it with --dry-run, then run with --approve {plan}"
    )


@dataclass(frozen=True, slots=True)
class _Charging:
    """A runner whose failures all count against the job: no run goes on for ever."""

    runner: JobRunner

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `JobRunner`."""
        return self.runner.run(assignment, lease).model_copy(update={"charged": True})


@contextmanager
def _charging(opening: AbstractContextManager[JobRunner]) -> Iterator[JobRunner]:
    with opening as runner:
        yield _Charging(runner)


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())
