"""Jobs that can never run: refused when made by hand, deleted when planned; and what waiting jobs say of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.api.enums import JobReason, JobState, WaitReason
from compaction.api.job.resource import CompactionJob
from compaction.api.policy.plan_status import WaitStatus
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.reconcile.actions import DeleteJob
from compaction.core.reconcile.jobs.job import evolve
from compaction.core.reconcile.jobs.parts import parts_of
from compaction.core.reconcile.jobs.steps import JobRefusal, JobStep
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.observations import Moment, PolicySnapshot, ScanResult
from compaction.core.reconcile.teardown import owner_uid
from compaction.registry import kind_of, kind_of_job


class Refusals:
    """Which jobs make no sense for this policy and its store, by the last scan. `reading` is that scan, if
    it was a good one with this spec.
    """

    def __init__(self, snapshot: PolicySnapshot, policy: CompactionPolicy) -> None:
        self._claims = snapshot.memory.claims
        self._policy = policy
        self.reading = _known(snapshot.reading, policy)
        self._kind = kind_of(policy.spec.store)

    def refuse(self, job: CompactionJob) -> JobRefusal | None:
        """Why a job made by hand can never run; planned ones are deleted instead (`obsolete`)."""
        if owner_uid(job):
            return None
        elsewhere = self._elsewhere(job)
        if elsewhere is not None:
            return elsewhere
        problem = self._claims.get(job.metadata.name)
        if problem is None or not problem.terminal or self.reading is None or self.reading.started < problem.since:
            return None
        # Only a scan after the failure tells sources that are gone from a store that is not mounted just now.
        name, spec = job.metadata.name, job.spec
        if self._kind.gone(name, spec, self.reading):
            return JobRefusal(JobReason.SOURCES_GONE, problem.message)
        wrong = self._kind.unclaimable(name, spec, self.reading)
        return JobRefusal(JobReason.INVALID_JOB, problem.message) if wrong else None

    def obsolete(self, steps: Iterable[JobStep]) -> list[DeleteJob]:
        """Planned jobs that no worker runs, for sources that are no longer there, or no longer of the policy's
        store.
        """
        deletions = []
        for step in steps:
            if step.state not in (JobState.UNASSIGNED, JobState.ABANDONED) or not owner_uid(step.view.job):
                continue
            if self._elsewhere(step.view.job) is not None:
                deletions.append(step.deletion("the policy's store was changed"))
            elif self.reading is not None and step.target not in self.reading.targets:
                deletions.append(step.deletion("what it was planned for is not in the policy's store any more"))
            elif self.reading is not None and step.name in self.reading.outdated:
                deletions.append(step.deletion("some of its sources are not in the store any more"))
        return deletions

    def outlived(self, steps: Iterable[JobStep]) -> frozenset[str]:
        """Planned jobs that are parked, for sources of which none is there any more: nothing can come of them, and what
        they waited for was done by others. One whose culprit is in quarantine stays as the record of it.
        """
        if self.reading is None or not self.reading.outdated:
            return frozenset()
        left = {one.target: one.sources for one in self.reading.candidates}
        return frozenset(
            step.name
            for step in steps
            if step.state is JobState.FAULTY
            and step.name in self.reading.outdated
            and owner_uid(step.view.job)
            and not step.status.skipped
            and left.get(step.target, frozenset()).isdisjoint(*parts_of(step.view.job).groups)
        )

    def _elsewhere(self, job: CompactionJob) -> JobRefusal | None:
        """Why the job is not one of the policy's store."""
        store, name = self._policy.spec.store, self._policy.metadata.name
        if kind_of_job(job.spec.kind) is not self._kind:
            return JobRefusal(
                JobReason.OTHER_STORE, f"policy {name} compacts {store.name}, which has no {job.spec.kind}"
            )
        why = self._kind.stranger(job.spec, store, name)
        return JobRefusal(JobReason.OTHER_STORE, why) if why else None


def _known(reading: ScanResult | None, policy: CompactionPolicy) -> ScanResult | None:
    """The last scan, if it was made with this spec and the store could be read."""
    if reading is None or reading.problem is not None or reading.generation != policy.metadata.generation:
        return None
    return reading


def with_waits(steps: tuple[JobStep, ...], memory: Memory, now: Moment) -> tuple[JobStep, ...]:
    """Jobs whose claim the store refused say so themselves; other waits are in the policy's status."""
    result = []
    for step in steps:
        problem = memory.claims.get(step.name)
        waiting = step.status.waiting
        if problem is not None and step.state in (JobState.UNASSIGNED, JobState.ABANDONED):
            if waiting is None or waiting.reason != problem.reason:
                said = WaitStatus(reason=problem.reason, message=problem.message, since=now.time)
                step = replace(step, status=evolve(step.status, waiting=said))
        elif waiting is not None and waiting.reason == WaitReason.POLICY_NOT_FOUND:
            step = replace(step, status=evolve(step.status, waiting=None))
        result.append(step)
    return tuple(result)
