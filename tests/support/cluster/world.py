"""A world for reconcile: a policy, jobs, Leases, workers and a fenced store as plain data.

The executor of the coordinator carries the decisions out, over `executed.py`, and can be cut off after any of its
writes: then a new coordinator with an empty memory goes on. Nothing here knows Kubernetes; versions are counted so that
guarded writes can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.enums import JobState, WorkerEnding, WorkerTrouble
from compaction.api.job.job import CompactionJob, CompactionJobStatus
from compaction.api.job.job_status import JobReport
from compaction.api.names import GROUP
from compaction.api.policy.configuration import NO_DEFAULTS
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.core.planning.candidates import Candidate, GroupCandidate, ObsoleteSource
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import Decision, RunStoreTask, StoreTask
from compaction.core.reconcile.observations import (
    Allowance,
    Hold,
    JobLease,
    JobView,
    Memory,
    Moment,
    OperatorIdentity,
    PolicySnapshot,
    PreviewScans,
    SinkView,
    WorkerLease,
    WorkerProcess,
    frozen,
)
from compaction.core.reconcile.policy import reconcile
from compaction.segments.kind import MISSING
from support.cluster.executed import Crash, carry_out


def assert_rests(snapshot: PolicySnapshot, decision: Decision) -> None:
    """Who rests decides nothing when it decides again all the same: right before the rest ends, after a look that found
    what the last one found, and wrote nothing down but that it looked.
    """
    rest, reading = decision.rest, snapshot.reading
    if rest is None or rest.until <= snapshot.now.monotonic:
        return
    assert reading is not None
    passed = rest.until - snapshot.now.monotonic - 0.001
    now = Moment(snapshot.now.wall + passed, snapshot.now.monotonic + passed)
    looked = replace(reading, number=reading.number + 1, started=now.monotonic, ended=now.monotonic, wall=now.wall)
    assert looked.says_the_same(reading)
    again = reconcile(replace(snapshot, now=now, memory=decision.memory, reading=looked))
    assert not replace(again, policy_status=None).acts, f"rested, and would have done {again}"
    assert again.events == (), (
        again.events,
        decision.memory,
        snapshot.policy,
        [view.job.status for view in snapshot.jobs],
    )
    if again.policy_status is not None and snapshot.policy is not None:
        before, after = snapshot.policy.status.to_object(), again.policy_status.status.to_object()
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert changed <= {"lastSenseTime"}, {key: (before.get(key), after.get(key)) for key in changed}


GAIN = 100
U, P, A, F, S = (
    JobState.UNASSIGNED,
    JobState.IN_PROGRESS,
    JobState.ABANDONED,
    JobState.FAULTY,
    JobState.SUCCEEDED,
)


@dataclass
class SimLease:
    uid: str
    version: int
    holder: str
    token: int
    duration: float
    changed_at: float
    progress: int | None = None
    bytes_per_second: int | None = None
    report: JobReport | None = None


@dataclass
class SimWorker:
    slots: int
    changed_at: float
    uid: str
    owner: str
    duration: float = 15.0
    has_lease: bool = False
    process: str = "running"  # running | ended | none
    started: float = 0.0
    message: str = "exit code 1"
    trouble: WorkerTrouble | None = None
    ending: WorkerEnding | None = None
    memory: int = 0
    executor_memory: int = 0
    waited: float = 0.0
    leaving: bool = False


@dataclass
class Log:
    """A log of the store: which groups it still offers, and who may commit."""

    groups: list[str]
    claimed: dict[str, int] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    commits: list[tuple[str, int, str]] = field(default_factory=list)  # (job, token, group)


class PlainCluster:
    def __init__(self, **spec: Any) -> None:
        self.wall = 1_800_000_000.0
        self.version = 100
        self.policy: CompactionPolicy | None = self.make_policy("uid-1", **spec)
        self.jobs: dict[str, CompactionJob] = {}
        self.leases: dict[str, SimLease] = {}
        self.workers: dict[str, SimWorker] = {}
        self.logs: dict[str, Log] = {}
        self.memory = Memory()
        self.reading: ScanResult | None = None
        self.readings = 0
        self.deleted: list[str] = []
        self.status_writes = 0
        self.writes = 0
        self.events: list[tuple[str, str]] = []
        self.problem: TargetProblem | None = None
        self.problems: tuple[TargetProblem, ...] = ()
        self.missing_entries = 0
        self.quarantine_identity: dict[tuple[str, str], str] = {}
        self.launch_works = True
        self.creation_works = True
        self.allowance = Allowance()
        self.held_by = ""
        self.hold: Hold | None = None
        self.sink: SinkView | None = None
        self.defaults = NO_DEFAULTS
        self.preview: PreviewScans | None = None
        self.previews = 0
        self.proposed_held_by = ""
        self._steps_left: int | None = None

    # -- making things ----------------------------------------------------------------------------

    def make_policy(self, uid: str, **spec: Any) -> CompactionPolicy:
        body = {"store": {"segmentLogs": {"root": "/ra"}}, **spec}
        metadata = {
            "name": "logs",
            "namespace": "ns",
            "uid": uid,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": format_timestamp(timestamp_from_epoch(self.wall)),
        }
        return CompactionPolicy.from_object({"metadata": metadata, "spec": body})

    def change_spec(self, **spec: Any) -> None:
        assert self.policy is not None
        body = self.policy.to_object()
        for key, value in spec.items():
            old = body["spec"].get(key)
            body["spec"][key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
        metadata = self.policy.metadata
        body["metadata"] = {
            **metadata.to_object(),
            "generation": metadata.generation + 1,
            "resourceVersion": self.bump(),
        }
        self.policy = CompactionPolicy.from_object(body)

    def annotate(self, **annotations: str) -> None:
        """What `kubectl annotate cpol logs compaction.dev/<key>=<value>` does."""
        assert self.policy is not None
        metadata = self.policy.metadata
        merged = metadata.annotations | {
            f"{GROUP}/{key.replace('_', '-')}": value for key, value in annotations.items()
        }
        changed = metadata.model_copy(update={"annotations": merged, "resource_version": self.bump()})
        self.policy = self.policy.model_copy(update={"metadata": changed})

    def annotate_job(self, name: str, **annotations: str) -> None:
        """The same for a job."""
        job = self.jobs[name]
        merged = job.metadata.annotations | {f"{GROUP}/{key}": value for key, value in annotations.items()}
        changed = job.metadata.model_copy(update={"annotations": merged, "resource_version": self.bump()})
        self.jobs[name] = job.model_copy(update={"metadata": changed})

    def bump(self) -> str:
        self.version += 1
        return str(self.version)

    def add_log(self, path: str, groups: int = 1) -> Log:
        self.logs[path] = Log([f"{i:016d}.segment" for i in range(1, groups + 1)])
        return self.logs[path]

    def put_status(self, name: str, **changes: Any) -> None:
        """Write a job's status as it came, bypassing the decision."""
        job = self.jobs[name]
        status = CompactionJobStatus.model_validate({**dict(job.status), **changes})
        self.store_job(name, status)

    def store_job(self, name: str, status: CompactionJobStatus) -> None:
        job = self.jobs[name]
        metadata = job.metadata.model_copy(update={"resource_version": self.bump()})
        self.jobs[name] = job.model_copy(update={"status": status, "metadata": metadata})

    # -- the picture ------------------------------------------------------------------------------

    def look(self, task: RunStoreTask) -> None:
        """A look that a decision asks for."""
        self.sense(task.quarantined)

    def sense(self, quarantined: Mapping[str, frozenset[str]] | None = None) -> None:
        """Look at the store, a moment after the decision to do so."""
        assert self.policy is not None
        self.readings += 1
        self.wall += 0.001
        held = {(log, segment) for log, segments in (quarantined or {}).items() for segment in segments}
        candidates = []
        for path, log in self.logs.items():
            groups = tuple(
                GroupCandidate((g,), (f"id-{g}",), copy_bytes=50, gain_bytes=GAIN)
                for g in log.groups
                if (path, g) not in held
            )
            candidates.append(
                Candidate(
                    path, "", "1", groups, (), GAIN * len(groups), len(groups), sensed_at=self.wall, oldest_debt_at=5.0
                )
            )
        self.reading = ScanResult(
            number=self.readings,
            generation=self.policy.metadata.generation,
            started=self.wall,
            ended=self.wall,
            wall=self.wall,
            candidates=() if self.problem else tuple(candidates),
            problem=self.problem,
            problems=self.problems,
            measures=frozen({MISSING.name: self.missing_entries}),
            targets=frozenset(self.logs),
            identities=frozen({key: self.quarantine_identity.get(key, "id") for key in held}),
        )
        self.memory = store_work.ended(self.memory, StoreTask.SENSE)

    def look_ahead(self, task: RunStoreTask) -> None:
        """The scans of a preview: what the two specs select, at the same time, in a store of their own."""
        assert self.policy is not None
        assert task.proposed is not None
        before, memory = (self.reading, self.readings), self.memory
        scans = []
        for spec in (self.policy.spec, task.proposed):
            logs = self.logs
            excluded = spec.store.segment_logs.exclude if spec.store.segment_logs is not None else ()
            self.logs = {path: log for path, log in logs.items() if path.removeprefix("/ra/") not in excluded}
            self.sense(task.quarantined)
            assert self.reading is not None
            scans.append(self.reading)
            self.logs = logs
        (self.reading, self.readings), self.memory = before, store_work.ended(memory, task.task)
        meta = self.policy.metadata
        self.preview = PreviewScans(task.mark, meta.uid, meta.generation, scans[0], scans[1])
        self.previews += 1

    def snapshot(self) -> PolicySnapshot:
        return PolicySnapshot(
            namespace="ns",
            name="logs",
            now=Moment(self.wall, self.wall),
            policy=self.policy,
            jobs=tuple(JobView(job, self._lease(name)) for name, job in sorted(self.jobs.items())),
            stray_leases=tuple(
                lease for name in sorted(self.leases) if name not in self.jobs and (lease := self._lease(name))
            ),
            workers=tuple(
                WorkerLease(
                    OperatorIdentity(name, w.uid, "1"), w.slots, w.duration, max(0.0, self.wall - w.changed_at), w.owner
                )
                for name, w in sorted(self.workers.items())
                if w.has_lease
            ),
            processes=tuple(
                WorkerProcess(
                    name,
                    w.process == "ended",
                    self.wall - w.started,
                    w.message,
                    trouble=w.trouble,
                    ending=w.ending,
                    memory=w.memory,
                    executor_memory=w.executor_memory,
                    waited=w.waited,
                    leaving=w.leaving,
                )
                for name, w in sorted(self.workers.items())
                if w.process != "none"
            ),
            reading=self.reading,
            memory=self.memory,
            allowance=self.allowance,
            held_by=self.held_by,
            hold=self.hold,
            sink=self.sink,
            defaults=self.defaults,
            preview=self.preview,
            proposed_held_by=self.proposed_held_by,
        )

    def _lease(self, name: str) -> JobLease | None:
        lease = self.leases.get(name)
        if lease is None:
            return None
        return JobLease(
            OperatorIdentity(name, lease.uid, str(lease.version)),
            lease.holder,
            lease.token,
            lease.duration,
            max(0.0, self.wall - lease.changed_at),
            lease.progress,
            lease.bytes_per_second,
            lease.report,
        )

    # -- deciding and acting ----------------------------------------------------------------------

    def reconcile(self, *, crash_after: int | None = None) -> Decision:
        """One reconcile, carried out; dies after `crash_after` micro-steps."""
        snapshot = self.snapshot()
        decision = reconcile(snapshot)
        assert_rests(snapshot, decision)
        self.memory = decision.memory
        self._steps_left = crash_after
        try:
            for task in decision.store_tasks:
                self._run_store_task(task)
            self.memory = carry_out(self, decision)
        except Crash:
            self.restart()
            raise
        return decision

    def wrote(self) -> None:
        """One of the steps between which a coordinator may die."""
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                raise Crash

    def _run_store_task(self, task: RunStoreTask) -> None:
        if task.task is StoreTask.SENSE:
            self.look(task)
        elif task.task is StoreTask.PREVIEW:
            self.look_ahead(task)
        else:
            self.memory = store_work.swept(store_work.ended(self.memory, task.task), sweep_in=None, now=self.wall)
        self.wrote()

    def restart(self) -> None:
        """A new coordinator: no memory, no reading, silence measured afresh."""
        self.memory, self.reading, self.preview = Memory(), None, None
        for lease in self.leases.values():
            lease.changed_at = self.wall
        for worker in self.workers.values():
            worker.changed_at = self.wall

    def settle(self, *, limit: int = 60) -> Decision:
        """Reconcile until nothing acts any more, without time passing."""
        for _ in range(limit):
            decision = self.reconcile()
            if not decision.acts and not decision.store_tasks:
                return decision
        raise AssertionError(f"no rest after {limit} reconciles: {decision}")

    def rest(self) -> Decision:
        """Settle until the status is written, too: that may take a moment."""
        self.settle()
        self.wall += 1
        return self.settle()

    def put_lease(self, name: str, *, holder: str, token: int, duration: float) -> None:
        """A job's Lease, new or taken over."""
        self.leases[name] = SimLease(f"l{self.bump()}", self.version, holder, token, duration, self.wall)

    def start_worker(self, name: str, *, memory: int, executor_memory: int) -> None:
        """A worker's process begins."""
        assert self.policy is not None
        self.workers[name] = SimWorker(
            slots=self.policy.spec.workers.slots,
            changed_at=self.wall,
            uid=f"w{self.bump()}",
            owner=self.policy.metadata.uid,
            started=self.wall,
            memory=memory,
            executor_memory=executor_memory,
        )

    def is_current(self, about: OperatorIdentity) -> bool:
        job = self.jobs.get(about.name)
        return job is not None and job.metadata.resource_version == about.resource_version

    def lease_is_current(self, about: OperatorIdentity) -> bool:
        lease = self.leases.get(about.name)
        return lease is not None and (lease.uid, str(lease.version)) == (about.uid, about.resource_version)

    # -- workers ----------------------------------------------------------------------------------

    def announce(self, name: str | None = None) -> None:
        """Started workers announce themselves."""
        for key, worker in self.workers.items():
            if name in (None, key) and worker.process == "running":
                worker.has_lease, worker.changed_at = True, self.wall

    def renew(self, job: str, *, progress: int | None = None) -> None:
        lease = self.leases[job]
        lease.changed_at, lease.version, lease.progress = self.wall, int(self.bump()), progress

    def commit(self, job: str, token: int) -> bool:
        """What a worker's commit comes to: the store takes the equal token only, once per group."""
        spec = self.jobs[job].spec.sources.segment_log if job in self.jobs else None
        path = next((path for path, log in self.logs.items() if job in log.claimed), None)
        if path is None:
            return False
        log = self.logs[path]
        if log.claimed[job] != token or job in log.retired or spec is None:
            return False
        for group in spec.groups:
            name = group.segments[0]
            if name in log.groups:
                log.groups.remove(name)
                log.commits.append((job, token, name))
        return True

    def report(self, job: str, *, token: int | None = None, outcome: str = "Succeeded", **fields: Any) -> None:
        """A worker leaves its last word on the job's Lease."""
        lease = self.leases[job]
        token = lease.token if token is None else token
        reason = fields.pop("reason", "Completed" if outcome == "Succeeded" else "StoreUnreadable")
        if outcome == "Succeeded" and "receipt" not in fields:
            fields["receipt"] = self.receipt(job, token)
        lease.report = JobReport.from_object(
            {"token": token, "outcome": outcome, "reason": reason, "message": f"{outcome}!", **fields}
        )
        lease.changed_at, lease.version = self.wall, int(self.bump())

    def receipt(self, job: str, token: int) -> dict[str, Any]:
        done = [group for log in self.logs.values() for j, _, group in log.commits if j == job]
        return {
            "token": max(1, token),
            "worker": "w",
            "bytesReclaimed": GAIN * len(done),
            "bytesBefore": 150,
            "seconds": 1.0,
        }

    def finish(self, job: str) -> None:
        """The worker does the job and reports."""
        assert self.commit(job, self.leases[job].token)
        self.report(job)

    def work_off(self, then: Callable[[], None] = lambda: None) -> None:
        """Every job that waits is run, until none does. `then`: before the reports of a round of jobs are read."""
        for _ in range(40):
            self.announce()
            self.rest()
            running = self.in_state(P)
            if not running:
                return
            for name in running:
                self.finish(name)
            then()
            self.rest()
        raise AssertionError("work without an end")

    def die(self, worker: str, *, known: bool = True) -> None:
        """A worker's process ends; its launcher notices or not."""
        self.workers[worker].process = "ended" if known else "none"

    # -- looking ----------------------------------------------------------------------------------

    def state(self, job: str) -> JobState:
        return self.jobs[job].status.state

    @property
    def status(self) -> CompactionPolicyStatus:
        assert self.policy is not None
        return self.policy.status

    def pass_time(self, seconds: float, *, step: float = 5.0) -> None:
        """Time passes with a reconcile every `step` seconds; workers and their jobs renew."""
        end = self.wall + seconds
        while self.wall < end:
            self.wall = min(end, self.wall + step)
            self.renew_all()
            self.reconcile()

    def renew_all(self) -> None:
        """Workers and their jobs renew."""
        for worker in self.workers.values():
            worker.changed_at = self.wall
        for job in self.leases:
            self.renew(job)

    def only_job(self) -> str:
        (name,) = self.jobs
        return name

    def in_state(self, state: JobState) -> list[str]:
        return [name for name in sorted(self.jobs) if self.state(name) == state]

    @property
    def committed(self) -> int:
        """Bytes that the store really gave back."""
        return GAIN * sum(len(log.commits) for log in self.logs.values())


def cluster_with(logs: int, **spec: Any) -> PlainCluster:
    """A cluster at rest with so many logs of one group each."""
    world = PlainCluster(**spec)
    for number in range(logs):
        world.add_log(f"/ra/{number}")
    world.rest()
    return world


__all__ = ["GAIN", "Crash", "Log", "ObsoleteSource", "PlainCluster", "SimLease", "SimWorker", "cluster_with"]
