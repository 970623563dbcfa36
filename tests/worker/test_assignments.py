"""The worker's side of the lease protocol on a real API server: announcing, assignments, renewals, reports, losses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.names import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    ANNOTATION_SLOTS,
    ANNOTATION_STOP,
    ANNOTATION_VERSION,
    API_VERSION,
    COMPONENT_JOB,
    GROUP,
    LABEL_COMPONENT,
    LABEL_WORKER,
    child_labels,
)
from compaction.errors import ApiUnavailableError, ConflictError, InvalidAssignmentError
from compaction.kube.assignments import KubeLeasePort, WorkerIdentity, lease_port
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, ApiClient, Obj, Resource
from compaction.kube.client.config import ApiConnection, load_connection, no_token
from compaction.leases.record import Lease, LeaseRecord
from compaction.worker.errors import LeaseLostError, PortUnavailableError, StopRequestedError, WorkerLeaseGoneError
from support.clocks import PATIENCE_SECONDS
from support.processes.worker_ports import small_spec

pytestmark = pytest.mark.apiserver

POLICY = "policy"
WORKER = "policy-w-abcde"
JOB = "policy-0123456789"
DONE = JobReport(token=4, outcome=ReportOutcome.SUCCEEDED, reason=JobReason.COMPLETED, message="done")

Scenario = Callable[["BothSides"], Coroutine[Any, Any, None]]


class FlakyClient(ApiClient):
    """Writes that take effect although the answer is lost: as many as `lost`."""

    lost = 0

    async def replace(
        self, resource: Resource, body: Obj, *, subresource: str | None = None, deadline: float | None = None
    ) -> Obj:
        answer = await super().replace(resource, body, subresource=subresource, deadline=deadline)
        self._lose()
        return answer

    async def create(
        self,
        resource: Resource,
        body: Obj,
        *,
        namespace: str | None = None,
        strict: bool = False,
        deadline: float | None = None,
    ) -> Obj:
        answer = await super().create(resource, body, namespace=namespace, strict=strict, deadline=deadline)
        self._lose()
        return answer

    def _lose(self) -> None:
        if self.lost:
            self.lost -= 1
            raise ApiUnavailableError("the answer was lost")


@dataclass(frozen=True, slots=True)
class BothSides:
    """A worker's port, and the coordinator's hands on the same API server."""

    port: KubeLeasePort
    worker: FlakyClient
    coordinator: ApiClient
    namespace: str

    async def lease(self, name: str) -> Lease:
        return Lease.parse(await self.coordinator.get(LEASES, name, namespace=self.namespace))

    async def assign(self, *, job: str = JOB, token: int = 4, worker: str = WORKER, **annotations: str) -> Lease:
        """The coordinator's step 3: create or replace the job's Lease."""
        now = datetime.now(UTC)
        labels = child_labels(policy=POLICY, component=COMPONENT_JOB) | {LABEL_WORKER: worker}
        record = LeaseRecord(worker, 15, token, acquire_time=now, renew_time=now)
        lease = Lease(name=job, namespace=self.namespace, record=record, labels=labels)
        lease = lease.annotate({f"{GROUP}/{name.replace('_', '-')}": value for name, value in annotations.items()})
        return Lease.parse(await self.coordinator.create(LEASES, lease.body()))

    async def change(self, name: str, patch: Obj) -> None:
        await self.coordinator.patch(LEASES, name, patch, namespace=self.namespace)

    async def delete(self, name: str) -> None:
        await self.coordinator.delete(LEASES, name, namespace=self.namespace)

    async def create_job(self, spec: CompactionJobSpec, *, name: str = JOB) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "CompactionJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec.to_object(),
        }
        await self.coordinator.create(COMPACTION_JOBS, body)


@pytest.fixture
def play(control_plane: Any, namespace: str) -> Callable[[Scenario], None]:
    """Play a scenario against the API server; the policy exists, nothing else does."""
    connection: ApiConnection = load_connection(control_plane.kubeconfig)
    policy = {
        "apiVersion": API_VERSION,
        "kind": "CompactionPolicy",
        "metadata": {"name": POLICY, "namespace": namespace},
        "spec": {"store": {"segmentLogs": {"root": "/data"}}},
    }

    @asynccontextmanager
    async def world() -> AsyncIterator[BothSides]:
        async with ApiClient(connection) as coordinator, FlakyClient(connection) as worker:
            await coordinator.create(COMPACTION_POLICIES, policy)
            identity = WorkerIdentity(name=WORKER, namespace=namespace, policy=POLICY, lease_seconds=15)
            yield BothSides(KubeLeasePort(worker, identity), worker, coordinator, namespace)

    async def run(scenario: Scenario) -> None:
        async with world() as made:
            await scenario(made)

    return lambda scenario: asyncio.run(run(scenario))


Play = Callable[[Scenario], None]


async def raises(kind: type[Exception], call: Awaitable[Any], match: str | None = None) -> None:
    with pytest.raises(kind, match=match):
        await call


def test_announced_worker_renews_and_leaves(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=3)
        lease = await w.lease(WORKER)
        assert lease.record.holder == WORKER
        assert lease.annotations[ANNOTATION_SLOTS] == "3"
        assert lease.annotations[ANNOTATION_VERSION] == version("compaction-operator")
        assert lease.labels[LABEL_COMPONENT] == "worker"
        policy = await w.coordinator.get(COMPACTION_POLICIES, POLICY, namespace=w.namespace)
        assert [owner["uid"] for owner in lease.owner_references] == [policy["metadata"]["uid"]]
        await w.port.renew_worker(slots=0)
        renewed = await w.lease(WORKER)
        assert renewed.annotations[ANNOTATION_SLOTS] == "0"
        assert renewed.record.renew_time is not None
        assert lease.record.renew_time is not None
        assert renewed.record.renew_time > lease.record.renew_time
        await w.port.leave()
        await w.port.leave()
        await raises(WorkerLeaseGoneError, w.port.renew_worker(slots=1), "deleted")

    play(scenario)


def test_announcing_twice_after_a_lost_answer_is_once(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        w.worker.lost = 1
        await raises(PortUnavailableError, w.port.announce(slots=1))
        await w.port.announce(slots=1)
        await w.port.renew_worker(slots=1)

    play(scenario)


def test_name_of_another_worker_and_missing_policy(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=1)
        await w.change(WORKER, {"metadata": {"annotations": {"compaction.dev/pid": "1"}}})
        await raises(WorkerLeaseGoneError, w.port.announce(slots=1), "used once")
        await w.coordinator.delete(COMPACTION_POLICIES, POLICY, namespace=w.namespace)
        await raises(WorkerLeaseGoneError, w.port.announce(slots=1), "policy .* does not exist")

    play(scenario)


def test_stop_annotation_is_seen_at_the_next_renewal_and_kept(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=1)
        await w.change(WORKER, {"metadata": {"annotations": {ANNOTATION_STOP: "true"}}})
        for _ in range(2):
            await raises(StopRequestedError, w.port.renew_worker(slots=1))
        assert (await w.lease(WORKER)).annotations[ANNOTATION_STOP] == "true"

    play(scenario)


def test_worker_lease_taken_or_deleted(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=1)
        await w.change(WORKER, {"spec": {"holderIdentity": "someone"}})
        await raises(WorkerLeaseGoneError, w.port.renew_worker(slots=1), "held by someone")
        await w.delete(WORKER)
        await raises(WorkerLeaseGoneError, w.port.renew_worker(slots=1), "deleted")

    play(scenario)


def test_worker_lease_deleted_between_two_renewals(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=1)
        await w.delete(WORKER)
        await raises(WorkerLeaseGoneError, w.port.renew_worker(slots=1), "deleted")

    play(scenario)


def test_assignment_is_offered_as_soon_as_it_exists(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        assert await w.port.offers(wait=True) == []
        waiting = asyncio.create_task(_coroutine(w.port.offers(wait=True)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await w.assign(job="of-another", worker="somebody-else")
        await w.assign()
        async with asyncio.timeout(PATIENCE_SECONDS):
            (offer,) = await waiting
        assert (offer.job_name, offer.token, offer.lease_seconds) == (JOB, 4, 15.0)
        spec = small_spec(Path("/data/log"))
        await w.create_job(spec)
        assignment = await w.port.fetch(offer)
        assert assignment.spec == spec
        assert (assignment.job_name, assignment.token, assignment.namespace) == (JOB, 4, w.namespace)

    play(scenario)


@pytest.mark.parametrize(("written", "granted"), [("5000000", 5_000_000), ("0", None), ("fast", None), ("-1", None)])
def test_the_share_of_the_bytes_per_second_comes_with_the_assignment(
    play: Play, written: str, granted: int | None
) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=2)
        await w.assign(bytes_per_second=written)
        (offer,) = await w.port.offers(wait=False)
        await w.create_job(small_spec(Path("/data/log")))
        assert (offer.bytes_per_second, (await w.port.fetch(offer)).bytes_per_second) == (granted, granted)
        await w.port.renew_job(JOB, 4, progress=5)
        assert (await w.lease(JOB)).annotations["compaction.dev/bytes-per-second"] == written

    play(scenario)


def test_a_share_that_the_coordinator_has_raised_is_found_at_the_next_renewal(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.port.announce(slots=2)
        await w.assign(bytes_per_second="500")
        await w.port.offers(wait=False)
        assert await w.port.renew_job(JOB, 4, progress=5) == 500
        raised = (await w.lease(JOB)).annotate({"compaction.dev/bytes-per-second": "1000"})
        await w.coordinator.replace(LEASES, raised.body())
        assert await w.port.renew_job(JOB, 4, progress=6) == 1000
        lease = await w.lease(JOB)
        assert lease.annotations[ANNOTATION_PROGRESS] == "6"
        assert lease.annotations["compaction.dev/bytes-per-second"] == "1000"
        assert lease.record.renew_time != raised.record.renew_time

    play(scenario)


async def _coroutine(call: Awaitable[Any]) -> Any:
    return await call


def test_own_renewals_do_not_wake_the_worker_but_withdrawal_does(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        assert len(await w.port.offers(wait=True)) == 1
        waiting = asyncio.create_task(_coroutine(w.port.offers(wait=True)))
        await w.port.renew_job(JOB, 4, progress=10)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await w.delete(JOB)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await waiting == []

    play(scenario)


def test_watch_of_a_forgotten_version_starts_over(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        w.port._version = "1"
        await w.assign()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert len(await w.port.offers(wait=True)) == 1

    play(scenario)


def test_job_that_is_gone_or_of_no_known_kind(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        (offer,) = await w.port.offers(wait=False)
        await raises(LeaseLostError, w.port.fetch(offer), "does not exist")

    play(scenario)


def test_spec_that_cannot_be_understood(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.create_job(small_spec())
        (offer,) = await w.port.offers(wait=False)
        read = w.worker.get

        async def newer(resource: Resource, name: str, **more: Any) -> Obj:
            item = await read(resource, name, **more)
            item["spec"]["kind"] = "NextRewrite"
            return item

        monkeypatch.setattr(w.worker, "get", newer)
        await raises(InvalidAssignmentError, w.port.fetch(offer), "spec.kind")

    play(scenario)


def test_renewal_carries_progress_and_keeps_everything_else(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        before = await w.assign()
        await w.port.renew_job(JOB, 4, progress=37)
        after = await w.lease(JOB)
        assert after.annotations == {ANNOTATION_PROGRESS: "37"}
        assert after.labels == before.labels
        assert (after.record.holder, after.record.transitions) == (WORKER, 4)
        assert after.record.acquire_time == before.record.acquire_time

    play(scenario)


def test_conflict_with_the_coordinators_annotation_is_no_loss(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=1)
        await w.change(JOB, {"metadata": {"annotations": {"note": "kept"}}})
        await w.port.renew_job(JOB, 4, progress=2)
        assert (await w.lease(JOB)).annotations == {ANNOTATION_PROGRESS: "2", "note": "kept"}

    play(scenario)


@pytest.mark.parametrize("spec", [{"leaseTransitions": 5}, {"holderIdentity": "other"}, {"holderIdentity": ""}])
def test_another_token_or_holder_is_a_lost_lease(play: Play, spec: Obj) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=1)
        await w.change(JOB, {"spec": spec})
        changed = await w.lease(JOB)
        await raises(LeaseLostError, w.port.renew_job(JOB, 4, progress=2))
        await raises(LeaseLostError, w.port.report(JOB, DONE))
        assert await w.lease(JOB) == changed, "nothing was written to it"

    play(scenario)


def test_renewal_and_reassignment_in_the_same_instant_have_one_winner(play: Play) -> None:
    """The coordinator has just found the Lease expired, and the worker renews it: whoever comes second is refused."""

    async def scenario(w: BothSides) -> None:
        expired = await w.assign()
        taken = expired.with_record(replace(expired.record, holder="other", transitions=5))
        await w.port.renew_job(JOB, 4, progress=1)
        await raises(ConflictError, w.coordinator.replace(LEASES, taken.body()))
        assert (await w.lease(JOB)).record.holder == WORKER

        expired = await w.lease(JOB)
        taken = expired.with_record(replace(expired.record, holder="other", transitions=5))
        await w.coordinator.replace(LEASES, taken.body())
        await raises(LeaseLostError, w.port.renew_job(JOB, 4, progress=2))
        assert (await w.lease(JOB)).record.holder == "other"

    play(scenario)


def test_deleted_lease_is_a_lost_lease_and_is_not_made_again(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=1)
        await w.delete(JOB)
        await raises(LeaseLostError, w.port.renew_job(JOB, 4, progress=2), "gone")
        assert (await w.coordinator.list(LEASES, namespace=w.namespace)).items == ()

    play(scenario)


def test_lease_made_anew_with_the_same_token_is_still_ours(play: Play) -> None:
    """A cluster restored from a backup: the identity of the object changed, the assignment did not."""

    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=1)
        await w.delete(JOB)
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=2)
        assert (await w.lease(JOB)).annotations[ANNOTATION_PROGRESS] == "2"

    play(scenario)


def test_report_whose_answer_was_lost_is_the_same_the_second_time(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.renew_job(JOB, 4, progress=99)
        w.worker.lost = 1
        await raises(PortUnavailableError, w.port.report(JOB, DONE))
        await w.port.report(JOB, DONE)
        lease = await w.lease(JOB)
        assert json.loads(lease.annotations[ANNOTATION_REPORT])["outcome"] == "Succeeded"
        assert await w.port.offers(wait=False) == [], "a reported attempt is not taken up again"

    play(scenario)


def test_stale_report_of_an_earlier_attempt_does_not_hide_the_new_one(play: Play) -> None:
    async def scenario(w: BothSides) -> None:
        await w.assign()
        await w.port.offers(wait=False)
        await w.port.report(JOB, DONE)
        await w.change(JOB, {"spec": {"leaseTransitions": 5}})
        (offer,) = await w.port.offers(wait=False)
        assert offer.token == 5

    play(scenario)


def test_unreachable_server_is_unavailable_everywhere() -> None:
    async def scenario() -> None:
        identity = WorkerIdentity(name=WORKER, namespace="default", policy=POLICY, lease_seconds=1)
        connection = ApiConnection(server="http://127.0.0.1:1", ssl_context=None, token=no_token())
        async with lease_port(connection, identity)() as port:
            await raises(PortUnavailableError, port.announce(slots=1))
            await raises(PortUnavailableError, port.renew_worker(slots=1))
            await raises(PortUnavailableError, _coroutine(port.offers(wait=False)))
            await raises(PortUnavailableError, port.renew_job(JOB, 1, progress=0))
            await raises(PortUnavailableError, port.report(JOB, DONE))

    asyncio.run(scenario())
