"""The cluster of a demo: the API server by kubectl, two replicas of the operator, and accidents on purpose."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.api.names import (
    ANNOTATION_USED_BY,
    API_VERSION,
    CATALOG_KIND,
    COORDINATOR_LEASE,
    JOB_KIND,
    POLICY_KIND,
)
from compaction.api.policy.policy import CompactionPolicy
from compaction.local.cluster.control_plane import LocalState, read_state, remove_state, write_state
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn, wait_gone
from compaction.storage.objects.store import ObjectStorage
from demos.proving import named_damage

# The API server as a user of the command line sees it: kubectl, and nothing else.

NAMESPACE: Final = "compaction-demo"
EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
DONE: Final = (JobState.SUCCEEDED, JobState.FAULTY)


def policy_of(name: str, store: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A CompactionPolicy as a document. Short times, so that one can watch all of it."""
    return {
        "apiVersion": API_VERSION,
        "kind": POLICY_KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "store": store,
            "trigger": {"interval": "3s"},
            "limits": {"maxConcurrentJobs": 4},
            "workers": {"launcher": "process", "max": 1, "slots": 2, "idleSeconds": 60, "sparkMaster": "local[2]"},
            "successfulJobsHistoryLimit": 500,
            "failedJobsHistoryLimit": 500,
            **spec,
        },
    }


