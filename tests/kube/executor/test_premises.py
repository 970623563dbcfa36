"""What a decision rests on, confirmed by fresh reads of a real API server before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compaction.api.names import ANNOTATION_BYTES_PER_SECOND, COMPONENT_JOB, child_labels
from compaction.core.reconcile.actions import Premise, RaiseShare
from compaction.core.reconcile.observations import OperatorIdentity
from compaction.kube.client.api import ApiClient
from compaction.kube.client.transport import LEASES, Obj
from compaction.kube.executor.policy_objects import ApiObjects
from compaction.kube.informer.cache import CacheKey
from compaction.leases.record import Lease, LeaseRecord
from kube.executor.quiet_runtime import quiet_runtime

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Happening = Callable[[ApiClient, Obj], Awaitable[None]]


async def _nothing(client: ApiClient, seen: Obj) -> None:
    pass


async def _renewal(client: ApiClient, seen: Obj) -> None:
    lease = Lease.parse(seen)
    await client.replace(LEASES, lease.with_record(lease.record.renewed(now=NOW.replace(second=5))).body())


async def _deletion(client: ApiClient, seen: Obj) -> None:
    await client.delete(LEASES, seen["metadata"]["name"], namespace=seen["metadata"]["namespace"])


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
            LEASES, Lease(name="job-1", namespace=namespace, record=record, labels=labels).body()
        )
        runtime = quiet_runtime(client, tmp_path)
        runtime.cache.store(LEASES).upsert(seen)
        await happens(client, seen)
        writes = ApiObjects(runtime, CacheKey(namespace, "logs"), None, observed=lambda *_: None)
        identity = OperatorIdentity("job-1", seen["metadata"]["uid"], seen["metadata"]["resourceVersion"])
        assert await writes.holds(Premise(unchanged=(identity,)), identity) is holds
        assert writes.stale is not holds
        known = runtime.cache.leases.get(namespace, "job-1")
        assert (known is None) is (happens is _deletion)
        if known is not None:
            stands = await client.get(LEASES, "job-1", namespace=namespace)
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
        seen = await client.create(LEASES, lease.body())
        runtime = quiet_runtime(client, tmp_path)
        runtime.cache.store(LEASES).upsert(seen)
        await happens(client, seen)
        writes = ApiObjects(runtime, CacheKey(namespace, "logs"), None, observed=lambda *_: None)
        identity = OperatorIdentity("job-1", seen["metadata"]["uid"], seen["metadata"]["resourceVersion"])
        assert await writes.raise_share(RaiseShare(identity, 1000)) is written
        assert writes.stale is not written
        known = runtime.cache.leases.get(namespace, "job-1")
        assert (known is None) is (happens is _deletion), "the cache is in step"
        if written:
            stands = Lease.parse(await client.get(LEASES, "job-1", namespace=namespace))
            assert stands.annotations == share | {ANNOTATION_BYTES_PER_SECOND: "1000"}
            assert (stands.record, stands.labels) == (record, labels), "its worker's silence goes on"
            assert known is not None
            assert known["metadata"]["resourceVersion"] == stands.resource_version
            assert await writes.raise_share(RaiseShare(identity, 1500)) is False, "it was decided on another version"

    with_client(work)
