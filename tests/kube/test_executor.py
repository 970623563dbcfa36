"""What a store's answer to a claim means for the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from compaction.api.enums import WaitReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec, CompactionJobStatus, JobSources, PolicyReference
from compaction.api.names import ANNOTATION_BYTES_PER_SECOND, COMPONENT_JOB, child_labels
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, SegmentLogSources
from compaction.blocks.claiming import claiming as of_blocks
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import IndexRefusal
from compaction.core.reconcile.actions import AssignJob, Premise, RaiseShare
from compaction.core.reconcile.jobs.job import ClaimRefused
from compaction.core.reconcile.observations import Moment, OperatorIdentity
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError, StaleTokenError, TokenExhaustedError
from compaction.kube.client.api import LEASES, ApiClient
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.client.transport import LEASES as PREMISES_LEASES
from compaction.kube.client.transport import Obj
from compaction.kube.executor.executor import AssignmentSteps, ExecutionResult, claim
from compaction.kube.executor.policy_objects import ApiObjects
from compaction.kube.informer.cache import CacheKey
from compaction.leases.record import Lease, LeaseRecord
from compaction.segments.adapter import claiming as of_logs
from compaction.segments.errors import (
    LockHeldError,
    LogPathError,
    NotALogDirectoryError,
    OwnerRunningError,
    StaleLogTokenError,
)
from compaction.storage.adapter import StoreAdapter
from compaction.storage.errors import DatabaseUnavailableError, SecretError
from kube.own_coordinator import quiet_runtime
from support.cluster.manifests import block_job_object

SPEC = CompactionJob.from_object(block_job_object(level=1)).spec


@dataclass
class Store:
    """Knows token 6 of the job, and answers a claim with an error or not at all."""

    error: CompactionError | None = None
    claimed: list[tuple[str, int]] = field(default_factory=list)

    def high_water(self, target: str, job: str) -> int:
        assert (target, job) == (SPEC.target, "job-1")
        return 6

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        if self.error is not None:
            raise self.error
        self.claimed.append((spec.target, token))


def answer(error: CompactionError | None = None, *, lease: int = 0, status: int = 0) -> int | ClaimRefused | None:
    known = CompactionJobStatus(fencing_token=status)
    action = AssignJob(OperatorIdentity("job-1", "uid", "7"), "w-1", SPEC, known, 1, None, lease, 15)
    return claim(cast(StoreAdapter, Store(error)), action)


def refused(refusal: ClaimRefusal, *, wait: str = "") -> ClaimRefusedError:
    return ClaimRefusedError(refusal, "why", wait)


@pytest.mark.parametrize(("lease", "status", "token"), [(0, 0, 7), (9, 0, 10), (0, 8, 9)])
def test_the_token_is_larger_than_any_that_is_known(lease: int, status: int, token: int) -> None:
    assert answer(lease=lease, status=status) == token


def test_a_larger_token_in_the_store_means_that_somebody_else_was_here() -> None:
    assert answer(StaleTokenError("index", "job-1", 7, 9)) is None


@pytest.mark.parametrize(
    ("refusal", "reason", "terminal"),
    [
        (ClaimRefusal.BUSY, WaitReason.TARGET_BUSY, False),
        (ClaimRefusal.GONE, WaitReason.STORE_ERROR, True),
        (ClaimRefusal.ERROR, WaitReason.STORE_ERROR, False),
    ],
)
def test_what_a_refusal_means_for_the_job(refusal: ClaimRefusal, reason: WaitReason, terminal: bool) -> None:
    found = answer(refused(refusal))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.message, found.terminal) == (reason, "why", terminal)


def test_a_kind_may_have_a_word_of_its_own_for_the_wait() -> None:
    found = answer(refused(ClaimRefusal.BUSY, wait="LockHeld"))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.terminal) == ("LockHeld", False)


def test_any_other_error_is_tried_again() -> None:
    found = answer(TokenExhaustedError("the job has had every token there is"))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.terminal) == (WaitReason.STORE_ERROR, False)


# --- what the adapters say -------------------------------------------------------------------------------------------


def said(claiming: Callable[[], AbstractContextManager[None]], error: CompactionError) -> ClaimRefusedError:
    with pytest.raises(ClaimRefusedError) as caught, claiming():
        raise error
    return caught.value


@pytest.mark.parametrize(
    "reason",
    sorted(set(IndexRefusal) - {IndexRefusal.SOURCE_CLAIMED, IndexRefusal.JOB_HELD, IndexRefusal.JOB_COMMITTED}),
)
def test_what_the_index_refuses_is_refused_for_ever(reason: IndexRefusal) -> None:
    assert said(of_blocks, BlockClaimError("job-1", reason, "why")).refusal is ClaimRefusal.GONE


def test_a_committed_job_is_claimed_no_more_and_that_is_no_error() -> None:
    with of_blocks():
        raise BlockClaimError("job-1", IndexRefusal.JOB_COMMITTED, "why")


@pytest.mark.parametrize("reason", [IndexRefusal.SOURCE_CLAIMED, IndexRefusal.JOB_HELD])
def test_blocks_of_another_job_are_waited_for(reason: IndexRefusal) -> None:
    assert said(of_blocks, BlockClaimError("job-1", reason, "why")).refusal is ClaimRefusal.BUSY


@pytest.mark.parametrize(
    ("claiming", "error", "refusal", "wait"),
    [
        (of_blocks, DatabaseUnavailableError("index", "gone"), ClaimRefusal.ERROR, ""),
        (of_blocks, SecretError("s", "", "gone"), ClaimRefusal.ERROR, ""),
        (of_logs, OwnerRunningError("/a", "runs"), ClaimRefusal.BUSY, "OwnerRunning"),
        (of_logs, LockHeldError("/a", "b", 1), ClaimRefusal.BUSY, "LockHeld"),
        (of_logs, NotALogDirectoryError("/a", "none"), ClaimRefusal.GONE, ""),
        (of_logs, LogPathError("/a", "no space"), ClaimRefusal.ERROR, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_errors(
    claiming: Callable[[], AbstractContextManager[None]],
    error: CompactionError,
    refusal: ClaimRefusal,
    wait: str,
) -> None:
    found = said(claiming, error)
    assert (found.refusal, found.wait, found.message) == (refusal, wait, str(error))


@pytest.mark.parametrize("claiming", [of_blocks, of_logs])
def test_a_stale_token_stays_what_it_is(claiming: Callable[[], AbstractContextManager[None]]) -> None:
    with pytest.raises(StaleTokenError), claiming():
        raise StaleLogTokenError("/ra/a", "job-1", 7, 9)


# Assignments that are carried out long after the picture they were decided on.

KEY = CacheKey("ns", "logs")
JOB_SPEC = CompactionJobSpec(
    policy_ref=PolicyReference(name="logs"),
    kind=SEGMENT_REWRITE,
    sources=JobSources(segment_log=SegmentLogSources(path="/ra/a", obsolete=("0000000000000001.segment",))),
)
ACTION = AssignJob(OperatorIdentity("job-1", "uid-1", "7"), "w-1", JOB_SPEC, CompactionJobStatus(), 1, None, 0, 15)


def outcome_with(tmp_path: Path, *leases: dict[str, Any]) -> tuple[ExecutionResult, list[str]]:
    """What comes of an assignment when the cache knows these Leases; and which stores were asked for."""
    asked: list[str] = []

    async def main() -> ExecutionResult:
        async with ApiClient(ApiConnection("http://127.0.0.1:9", None, no_token())) as client:
            runtime = quiet_runtime(client, tmp_path)
            for lease in leases:
                runtime.cache.store(LEASES).upsert(lease)
            outcome = ExecutionResult()
            steps = AssignmentSteps(
                ApiObjects(runtime, KEY, None, observed=lambda *_: None),
                store_of=lambda: asked.append("store"),
                now=Moment(0.0, 0.0),
                outcome=outcome,
                in_thread=asyncio.to_thread,
            )
            await steps.assign(ACTION)
            return outcome

    return asyncio.run(main()), asked


def worker(slots: str) -> dict[str, Any]:
    metadata = {"name": "w-1", "namespace": "ns", "uid": "w", "resourceVersion": "5"}
    return {"metadata": {**metadata, "annotations": {"compaction.dev/slots": slots}}, "spec": {}}


def test_a_worker_that_has_left_since_gets_nothing(tmp_path: Path) -> None:
    """An assignment to it would cost a token, an attempt, and the wait for its loss."""
    outcome, asked = outcome_with(tmp_path)
    assert (outcome.stale, outcome.failed_jobs, asked) == (True, {"job-1"}, [])


def test_a_worker_that_is_leaving_gets_nothing(tmp_path: Path) -> None:
    outcome, asked = outcome_with(tmp_path, worker("0"))
    assert (outcome.stale, outcome.failed_jobs, asked) == (True, {"job-1"}, [])


def test_a_worker_that_serves_is_given_the_job(tmp_path: Path) -> None:
    """As far as the store, of which there is none here."""
    outcome, asked = outcome_with(tmp_path, worker("2"))
    assert (outcome.stale, asked) == (False, ["store"])


# What a decision rests on, confirmed by fresh reads of a real API server before anything is written.

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Happening = Callable[[ApiClient, Obj], Awaitable[None]]


async def _nothing(client: ApiClient, seen: Obj) -> None:
    pass


async def _renewal(client: ApiClient, seen: Obj) -> None:
    lease = Lease.parse(seen)
    await client.replace(PREMISES_LEASES, lease.with_record(lease.record.renewed(now=NOW.replace(second=5))).body())


async def _deletion(client: ApiClient, seen: Obj) -> None:
    await client.delete(PREMISES_LEASES, seen["metadata"]["name"], namespace=seen["metadata"]["namespace"])


@pytest.mark.parametrize(
    ("happens", "holds"),
    [(_nothing, True), (_renewal, False), (_deletion, False)],
    ids=("nothing", "renewal", "deletion"),
)
def test_silence_is_confirmed_by_a_fresh_read(
    with_client: Callable[..., None], namespace: str, tmp_path: Path, happens: Happening, holds: bool
) -> None:
    """A watch that lags shows an attempt as silent whose worker has just renewed or reported."""

    async def work(client: ApiClient) -> None:
        record = LeaseRecord().acquired("w-1", transitions=3, duration_seconds=15, now=NOW)
        labels = child_labels(policy="logs", component=COMPONENT_JOB)
        seen = await client.create(
            PREMISES_LEASES, Lease(name="job-1", namespace=namespace, record=record, labels=labels).body()
        )
        runtime = quiet_runtime(client, tmp_path)
        runtime.cache.store(PREMISES_LEASES).upsert(seen)
        await happens(client, seen)
        writes = ApiObjects(runtime, CacheKey(namespace, "logs"), None, observed=lambda *_: None)
        identity = OperatorIdentity("job-1", seen["metadata"]["uid"], seen["metadata"]["resourceVersion"])
        assert await writes.holds(Premise(unchanged=(identity,)), identity) is holds
        assert writes.stale is not holds
        known = runtime.cache.leases.get(namespace, "job-1")
        assert (known is None) is (happens is _deletion)
        if known is not None:
            stands = await client.get(PREMISES_LEASES, "job-1", namespace=namespace)
            assert known["metadata"]["resourceVersion"] == stands["metadata"]["resourceVersion"]

    with_client(work)


@pytest.mark.parametrize(
    ("happens", "written"),
    [(_nothing, True), (_renewal, False), (_deletion, False)],
    ids=("nothing", "renewal", "deletion"),
)
def test_a_share_is_raised_on_the_lease_that_was_decided_on_and_renews_nothing(
    with_client: Callable[..., None], namespace: str, tmp_path: Path, happens: Happening, written: bool
) -> None:
    async def work(client: ApiClient) -> None:
        record = LeaseRecord().acquired("w-1", transitions=3, duration_seconds=15, now=NOW)
        labels = child_labels(policy="logs", component=COMPONENT_JOB)
        share = {ANNOTATION_BYTES_PER_SECOND: "500", "of/another": "stays"}
        lease = Lease(name="job-1", namespace=namespace, record=record, labels=labels, annotations=share)
        seen = await client.create(PREMISES_LEASES, lease.body())
        runtime = quiet_runtime(client, tmp_path)
        runtime.cache.store(PREMISES_LEASES).upsert(seen)
        await happens(client, seen)
        writes = ApiObjects(runtime, CacheKey(namespace, "logs"), None, observed=lambda *_: None)
        identity = OperatorIdentity("job-1", seen["metadata"]["uid"], seen["metadata"]["resourceVersion"])
        assert await writes.raise_share(RaiseShare(identity, 1000)) is written
        assert writes.stale is not written
        known = runtime.cache.leases.get(namespace, "job-1")
        assert (known is None) is (happens is _deletion), "the cache is in step"
        if written:
            stands = Lease.parse(await client.get(PREMISES_LEASES, "job-1", namespace=namespace))
            assert stands.annotations == share | {ANNOTATION_BYTES_PER_SECOND: "1000"}
            assert (stands.record, stands.labels) == (record, labels), "its worker's silence goes on"
            assert known is not None
            assert known["metadata"]["resourceVersion"] == stands.resource_version
            assert await writes.raise_share(RaiseShare(identity, 1500)) is False, "it was decided on another version"

    with_client(work)