def secrets_yaml(secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Secrets by name as YAML. It is given to kubectl and written nowhere."""
    return str(
        yaml.safe_dump_all(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "annotations": {ANNOTATION_USED_BY: f"{POLICY_KIND}/*, {CATALOG_KIND}/*"},
                },
                "stringData": dict(data),
            }
            for name, data in secrets.items()
        )
    )


@dataclass(frozen=True, slots=True)
class DemoObservation:
    """One reading of the cluster: the policy (None before it exists), its jobs by age, and who leads."""

    policy: CompactionPolicy | None
    jobs: tuple[CompactionJob, ...]
    leader: str | None

    @property
    def quiet(self) -> bool:
        """True when all jobs have ended, and the last scan of the operator, which came after that, made no new ones."""
        if self.policy is None or not self.jobs or any(job.status.state not in DONE for job in self.jobs):
            return False
        status = self.policy.status
        ends = [job.status.finished_at for job in self.jobs if job.status.finished_at is not None]
        return (
            status.active == status.queued == 0
            and status.last_sense_time is not None
            and status.last_sense_time >= max(ends)
        )

    @property
    def settled(self) -> bool:
        """True when that scan found nothing left to do, too."""
        debt = self.policy.status.debt if self.policy is not None else None
        return self.quiet and debt is not None and debt.sources == 0


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """kubectl with a kubeconfig, in the demo's namespace, where there is one policy, or one catalog. `resources`: what
    a user lists at the end, the one that was applied first.
    """

    kubectl: Path
    kubeconfig: Path
    policy: str
    resources: str = "cpol,cjob,lease"

    def run(self, *arguments: str, check: bool = True, input: str | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises:
            DemoError: it failed (with `check`); carries kubectl's own words.
        """
        command = [str(self.kubectl), f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, input=input)
        if check and answer.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {answer.stderr.strip() or answer.stdout.strip()}")
        return answer.stdout

    def plugin(self, *arguments: str) -> str:
        """What `kubectl compaction ARGUMENTS` says. DemoError: it failed."""
        command = [sys.executable, "-m", "compaction.cli.main", *arguments, "-n", NAMESPACE]
        command += ["--kubeconfig", str(self.kubeconfig)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            said = answer.stderr.strip() or answer.stdout.strip()
            raise DemoError(f"compactor {' '.join(arguments)} failed: {said}")
        return answer.stdout

    def look(self) -> DemoObservation:
        """Policy, jobs and coordinator Lease in one request each, by one kubectl."""
        items: Sequence[dict[str, Any]] = json.loads(self.run("get", "cpol,cjob,lease", "-o", "json"))["items"]
        policies = [CompactionPolicy.from_object(item) for item in items if item["kind"] == POLICY_KIND]
        jobs = [CompactionJob.from_object(item) for item in items if item["kind"] == JOB_KIND]
        holders = [
            item["spec"].get("holderIdentity")
            for item in items
            if item["kind"] == "Lease" and item["metadata"]["name"] == COORDINATOR_LEASE
        ]
        return DemoObservation(
            policy=next((policy for policy in policies if policy.metadata.name == self.policy), None),
            jobs=tuple(sorted(jobs, key=lambda job: (job.metadata.creation_timestamp or EARLIEST, job.metadata.name))),
            leader=(holders[0] or None) if holders else None,
        )


# The operator as a user would start it: two replicas of `compactor operator`, and the workers they launch.
#
# Replicas are stopped by the process ids kept here. Workers outlive a coordinator on purpose, so what is left of them
# is found in the launcher's records (`<state-dir>/workers/*.json`) and stopped by pid and start time.

REPLICAS: Final = ("replica-a", "replica-b")
STOP_SECONDS: Final = 30.0
WORKER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """The operator's processes, their logs and their state in `directory`."""

    directory: Path
    processes: tuple[ProcessId, ...]

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        return tuple(process for process in self.processes if process.alive())

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def start_replicas(directory: Path, *, kubeconfig: Path, detached: bool) -> Replicas:
    """Start the replicas; they write to `directory`/<name>.log. `detached`: they outlive this process.

    Raises:
        DemoError: one ended at once; names its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    started: list[ProcessId] = []
    for name in REPLICAS:
        command = [sys.executable, "-m", "compaction.cli.main", "operator", "--namespace", NAMESPACE]
        command += ["--kubeconfig", str(kubeconfig), "--identity", name, "--state-dir", str(directory / "state")]
        # Two replicas on one machine: each gets free ports.
        command += ["--metrics-port", "0", "--health-port", "0"]
        child = spawn(command, cwd=directory, log=directory / f"{name}.log", detached=detached)
        process = ProcessId.of(name, child.pid)
        if process is None:
            raise DemoError(f"{name} of the operator ended at once: see {directory / f'{name}.log'}")
        started.append(process)
        write_state(directory, LocalState(url="", kubeconfig=kubeconfig, processes=tuple(started)))
    return Replicas(directory, tuple(started))


def stop_replicas(directory: Path) -> None:
    """Stop recorded replicas (standby first, so that none takes over meanwhile) and every worker that is left."""
    state = read_state(directory) if directory.is_dir() else None
    if state is not None:
        for process in reversed(state.processes):
            process.send(signal.SIGTERM)
        for process in reversed(state.processes):
            wait_gone(process, timeout=STOP_SECONDS)
            process.stop()
    for worker in leftover_workers(directory):
        worker.send(signal.SIGTERM, group=True)
        if not wait_gone(worker, timeout=WORKER_SECONDS):
            worker.send(signal.SIGKILL, group=True)
            wait_gone(worker, timeout=WORKER_SECONDS)
    # A worker keeps its Secrets as long as it lives; the operator, who would remove them then, is gone.
    for secrets in (directory / "state" / "workers").glob("*.secrets"):
        shutil.rmtree(secrets)
    if state is not None:
        remove_state(directory)


def leftover_workers(directory: Path) -> list[ProcessId]:
    """Workers that still run, by the launcher's records; each leads a session of its own, its Spark JVM included."""
    return [worker for worker in _recorded_workers(directory / "state" / "workers") if worker.alive()]


def _recorded_workers(directory: Path) -> Iterator[ProcessId]:
    for path in sorted(directory.glob("*.json")):
        # A record that is empty or gone belongs to a worker that was never started or has ended.
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            record = json.loads(path.read_text())
            process = ProcessId.of(str(record["name"]), int(record["pid"]))
            if process is not None and process.started.endswith(f":{record['startTicks']}"):
                yield process


# Accidents on purpose: a worker dies in the middle of a job, as a machine that loses its power; the coordinator dies;
# an object loses bytes.
#
# A worker is stopped (SIGSTOP) first and inspected then, so that it is certain that it had a job at the moment of its
# death.

GONE_SECONDS: Final = 10.0
AFTER_JOBS: Final = 4
DAMAGED_BYTES: Final = 64


@dataclass
class Accident:
    """`worker` is the one that was killed (empty before), `jobs` the tokens of what it was at. `after_jobs` have
    succeeded before, so that one has seen how it goes without.
    """

    cluster: DemoCluster
    operator: Path
    after_jobs: int = AFTER_JOBS
    worker: str = ""
    jobs: dict[str, int] = field(default_factory=dict)

    def happen(self, seen: DemoObservation) -> bool:
        """Kill a worker that has a job, once there was something to see. True when it has just happened."""
        succeeded = sum(job.status.state is JobState.SUCCEEDED for job in seen.jobs)
        if self.worker or succeeded < self.after_jobs:
            return False
        for worker in leftover_workers(self.operator):
            worker.send(signal.SIGSTOP, group=True)
            jobs = _in_progress(self.cluster.look(), worker.name)
            if jobs:
                worker.send(signal.SIGKILL, group=True)
                wait_gone(worker, timeout=GONE_SECONDS)
                self.worker = worker.name
                self.jobs = {job.metadata.name: job.status.fencing_token for job in jobs}
                return True
            worker.send(signal.SIGCONT, group=True)
        return False

    def story(self) -> str:
        """What has happened, for a person."""
        return f"killed (SIGKILL): worker {self.worker}, in the middle of {', '.join(self.jobs)}"

    def replaced(self, seen: DemoObservation) -> bool:
        """Whether another worker has taken its place, and has got a job done."""
        workers = {job.status.receipt.worker for job in seen.jobs if job.status.receipt is not None}
        return bool(self.worker) and bool(workers - {self.worker})

    def survived(self, seen: DemoObservation) -> tuple[str, ...]:
        """Those of its jobs that ended later, with a larger token: they succeeded, or named what is damaged."""
        return tuple(
            job.metadata.name
            for job in seen.jobs
            if job.metadata.name in self.jobs
            and (job.status.state is JobState.SUCCEEDED or named_damage(job))
            and job.status.fencing_token > self.jobs[job.metadata.name]
        )


@dataclass
class Succession:
    """The coordinator is killed, and the replica that stood by leads. `killed`: its name, empty before; `at`: when."""

    replicas: Replicas
    killed: str = ""
    at: datetime | None = None

    def happen(self, seen: DemoObservation) -> bool:
        """Kill the coordinator while a job runs that it has assigned. True when it has just happened."""
        running = any(job.status.state is JobState.IN_PROGRESS for job in seen.jobs)
        leader = next((item for item in self.replicas.alive if item.name == seen.leader), None)
        if self.killed or leader is None or not running:
            return False
        leader.send(signal.SIGKILL)
        wait_gone(leader, timeout=GONE_SECONDS)
        self.killed, self.at = leader.name, datetime.now(UTC)
        return True

    def done_since(self, seen: DemoObservation) -> tuple[str, ...]:
        """Jobs that the other replica, which leads now, has created and that have succeeded."""
        if self.at is None or seen.leader in (None, self.killed):
            return ()
        return tuple(
            job.metadata.name
            for job in seen.jobs
            if job.status.state is JobState.SUCCEEDED and (job.metadata.creation_timestamp or self.at) > self.at
        )


def damage(objects: ObjectStorage, path: str) -> bytes:
    """Bytes in the first third of an object are inverted, as bad storage does it: its end still reads well. What it was
    before.
    """
    before = objects.get(path)
    data, begin = bytearray(before), len(before) // 3
    data[begin : begin + DAMAGED_BYTES] = bytes(byte ^ 0xFF for byte in data[begin : begin + DAMAGED_BYTES])
    objects.put(path, bytes(data))
    return before


def _in_progress(seen: DemoObservation, worker: str) -> list[CompactionJob]:
    return [job for job in seen.jobs if job.status.state is JobState.IN_PROGRESS and job.status.worker == worker]
