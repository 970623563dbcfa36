"""The worker's side of the lease protocol, on Lease objects (implements `worker.ports.LeasePort`).

* The worker's own Lease announces it; it owns nothing else.
* Job Leases are made by the coordinator. The worker finds those that name it, renews them, and leaves its report on
  them; it never creates or deletes one, and never writes to one that has another holder or token.

Every write is a compare-and-set: a conflict means read again and look whether the Lease still is what this worker may
write to. A write whose answer was lost is simply made again: the conflict with itself is recognised by the same look.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, cast

import structlog
from pydantic import ValidationError

from compaction.api.base import first_problem
from compaction.api.job.job import CompactionJob
from compaction.api.job.job_status import JobReport
from compaction.api.names import (
    ANNOTATION_BYTES_PER_SECOND,
    ANNOTATION_HOST,
    ANNOTATION_PID,
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    ANNOTATION_SLOTS,
    ANNOTATION_STOP,
    ANNOTATION_VERSION,
    API_VERSION,
    COMPONENT_JOB,
    COMPONENT_WORKER,
    LABEL_COMPONENT,
    LABEL_WORKER,
    POLICY_KIND,
    child_labels,
)
from compaction.api.text.printing import INT64_MAX, number_in
from compaction.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    GoneError,
    InvalidAssignmentError,
    MalformedLeaseError,
    NotFoundError,
)
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, ApiClient, Obj, WatchEvent
from compaction.kube.client.config import OWN_VERSION, ApiConnection
from compaction.leases.record import Lease, LeaseRecord
from compaction.worker.errors import LeaseLostError, PortUnavailableError, StopRequestedError, WorkerLeaseGoneError
from compaction.worker.ports import Assignment, JobOffer, LeasePort

log = structlog.get_logger(__name__)

CLOSING_SECONDS: Final = 0.2
BURST_SECONDS: Final = 0.1
_TRIES: Final = 4
"""Looks after conflicts in one call. Only the coordinator writes to the same Leases, a few times in a job's life."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The worker's identity on the API server. `lease_seconds` is the duration of its own Lease."""

    name: str
    namespace: str
    policy: str
    lease_seconds: int


def lease_port(
    connection: ApiConnection, identity: WorkerIdentity
) -> Callable[[], AbstractAsyncContextManager[LeasePort]]:
    """A factory for the heartbeat: it opens a client of its own, inside the heartbeat's loop."""

    @asynccontextmanager
    async def open_port() -> AsyncIterator[LeasePort]:
        deadline = identity.lease_seconds / 3
        async with ApiClient(connection, user_agent="compactor-worker", deadline=deadline) as client:
            yield KubeLeasePort(client, identity)
        # A watch that was cancelled closes its TLS connection in later turns of the loop, which ends here.
        await asyncio.sleep(CLOSING_SECONDS)

    return open_port


