"""A replica that starts while the API server is away waits for it; one that may not do its work says so at once."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.api.names import GROUP
from compaction.errors import ApiUnavailableError, ForbiddenError, NotFoundError, TooManyRequestsError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, load_connection, no_token
from compaction.kube.client.transport import ApiCall
from compaction.kube.errors import KindsNotServedError, MissingPermissionsError, OlderDefinitionsError
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica import preflight
from compaction.kube.replica.runtime import Health, LoopHeartbeat, ProbeServer, ProbeServerError
from support.clocks import PATIENCE_SECONDS
from support.cluster.manifests import block_policy_object, policy_object

AWAY, REFUSED = ApiUnavailableError("away"), MissingPermissionsError("refused")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_patience_is_for_servers_that_are_away_and_have_just_come_back() -> None:
    clock = Clock()
    patience = preflight.StartupPatience(away=300.0, settling=15.0, clock=clock)
    assert patience.bears(AWAY, ready=False)
    clock.now += 299
    assert patience.bears(AWAY, ready=False)
    assert patience.bears(REFUSED, ready=True)  # it is back, and has not read its roles yet
    clock.now += 14.9
    assert patience.bears(REFUSED, ready=True)
    clock.now += 0.1
    assert not patience.bears(REFUSED, ready=True)


def test_patience_ends() -> None:
    clock = Clock()
    patience = preflight.StartupPatience(away=300.0, clock=clock)
    assert patience.bears(AWAY, ready=False)
    clock.now += 300
    assert not patience.bears(AWAY, ready=False)


def test_who_is_refused_by_a_server_that_was_never_away_is_told_at_once() -> None:
    assert not preflight.StartupPatience().bears(REFUSED, ready=True)


def test_definitions_of_this_version_may_be_about_to_come() -> None:
    """An operator and its definitions are applied together, in any order."""
    clock = Clock()
    patience = preflight.StartupPatience(settling=15.0, clock=clock)
    assert patience.bears(OlderDefinitionsError("older"), ready=True)
    clock.now += 15
    assert not patience.bears(OlderDefinitionsError("older"), ready=True)


def test_a_server_that_is_not_ready_is_waited_for_also_by_the_first_that_asks_it() -> None:
    """Seen once: a replica was started again in the moment in which the port was open and no role had been read."""
    clock = Clock()
    patience = preflight.StartupPatience(settling=15.0, clock=clock)
    assert patience.bears(ForbiddenError("/apis/compaction.dev/v1alpha1"), ready=False)
    clock.now += 15
    assert not patience.bears(REFUSED, ready=False)


def test_a_server_says_itself_whether_it_is_ready(control_plane: Any, namespace: str, tmp_path: Path) -> None:
    async def ready(connection: ApiConnection) -> bool:
        async with ApiClient(connection, deadline=120) as client:
            return await client.is_ready()

    stranger = load_connection(control_plane.running.kubeconfig_for("stranger", tmp_path / "stranger"))
    assert asyncio.run(ready(stranger))
    assert not asyncio.run(ready(ApiConnection("http://127.0.0.1:9", None, no_token())))


@pytest.mark.parametrize("step", ["check", "secrets_refused"])
@pytest.mark.parametrize(
    "refusal", [ForbiddenError("no"), KindsNotServedError("no kinds"), NotFoundError("no path"), REFUSED], ids=str
)
def test_a_server_that_has_just_come_back_may_refuse_anything(
    refusal: Exception, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is open before it has read roles and resource definitions, and objects come after these."""
    answers: list[Exception] = [AWAY, TooManyRequestsError("its cache is not filled"), refusal, refusal]

    async def answer(_client: ApiClient, **_where: str | None) -> tuple[str, ...]:
        if answers:
            raise answers.pop(0)
        return ()

    async def nothing(_client: ApiClient, **_where: str | None) -> tuple[str, ...]:
        return ()

    for name in ("check", "secrets_refused"):
        monkeypatch.setattr(preflight, name, answer if name == step else nothing)
    absent = ApiConnection("http://127.0.0.1:9", None, no_token())
    asyncio.run(check(absent, "ns", preflight.StartupPatience(pause=0.01)))
    assert not answers
    answers.append(refusal)
    with pytest.raises(type(refusal)):
        asyncio.run(check(absent, "ns", preflight.StartupPatience(settling=0, pause=0.01)))


def test_missing_permissions_are_not_waited_for(control_plane: Any, namespace: str, tmp_path: Path) -> None:
    connection = load_connection(control_plane.running.kubeconfig_for("stranger", tmp_path / "stranger"))
    with pytest.raises(MissingPermissionsError):
        # A server that is only slow must not look like one that was away, and is waited for.
        asyncio.run(check(connection, namespace, preflight.StartupPatience(away=3600, settling=3600), deadline=120))


def test_an_absent_server_is_given_up_in_the_end() -> None:
    absent = ApiConnection("http://127.0.0.1:9", None, no_token())
    with pytest.raises(ApiUnavailableError):
        asyncio.run(check(absent, "ns", preflight.StartupPatience(away=0.5, pause=0.01)))


async def check(
    connection: ApiConnection, namespace: str, patience: preflight.StartupPatience, *, deadline: float = 1.0
) -> None:
    async with ApiClient(connection, deadline=deadline) as client:
        await preflight.check_when_up(client, namespace=namespace, lease_namespace=namespace, patience=patience)


