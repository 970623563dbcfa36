"""The objects of one policy, kept in memory as the API server would keep them: versions, and a picture of it all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.job.report import JobReport, parse_report
from compaction.api.job.resource import CompactionJob, CompactionJobSpec, CompactionJobStatus
from compaction.api.metadata import ObjectMeta, OwnerReference
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.api.policy.resource import CompactionPolicy, CompactionPolicyStatus
from compaction.api.text.times import to_timestamp
from compaction.planning.reading import Reading
from compaction.reconcile.observations import (
    Identity,
    JobLease,
    JobView,
    Memory,
    Moment,
    Snapshot,
    WorkerLease,
    WorkerProcess,
)

OWNER: Final = "compactor-run"
"""Stands where a policy's uid stands in a cluster: names of jobs are the same in every run."""
NAMESPACE: Final = "local"


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """The one worker of this process, as launcher and Lease would show it. `ended` says why it is gone."""

    name: str
    slots: int
    started: float
    ended: str = ""


class LocalObjects:
    """Policy, jobs and their Leases. Belongs to one thread."""

    def __init__(self, policy: CompactionPolicy, *, now: Moment) -> None:
        self._versions = itertools.count(1)
        self.jobs: dict[str, CompactionJob] = {}
        self.leases: dict[str, JobLease] = {}
        self.worker: LocalWorker | None = None
        meta = policy.metadata.model_copy(
            update={
                "namespace": NAMESPACE,
                "uid": OWNER,
                "generation": 1,
                "resource_version": self._version(),
                "creation_timestamp": to_timestamp(now.time),
            }
        )
        self.policy = policy.model_copy(update={"metadata": meta, "spec": _one_worker(policy).spec})

    def replace_policy(self, wanted: CompactionPolicy) -> None:
        """Another manifest of the policy: spec and annotations change, status stays."""
        spec, meta = _one_worker(wanted).spec, self.policy.metadata
        changes = {
            "annotations": wanted.metadata.annotations,
            "generation": meta.generation + (spec != self.policy.spec),
            "resource_version": self._version(),
        }
        self.policy = self.policy.model_copy(update={"spec": spec, "metadata": meta.model_copy(update=changes)})

    def put_policy_status(self, status: CompactionPolicyStatus) -> None:
        """Write the policy's status."""
        meta = self.policy.metadata.model_copy(update={"resource_version": self._version()})
        self.policy = self.policy.model_copy(update={"status": status, "metadata": meta})

    def create_job(self, name: str, spec: CompactionJobSpec, *, labels: dict[str, str], now: Moment) -> None:
        """Create a job of the policy; one of that name stays as it is."""
        if name in self.jobs:
            return
        owner = OwnerReference(
            api_version=API_VERSION, kind=POLICY_KIND, name=self.policy.metadata.name, uid=OWNER, controller=True
        )
        meta = ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=f"{name}-{self._version()}",
            resource_version=self._version(),
            generation=1,
            creation_timestamp=to_timestamp(now.time),
            labels=labels,
            owner_references=(owner,),
        )
        self.jobs[name] = CompactionJob(metadata=meta, spec=spec)

    def put_job_status(self, name: str, status: CompactionJobStatus) -> None:
        """Write a job's status."""
        job = self.jobs[name]
        meta = job.metadata.model_copy(update={"resource_version": self._version()})
        self.jobs[name] = job.model_copy(update={"status": status, "metadata": meta})

    def delete_job(self, name: str) -> None:
        """Delete a job and its Lease."""
        self.jobs.pop(name, None)
        self.leases.pop(name, None)

    def put_lease(self, name: str, *, worker: str, token: int, duration: float, bytes_per_second: int | None) -> None:
        """The job is the worker's. Its Lease is never silent: the worker is this process."""
        version = self._version()
        self.leases[name] = JobLease(
            identity=Identity(name, f"lease-{version}", version),
            holder=worker,
            token=token,
            duration=duration,
            silence=0.0,
            bytes_per_second=bytes_per_second,
        )

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

    def picture(self, *, now: Moment, reading: Reading | None, memory: Memory) -> Snapshot:
        """What a reconcile reads."""
        return Snapshot(
            namespace=NAMESPACE,
            name=self.policy.metadata.name,
            now=now,
            policy=self.policy,
            jobs=tuple(JobView(job, self.leases.get(name)) for name, job in sorted(self.jobs.items())),
            workers=self._worker_leases(),
            processes=self._processes(now),
            reading=reading,
            memory=memory,
        )

    def _worker_leases(self) -> tuple[WorkerLease, ...]:
        worker = self.worker
        if worker is None or worker.ended:
            return ()
        duration = float(self.policy.spec.lease.duration_seconds)
        return (WorkerLease(Identity(worker.name, worker.name, "1"), worker.slots, duration, 0.0, OWNER),)

    def _processes(self, now: Moment) -> tuple[WorkerProcess, ...]:
        worker = self.worker
        if worker is None:
            return ()
        age = max(0.0, now.monotonic - worker.started)
        return (WorkerProcess(worker.name, ended=bool(worker.ended), age=age, message=worker.ended),)

    def _version(self) -> str:
        return str(next(self._versions))


def _one_worker(policy: CompactionPolicy) -> CompactionPolicy:
    """Spark runs once in a process, whatever the policy would allow in a cluster."""
    workers = policy.spec.workers.model_copy(update={"max": 1})
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"workers": workers})})
