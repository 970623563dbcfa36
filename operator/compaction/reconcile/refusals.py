"""Jobs that can never run: refused when made by hand, deleted when planned; and what waiting jobs say of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.api.enums import JobReason, JobState, WaitReason
from compaction.api.job import CompactionJob
from compaction.api.plan_status import Waiting
from compaction.api.policy import CompactionPolicy
from compaction.planning.candidates import relative_to
from compaction.reconcile.actions import DeleteJob
from compaction.reconcile.job import evolve
from compaction.reconcile.observations import Memory, Moment, Reading, Snapshot
from compaction.reconcile.steps import JobStep, Refusal
from compaction.reconcile.teardown import owner_uid


class Refusals:
    """Which jobs make no sense for this policy and its store, as far as the last look knows."""

    def __init__(self, snapshot: Snapshot, policy: CompactionPolicy, *, root: str) -> None:
        self._claims = snapshot.memory.claims
        self._policy = policy
        self._root = root
        self._reading = _known(snapshot.reading, policy)

    def refuse(self, job: CompactionJob) -> Refusal | None:
        """Why a job made by hand can never run; planned ones are deleted instead (`obsolete`)."""
        sources = job.spec.sources.segment_log
        if sources is None or owner_uid(job):
            return None
        if self._is_outside(sources.path):
            message = f"{sources.path} is not below {self._root}, the root of policy {self._policy.metadata.name}"
            return Refusal(JobReason.OUTSIDE_ROOT, message)
        problem = self._claims.get(job.metadata.name)
        if problem is None or not problem.terminal or self._reading is None:
            return None
        # Only a look after the failure tells a log that is gone from a store that is not mounted just now.
        gone = sources.path not in self._reading.logs and self._reading.started >= problem.since
        return Refusal(JobReason.NOT_A_LOG, problem.message) if gone else None

    def obsolete(self, steps: Iterable[JobStep]) -> list[DeleteJob]:
        """Planned jobs that nobody is working on, for a log that is no longer there, or no longer below the policy's
        root.
        """
        deletions = []
        for step in steps:
            if step.state not in (JobState.UNASSIGNED, JobState.ABANDONED) or not owner_uid(step.view.job):
                continue
            if self._is_outside(step.log):
                deletions.append(step.deletion("the policy's root was changed"))
            elif self._reading is not None and step.log not in self._reading.logs:
                deletions.append(step.deletion("its log is not among the policy's logs any more"))
        return deletions

    def _is_outside(self, log: str) -> bool:
        return relative_to(self._root, log) is None


def _known(reading: Reading | None, policy: CompactionPolicy) -> Reading | None:
    """The last look, if it was made with this spec and the root could be read."""
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
                said = Waiting(reason=problem.reason, message=problem.message, since=now.time)
                step = replace(step, status=evolve(step.status, waiting=said))
        elif waiting is not None and waiting.reason == WaitReason.POLICY_NOT_FOUND:
            step = replace(step, status=evolve(step.status, waiting=None))
        result.append(step)
    return tuple(result)
