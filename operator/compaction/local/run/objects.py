"""The objects of one policy, kept in memory as the API server would keep them: versions, and a snapshot of it all.

Belongs to one thread, and nothing else writes between a decision and its execution: no premise fails, and every
version is the one that was decided on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from compaction.api.base import ObjectMeta, OwnerReference, to_timestamp
from compaction.api.job.job import CompactionJob, CompactionJobStatus
from compaction.api.job.job_status import JobReport, parse_report
from compaction.api.names import ANNOTATION_PREVIEW, API_VERSION, LABEL_PLAN, POLICY_KIND
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile.actions import Announce, AssignJob, CreateJob, Premise, RaiseShare
from compaction.core.reconcile.observations import (
    JobLease,
    JobView,
    Memory,
    Moment,
    OperatorIdentity,
    PolicySnapshot,
    WorkerLease,
    WorkerProcess,
)
from compaction.local.run.workers import LocalWorker

OWNER: Final = "compactor-run"
"""Stands where a policy's uid stands in a cluster: names of jobs are the same in every run."""
NAMESPACE: Final = "local"


class LocalObjects:
    """Policy, jobs and their Leases; implements `kube.executor.executor.Objects`. `announce` is called with Events."""

    def __init__(self, policy: CompactionPolicy, *, announce: Callable[[Announce], None] = lambda event: None) -> None:
        self._announce = announce
        self._versions = itertools.count(1)
        self.jobs: dict[str, CompactionJob] = {}
        self.leases: dict[str, JobLease] = {}
        meta = policy.metadata.model_copy(
            update={
                "namespace": NAMESPACE,
                "uid": OWNER,
                "generation": 1,
                "resource_version": self._version(),
                "creation_timestamp": to_timestamp(datetime.now(UTC)),
            }
        )
        self.policy = _local(policy.model_copy(update={"metadata": meta}))

    def replace_policy(self, wanted: CompactionPolicy) -> None:
        """Another manifest of the policy: spec and annotations change, status stays."""
        wanted = _local(wanted)
        spec, meta = wanted.spec, self.policy.metadata
        changes = {
            "annotations": wanted.metadata.annotations,
            "generation": meta.generation + (spec != self.policy.spec),
            "resource_version": self._version(),
        }
        self.policy = self.policy.model_copy(update={"spec": spec, "metadata": meta.model_copy(update=changes)})

    # -- `kube.executor.executor.Objects` ------------------------------------------------------------------------------

    @property
    def stale(self) -> bool:
        """See `Objects`."""
        return False

    async def policy_is_absent(self) -> bool:
        """See `Objects`."""
        return False

    async def holds(self, premise: Premise, job: OperatorIdentity) -> bool:
        """See `Objects`."""
        return True

    def serves(self, worker: str) -> bool:
        """See `Objects`."""
        return True

    async def create_job(self, action: CreateJob) -> bool:
        """See `Objects`."""
        if action.name not in self.jobs:
            owner = OwnerReference(
                api_version=API_VERSION, kind=POLICY_KIND, name=self.policy.metadata.name, uid=OWNER, controller=True
            )
            meta = ObjectMeta(
                name=action.name,
                namespace=NAMESPACE,
                uid=f"{action.name}-{self._version()}",
                resource_version=self._version(),
                generation=1,
                creation_timestamp=to_timestamp(datetime.now(UTC)),
                labels={LABEL_PLAN: action.plan},
                owner_references=(owner,),
            )
            self.jobs[action.name] = CompactionJob(metadata=meta, spec=action.spec)
        return True

    async def put_lease(self, action: AssignJob, token: int, now: Moment) -> bool:
        """See `Objects`. The Lease is never silent: the worker is this process."""
        name, version = action.job.name, self._version()
        self.leases[name] = JobLease(
            identity=OperatorIdentity(name, f"lease-{version}", version),
            holder=action.worker,
            token=token,
            duration=float(action.duration),
            silence=0.0,
            bytes_per_second=action.bytes_per_second,
        )
        return True

    async def raise_share(self, action: RaiseShare) -> bool:
        """See `Objects`."""
        name = action.lease.name
        self.leases[name] = replace(self.leases[name], bytes_per_second=action.bytes_per_second)
        return True

    async def write_job_status(self, job: OperatorIdentity, status: CompactionJobStatus) -> bool:
        """See `Objects`."""
        before = self.jobs[job.name]
        meta = before.metadata.model_copy(update={"resource_version": self._version()})
        self.jobs[job.name] = before.model_copy(update={"status": status, "metadata": meta})
        return True

    async def write_policy_status(self, policy: OperatorIdentity, status: CompactionPolicyStatus) -> bool:
        """See `Objects`."""
        meta = self.policy.metadata.model_copy(update={"resource_version": self._version()})
        self.policy = self.policy.model_copy(update={"status": status, "metadata": meta})
        return True

    async def delete_job(self, job: OperatorIdentity) -> None:
        """See `Objects`."""
        del self.jobs[job.name]

    async def delete_lease(self, lease: OperatorIdentity, *, any_version: bool = False) -> None:
        """See `Objects`. A worker has no Lease here that could be deleted: it is stopped, or has ended."""
        self.leases.pop(lease.name, None)

    def announce(self, event: Announce) -> None:
        """See `Objects`."""
        self._announce(event)

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def note_progress(self, name: str, token: int, percent: int) -> None:
        """The worker says how far the job is; what an earlier attempt says is passed over."""
        lease = self.leases.get(name)
        if lease is not None and lease.token == token:
            self.leases[name] = replace(lease, progress=percent)

    def note_report(self, name: str, report: JobReport) -> None:
        """The worker's last word about an attempt; of an earlier attempt it is passed over."""
        lease = self.leases.get(name)
        if lease is not None and lease.token == report.token:
            self.leases[name] = replace(lease, report=parse_report(report.to_json()))

    def snapshot(
        self, *, now: Moment, worker: LocalWorker | None, reading: ScanResult | None, memory: Memory
    ) -> PolicySnapshot:
        """Return the picture that a reconcile decides from."""
        return PolicySnapshot(
            namespace=NAMESPACE,
            name=self.policy.metadata.name,
            now=now,
            policy=self.policy,
            jobs=tuple(JobView(job, self.leases.get(name)) for name, job in sorted(self.jobs.items())),
            workers=self._worker_leases(worker),
            processes=_processes(worker, now),
            reading=reading,
            memory=memory,
        )

    def _worker_leases(self, worker: LocalWorker | None) -> tuple[WorkerLease, ...]:
        if worker is None or worker.ended:
            return ()
        duration = float(self.policy.spec.lease.duration_seconds)
        return (WorkerLease(OperatorIdentity(worker.name, worker.name, "1"), worker.slots, duration, 0.0, OWNER),)

    def _version(self) -> str:
        return str(next(self._versions))


def _processes(worker: LocalWorker | None, now: Moment) -> tuple[WorkerProcess, ...]:
    if worker is None:
        return ()
    age = max(0.0, now.monotonic - worker.started)
    return (WorkerProcess(worker.name, ended=bool(worker.ended), age=age, message=worker.ended),)


def _local(policy: CompactionPolicy) -> CompactionPolicy:
    """Spark runs once in a process, whatever the policy would allow in a cluster; and a preview that came
    with a policy of a cluster is not made (`--dry-run --against` is that of a file).
    """
    workers = policy.spec.workers.model_copy(update={"max": 1})
    kept = {key: value for key, value in policy.metadata.annotations.items() if key != ANNOTATION_PREVIEW}
    metadata = policy.metadata.model_copy(update={"annotations": kept})
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"workers": workers}), "metadata": metadata})
