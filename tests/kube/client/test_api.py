"""The client against a real API server: every verb, every error a caller decides on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import (
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    NotFoundError,
    UnauthorizedError,
)
from compaction.kube.client.api import (
    COMPACTION_POLICIES,
    EVENTS,
    LEASES,
    NAMESPACES,
    ApiCall,
    ApiClient,
    Obj,
    PatchKind,
    WatchEvent,
)
from compaction.kube.client.config import ApiConnection, load_connection, no_token, static_token
from compaction.kube.errors import MissingPermissionsError
from compaction.kube.executor.events import EventRecorder, EventType
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica import preflight
from compaction.kube.replica.operator import coordinator_lease
from compaction.leases.record import Lease, LeaseRecord

MakePolicy = Callable[..., Obj]
NOW = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC)


def lease(namespace: str, name: str = "l", **labels: str) -> Lease:
    record = LeaseRecord().acquired("w", transitions=1, duration_seconds=15, now=NOW)
    return Lease(name=name, namespace=namespace, record=record, labels=labels)


def test_create_get_replace_delete(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        created = Lease.parse(await client.create(LEASES, lease(namespace).body()))
        assert created.uid
        assert Lease.parse(await client.get(LEASES, "l", namespace=namespace)) == created
        renewed = created.with_record(created.record.renewed(now=NOW.replace(microsecond=1)))
        replaced = Lease.parse(await client.replace(LEASES, renewed.body()))
        assert replaced.record == renewed.record
        assert replaced.resource_version != created.resource_version
        await client.delete(LEASES, "l", namespace=namespace)
        with pytest.raises(NotFoundError):
            await client.get(LEASES, "l", namespace=namespace)

    with_client(work)


def test_a_released_lease_is_accepted_by_the_server(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        created = Lease.parse(await client.create(LEASES, lease(namespace).body()))
        released = created.with_record(created.record.released(now=NOW))
        back = Lease.parse(await client.replace(LEASES, released.body()))
        assert (back.record.holder, back.record.duration_seconds, back.record.transitions) == (None, 1, 1)

    with_client(work)


def test_conflicts_have_types(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        first = Lease.parse(await client.create(LEASES, lease(namespace).body()))
        with pytest.raises(AlreadyExistsError):
            await client.create(LEASES, lease(namespace).body())
        await client.replace(LEASES, first.annotate({"a": "1"}).body())
        with pytest.raises(ConflictError):
            await client.replace(LEASES, first.annotate({"a": "2"}).body())
        with pytest.raises(ConflictError):
            await client.delete(LEASES, "l", namespace=namespace, resource_version=first.resource_version)
        with pytest.raises(ConflictError):
            await client.delete(LEASES, "l", namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
        await client.delete(LEASES, "l", namespace=namespace, uid=first.uid)

    with_client(work)


def test_patches(with_client: Callable[..., None], namespace: str, policy: MakePolicy) -> None:
    async def work(client: ApiClient) -> None:
        created = await client.create(COMPACTION_POLICIES, policy())
        version = created["metadata"]["resourceVersion"]
        guarded = {"metadata": {"resourceVersion": version}, "status": {"active": 2}}
        merged = await client.patch(COMPACTION_POLICIES, "p", guarded, namespace=namespace, subresource="status")
        assert merged["status"]["active"] == 2
        with pytest.raises(ConflictError):
            await client.patch(COMPACTION_POLICIES, "p", guarded, namespace=namespace, subresource="status")
        changed = await client.patch(
            COMPACTION_POLICIES,
            "p",
            [{"op": "replace", "path": "/spec/suspend", "value": True}],
            namespace=namespace,
            kind=PatchKind.JSON,
        )
        assert changed["spec"]["suspend"] is True
        assert changed["metadata"]["generation"] == 2
        applied = await client.patch(
            COMPACTION_POLICIES,
            "q",
            {"metadata": {"name": "q", "namespace": namespace}, "spec": policy()["spec"]},
            namespace=namespace,
            kind=PatchKind.APPLY,
            field_manager="tests",
        )
        assert applied["metadata"]["managedFields"][0]["manager"] == "tests"
        merged["status"]["active"] = 7
        with pytest.raises(ConflictError):
            await client.replace_status(COMPACTION_POLICIES, merged)

    with_client(work)


def test_an_invalid_object_carries_the_servers_words(
    with_client: Callable[..., None], namespace: str, policy: MakePolicy
) -> None:
    async def work(client: ApiClient) -> None:
        wrong = policy()
        wrong["spec"]["store"] = {}
        with pytest.raises(InvalidObjectError, match=r"spec\.store"):
            await client.create(COMPACTION_POLICIES, wrong)

    with_client(work)


def test_lists_join_all_pages_and_select(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        for number in range(7):
            await client.create(LEASES, lease(namespace, f"l{number}", parity=str(number % 2)).body())
        everything = await client.list(LEASES, namespace=namespace, limit=3)
        assert [item["metadata"]["name"] for item in everything.items] == [f"l{n}" for n in range(7)]
        assert {item["kind"] for item in everything.items} == {"Lease"}
        assert int(everything.resource_version) > 0
        odd = await client.list(LEASES, namespace=namespace, labels="parity=1")
        assert len(odd.items) == 3
        one = await client.list(LEASES, namespace=namespace, fields="metadata.name=l4")
        assert len(one.items) == 1
        across = await client.list(LEASES, labels="parity=1")
        assert len(across.items) == 3
        await client.get(NAMESPACES, namespace)

    with_client(work)


def test_a_watch_reports_changes_after_a_version(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        listed = await client.list(LEASES, namespace=namespace)
        created = Lease.parse(await client.create(LEASES, lease(namespace).annotate({"words": "é" * 30}).body()))
        await client.replace(LEASES, created.annotate({"big": "x" * 200_000}).body())  # longer than aiohttp's lines
        await client.delete(LEASES, "l", namespace=namespace)
        events: list[WatchEvent] = []
        async for event in client.watch(
            LEASES, namespace=namespace, resource_version=listed.resource_version, timeout_seconds=30
        ):
            events.append(event)
            if event.type == "DELETED":
                break
        assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        assert len(events[1].object["metadata"]["annotations"]["big"]) == 200_000

    with_client(work)


def test_a_watch_ends_when_its_time_is_over(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        events = [event async for event in client.watch(LEASES, namespace=namespace, timeout_seconds=1)]
        assert all(event.type == "BOOKMARK" for event in events)

    with_client(work)


def test_a_version_that_is_too_old_is_gone(with_client: Callable[..., None], namespace: str) -> None:
    async def work(client: ApiClient) -> None:
        with pytest.raises(GoneError):
            async for _ in client.watch(
                COMPACTION_POLICIES, namespace=namespace, resource_version="1", timeout_seconds=5
            ):
                pass

    with_client(work)


def test_unknown_credentials_are_told_apart_from_missing_permissions(connection: ApiConnection, namespace: str) -> None:
    async def main() -> None:
        stranger = replace(connection, token=static_token("nonsense"), ssl_context=_without_certificate())
        async with ApiClient(stranger) as client:
            with pytest.raises(UnauthorizedError):
                await client.get(LEASES, "l", namespace=namespace)
        anonymous = replace(stranger, token=no_token())
        async with ApiClient(anonymous) as client:
            with pytest.raises((ForbiddenError, UnauthorizedError)):
                await client.get(LEASES, "l", namespace=namespace)

    asyncio.run(main())


def _without_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_no_server_is_unavailable_within_the_deadline() -> None:
    async def main() -> None:
        async with ApiClient(ApiConnection("http://127.0.0.1:9", None, no_token()), deadline=1.0) as client:
            with pytest.raises(ApiUnavailableError, match=r"cannot connect|no answer within 1 s"):
                await client.get(LEASES, "l", namespace="ns")

    asyncio.run(main())


def test_every_call_is_counted(with_client: Callable[..., None], namespace: str) -> None:
    calls: list[ApiCall] = []

    async def work(client: ApiClient) -> None:
        with pytest.raises(NotFoundError):
            await client.get(LEASES, "nothing", namespace=namespace)
        await client.list(LEASES, namespace=namespace)

    with_client(work, observe=calls.append)
    assert [(call.verb, call.resource, call.code) for call in calls] == [
        ("get", "leases", "404"),
        ("list", "leases", "200"),
    ]


def test_the_administrator_lacks_nothing_and_a_stranger_is_told_what(
    control_plane: Any, connection: ApiConnection, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = control_plane.running.kubeconfig_for("stranger", tmp_path / "stranger")

    async def check(connection: ApiConnection) -> None:
        async with ApiClient(connection) as client:
            await preflight.check(client, namespace=namespace, lease_namespace=namespace)

    asyncio.run(check(connection))
    with pytest.raises(MissingPermissionsError) as caught:
        asyncio.run(check(load_connection(kubeconfig)))
    assert f"update compactionjobs/status.compaction.dev in namespace {namespace}" in str(caught.value)
    assert f"create events in namespace {namespace}" in str(caught.value)


def test_events_are_posted_once_counted_and_folded(
    with_client: Callable[..., None], namespace: str, policy: MakePolicy
) -> None:
    async def work(client: ApiClient) -> None:
        about = await client.create(COMPACTION_POLICIES, policy())
        recorder = EventRecorder(client, instance="test")
        poster = asyncio.create_task(recorder.run())
        for _ in range(5):
            recorder.event(about, reason="Planned", message="3 jobs")
        recorder.event(about, reason="SourceCorrupt", message="segment 7", type=EventType.WARNING)
        for number in range(30):
            recorder.event(about, reason="Noisy", message=f"message {number}")
        await recorder.flush(seconds=30)
        poster.cancel()
        fields = f"involvedObject.uid={about['metadata']['uid']}"
        posted = (await client.list(EVENTS, namespace=namespace, fields=fields)).items
        planned = [event for event in posted if event["reason"] == "Planned"]
        assert [(event["message"], event["count"]) for event in planned] == [("3 jobs", 4)]  # written when doubled
        assert [event["type"] for event in posted if event["reason"] == "SourceCorrupt"] == ["Warning"]
        assert len([event for event in posted if event["reason"] == "Noisy"]) == 11

    with_client(work)


def test_failing_to_post_an_event_breaks_nothing(connection: ApiConnection, namespace: str, policy: MakePolicy) -> None:
    metrics = Metrics()

    async def main() -> None:
        async with ApiClient(connection) as client:
            recorder = EventRecorder(client, metrics=metrics)
            poster = asyncio.create_task(recorder.run())
            about = policy()
            about["metadata"]["namespace"] = "there-is-no-such-namespace"
            recorder.event(about, reason="Planned", message="3 jobs")
            await recorder.flush(seconds=30)
            assert not poster.done()
            poster.cancel()

    asyncio.run(main())
    assert metrics.registry.get_sample_value("compaction_events_dropped_total") == 1.0


# The Lease of an election, on a real API server.


@pytest.mark.apiserver
def test_a_namespace_that_does_not_exist_is_named_with_the_flag(connection: ApiConnection) -> None:
    """A replica retries for ever: the namespace may come, but the line in its log has to say what is missing."""

    async def main() -> None:
        open_port = coordinator_lease(connection, namespace="nosuchns", name="coordinator", call_deadline=3.0)
        async with open_port() as port:
            await port.create(LeaseRecord())

    with pytest.raises(NotFoundError) as missing:
        asyncio.run(main())
    assert str(missing.value).startswith(
        'Cannot create Lease coordinator: namespace "nosuchns" does not exist. Create it or correct --namespace'
    )