def test_secrets_of_block_stores_that_may_not_be_read_are_named(
    control_plane: Any, namespace: str, tmp_path: Path
) -> None:
    """By name, as a Role with resourceNames grants them; other stores need none."""
    kubectl = control_plane.kubectl
    store = {"url": "s3://lake/blocks", "credentialsSecretName": "lake-credentials"}
    blocks = block_policy_object("blocks", store={"blockStore": store | {"index": {"secretName": "lake-index"}}})
    for body in (blocks, policy_object("logs")):
        kubectl("create", "-f", "-", input=json.dumps(body), namespace=namespace)
    user = f"careful-{namespace}"
    names = "--resource-name=lake-credentials"
    kubectl("create", "role", "some", "--verb=get", "--resource=secrets", names, namespace=namespace)
    kubectl("create", "role", "policies", "--verb=list", f"--resource=compactionpolicies.{GROUP}", namespace=namespace)
    for role in ("some", "policies"):
        kubectl("create", "rolebinding", role, f"--role={role}", f"--user={user}", namespace=namespace)
    connection = load_connection(control_plane.running.kubeconfig_for(user, tmp_path / "careful"))

    async def refused() -> tuple[str, ...]:
        async with ApiClient(connection) as client:
            return await preflight.secrets_refused(client, namespace=namespace)

    (refusal,) = asyncio.run(refused())
    assert refusal.startswith(f"policy {namespace}/blocks cannot be looked after: the operator's account may not get")
    assert "components/block-stores" in refusal
    assert "lake-index" in refusal
    kubectl("delete", "role", "some", namespace=namespace)
    assert len(asyncio.run(refused())) == 2


# Probes and metrics over HTTP.


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


@pytest.fixture
def server(health: Health, metrics: Metrics) -> Iterator[ProbeServer]:
    server = ProbeServer(health, metrics.registry, host="127.0.0.1", port=0)
    server.start()
    yield server
    server.stop()


def get(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
def test_alive_until_a_check_says_otherwise(server: ProbeServer, health: Health, path: str) -> None:
    assert get(server, path) == (200, "ok\n")
    health.add("elector", lambda: "no round finished for 21 s")
    assert get(server, path) == (503, "elector: no round finished for 21 s\n")


def test_ready_once_initialised(server: ProbeServer, health: Health) -> None:
    assert get(server, "/readyz")[0] == 503
    health.ready()
    assert get(server, "/readyz") == (200, "ok\n")


def test_unknown_paths_and_head(server: ProbeServer) -> None:
    assert get(server, "/")[0] == 404
    assert get(server, "/livez", "HEAD") == (200, "")


def test_a_busy_port_is_a_clear_error(server: ProbeServer, health: Health) -> None:
    with pytest.raises(ProbeServerError, match=rf"127\.0\.0\.1:{server.port}.*another port"):
        ProbeServer(health, None, host="127.0.0.1", port=server.port)


def test_metrics_are_exposed_and_forgotten_with_their_policy(server: ProbeServer, metrics: Metrics) -> None:
    policy = CacheKey("ns", "p")
    metrics.observe_call(ApiCall("get", "leases", "200", 0.01))
    metrics.debt_bytes.labels(*policy).set(5)
    metrics.set_jobs(policy, {"InProgress": 2})
    metrics.set_jobs(policy, {"Succeeded": 2})
    metrics.set_waits(policy, {"NoWorker": 12.5})
    metrics.set_waiting(policy, {"NoWorker": 3})
    metrics.granted_bytes_per_second.labels(*policy).set(1000)
    text = get(server, "/metrics")[1]
    assert 'compaction_build_info{version="1.2.3"} 1.0' in text
    assert 'rest_client_requests_total{code="200",resource="leases",verb="get"} 1.0' in text
    assert 'compaction_debt_bytes{namespace="ns",policy="p"} 5.0' in text
    assert 'compaction_jobs{namespace="ns",policy="p",state="InProgress"} 0.0' in text
    assert 'compaction_jobs{namespace="ns",policy="p",state="Succeeded"} 2.0' in text
    assert 'compaction_wait_age_seconds{namespace="ns",policy="p",reason="NoWorker"} 12.5' in text
    assert 'compaction_waiting{namespace="ns",policy="p",reason="NoWorker"} 3.0' in text
    assert 'compaction_granted_bytes_per_second{namespace="ns",policy="p"} 1000.0' in text
    metrics.forget_policy(policy)
    metrics.forget_policy(policy)
    assert 'policy="p"' not in get(server, "/metrics")[1]


def test_the_age_of_a_watch_grows_until_its_next_event() -> None:
    now = 100.0
    metrics = Metrics(clock=lambda: now)
    assert metrics.watch_age() is None
    metrics.watched("Lease")
    now = 130.0
    assert metrics.watch_age() == 30.0
    assert metrics.registry.get_sample_value("compaction_watch_last_event_age_seconds", {"kind": "Lease"}) == 30.0


def test_a_heartbeat_says_nothing_before_the_first_beat_and_after_its_end() -> None:
    now = 0.0
    beat = LoopHeartbeat("the loop", limit=30.0, clock=lambda: now)
    assert beat.check() is None
    beat.beat()
    now = 30.0
    assert beat.check() is None
    now = 31.0
    assert beat.check() == "the loop has been silent for 31 s (limit 30 s)"
    beat.stop()
    assert beat.check() is None