@dataclass(slots=True)
class KubeLeasePort:
    """See `worker.ports.LeasePort`. One event loop, one caller per Lease at a time."""

    client: ApiClient
    identity: WorkerIdentity
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _own: Lease | None = None
    _jobs: dict[tuple[str, int], Lease] = field(default_factory=dict)
    _version: str | None = None

    # --- the worker's own Lease ---

    async def announce(self, *, slots: int) -> None:
        """See the port. WorkerLeaseGoneError when the policy is gone or the name belongs to another object."""
        name, namespace = self.identity.name, self.identity.namespace
        try:
            with _unavailable():
                policy = await self.client.get(COMPACTION_POLICIES, self.identity.policy, namespace=namespace)
                lease = self._announcement(policy["metadata"]["uid"], slots=slots)
                self._own = Lease.parse(await self.client.create(LEASES, lease.body()))
        except NotFoundError as error:
            # Without its policy nothing would own the Lease, and no job would come.
            raise WorkerLeaseGoneError(f"policy {namespace}/{self.identity.policy} does not exist: {error}") from error
        except AlreadyExistsError as error:
            # Ours, if an earlier call took effect and its answer was lost.
            found = await self._read_own()
            if found.annotations.get(ANNOTATION_PID) != str(os.getpid()):
                raise WorkerLeaseGoneError(f"worker {namespace}/{name} exists already: names are used once") from error
            self._own = found

    def _announcement(self, policy_uid: str, *, slots: int) -> Lease:
        now, name = self.clock(), self.identity.name
        owner = {
            "apiVersion": API_VERSION,
            "kind": POLICY_KIND,
            "name": self.identity.policy,
            "uid": policy_uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
        return Lease(
            name=name,
            namespace=self.identity.namespace,
            record=LeaseRecord(name, self.identity.lease_seconds, 0, acquire_time=now, renew_time=now),
            labels=child_labels(policy=self.identity.policy, component=COMPONENT_WORKER),
            annotations={
                ANNOTATION_SLOTS: str(slots),
                ANNOTATION_PID: str(os.getpid()),
                ANNOTATION_HOST: socket.gethostname(),
                ANNOTATION_VERSION: OWN_VERSION,
            },
            owner_references=(owner,),
        )

    async def renew_worker(self, *, slots: int) -> None:
        """See the port."""
        lease = self._own or await self._read_own()
        for _ in range(_TRIES):
            renewed = lease.with_record(lease.record.renewed(now=self.clock())).annotate({ANNOTATION_SLOTS: str(slots)})
            try:
                self._own = await self._put(renewed)
            except NotFoundError as error:
                raise WorkerLeaseGoneError(f"the Lease of worker {self.identity.name} was deleted") from error
            except ConflictError:
                # Another writer, such as a request to stop, or an earlier write of ours whose answer was lost: renew
                # that version.
                lease = await self._read_own()
                continue
            if self._own.annotations.get(ANNOTATION_STOP) == "true":
                raise StopRequestedError(f"the Lease of worker {self.identity.name} says: stop")
            return
        raise PortUnavailableError(f"the Lease of worker {self.identity.name} changes all the time")

    async def _read_own(self) -> Lease:
        try:
            lease = await self._get(self.identity.name)
        except NotFoundError as error:
            raise WorkerLeaseGoneError(f"the Lease of worker {self.identity.name} was deleted") from error
        if lease.record.holder != self.identity.name:
            raise WorkerLeaseGoneError(f"the Lease of worker {self.identity.name} is held by {lease.record.holder}")
        return lease

    async def leave(self) -> None:
        """See the port."""
        if self._own is None:
            return
        try:
            with _unavailable():
                await self.client.delete(
                    LEASES, self.identity.name, namespace=self.identity.namespace, uid=self._own.uid
                )
        except (NotFoundError, ConflictError):
            return  # gone already, or of the same name but not ours

    # --- assignments ---

    async def offers(self, *, wait: bool) -> Sequence[JobOffer]:
        """See the port. A job that already carries this attempt's report is no offer any more."""
        if wait and self._version is not None:
            await self._until_changed(self._version)
        with _unavailable():
            listed = await self.client.list(LEASES, namespace=self.identity.namespace, labels=self._selector)
        if wait:
            self._version = listed.resource_version
        leases = {_key(lease): lease for item in listed.items if (lease := self._mine(item)) is not None}
        # What was renewed since is kept: it carries the newer version.
        self._jobs = {key: self._jobs.get(key, lease) for key, lease in leases.items()}
        return [
            JobOffer(
                job_name=lease.name,
                token=lease.record.transitions,
                lease_seconds=float(lease.record.duration_seconds or self.identity.lease_seconds),
                bytes_per_second=_granted(lease),
            )
            for lease in leases.values()
        ]

    @property
    def _selector(self) -> str:
        return f"{LABEL_WORKER}={self.identity.name},{LABEL_COMPONENT}={COMPONENT_JOB}"

    def _mine(self, item: Obj) -> Lease | None:
        """The Lease if it is an attempt of this worker that has no report yet."""
        try:
            lease = Lease.parse(item)
        except MalformedLeaseError as error:
            # Left to the coordinator, which takes such a Lease for one that is not held, and ends the attempt.
            log.warning("a job's Lease cannot be read", error=str(error))
            return None
        reported = _report_token(lease) == lease.record.transitions
        return lease if lease.record.holder == self.identity.name and not reported else None

    async def _until_changed(self, version: str) -> None:
        """Watch until an assignment may have come, gone or changed; at most half a lease, then it is time to look.

        The watch is only a faster look: whatever is wrong with it, the list that follows finds out.
        """
        try:
            async with asyncio.timeout(self.identity.lease_seconds / 2):
                watch = self.client.watch(
                    LEASES, namespace=self.identity.namespace, labels=self._selector, resource_version=version
                )
                async with aclosing(cast(AsyncGenerator[WatchEvent, None], watch)) as events:
                    async for event in events:
                        if event.type != "BOOKMARK" and not self._is_renewal(event):
                            # Assignments come in bursts: one list for all of a burst, not one for each.
                            await asyncio.sleep(BURST_SECONDS)
                            return
        except (TimeoutError, GoneError):
            # Half a lease is over, or the version is too old to watch from: the list that follows begins at a new one.
            return
        except ApiError as error:
            raise PortUnavailableError(str(error)) from error

    def _is_renewal(self, event: WatchEvent) -> bool:
        """Our own renewals are seen as well."""
        lease = self._mine(event.object)
        return event.type == "MODIFIED" and lease is not None and _key(lease) in self._jobs

    async def fetch(self, offer: JobOffer) -> Assignment:
        """See the port."""
        try:
            with _unavailable():
                item = await self.client.get(COMPACTION_JOBS, offer.job_name, namespace=self.identity.namespace)
            spec = CompactionJob.from_object(item).spec
        except NotFoundError as error:
            # The coordinator deletes a job before its Lease: the attempt has nothing more to hold.
            raise LeaseLostError(f"job {offer.job_name} does not exist (any more)") from error
        except ValidationError as error:
            # Another read would find the same spec, so this is reported as the fault of the job.
            raise InvalidAssignmentError(f"job {offer.job_name}: {first_problem(error)}") from error
        return Assignment(
            job_name=offer.job_name,
            namespace=self.identity.namespace,
            token=offer.token,
            lease_seconds=offer.lease_seconds,
            spec=spec,
            bytes_per_second=offer.bytes_per_second,
        )

    # --- job Leases ---

    async def renew_job(self, job_name: str, token: int, *, progress: int) -> int | None:
        """See the port. A share that the coordinator has raised is met here: as a conflict, which reads the Lease."""
        return _granted(await self._write_job(job_name, token, {ANNOTATION_PROGRESS: str(progress)}))

    async def report(self, job_name: str, report: JobReport) -> None:
        """See the port."""
        await self._write_job(job_name, report.token, {ANNOTATION_REPORT: report.to_json()})

    async def _write_job(self, job_name: str, token: int, annotations: dict[str, str | None]) -> Lease:
        """Renew a job's Lease with these annotations, as long as it is this very attempt's; as it is then."""
        lease = self._jobs.get((job_name, token)) or await self._read_job(job_name, token)
        for _ in range(_TRIES):
            changed = lease.with_record(lease.record.renewed(now=self.clock())).annotate(annotations)
            try:
                written = self._jobs[job_name, token] = await self._put(changed)
            except NotFoundError as error:
                raise LeaseLostError(f"the Lease of job {job_name} is gone") from error
            except ConflictError:
                # A raised share, or an earlier write of ours whose answer was lost; the read raises when it was a
                # takeover.
                lease = await self._read_job(job_name, token)
            else:
                return written
        raise PortUnavailableError(f"the Lease of job {job_name} changes all the time")

    async def _read_job(self, job_name: str, token: int) -> Lease:
        try:
            lease = await self._get(job_name)
        except NotFoundError as error:
            raise LeaseLostError(f"the Lease of job {job_name} is gone") from error
        except MalformedLeaseError as error:
            # A Lease whose holder and token cannot be read proves nothing, and without proof nothing may be committed.
            raise LeaseLostError(str(error)) from error
        record = lease.record
        if record.holder != self.identity.name or record.transitions != token:
            raise LeaseLostError(
                f"the Lease of job {job_name} has holder {record.holder or 'nobody'} and token {record.transitions}, "
                f"not {self.identity.name} and {token}"
            )
        return lease

    # --- requests ---

    async def _get(self, name: str) -> Lease:
        with _unavailable():
            return Lease.parse(await self.client.get(LEASES, name, namespace=self.identity.namespace))

    async def _put(self, lease: Lease) -> Lease:
        with _unavailable():
            return Lease.parse(await self.client.replace(LEASES, lease.body()))


def _key(lease: Lease) -> tuple[str, int]:
    return lease.name, lease.record.transitions


def _granted(lease: Lease) -> int | None:
    """The attempt's share of the policy's bytes per second; None without a limit, or when it is no positive number."""
    return number_in(lease.annotations.get(ANNOTATION_BYTES_PER_SECOND), limit=INT64_MAX) or None


def _report_token(lease: Lease) -> int | None:
    """The token of the report on a Lease; None without a readable one."""
    try:
        token = json.loads(lease.annotations.get(ANNOTATION_REPORT, "{}")).get("token")
    except (ValueError, AttributeError, RecursionError):
        # Any user who may write Leases may put anything here: what is no report does not end the attempt.
        return None
    return token if isinstance(token, int) else None


@contextmanager
def _unavailable() -> Iterator[None]:
    """Any answer that is no decision about the object means: not now, and the outcome is unknown."""
    try:
        yield
    except (NotFoundError, ConflictError, AlreadyExistsError):
        raise
    except ApiError as error:
        raise PortUnavailableError(str(error)) from error
