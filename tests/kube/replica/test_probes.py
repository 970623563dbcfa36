"""Probes and metrics over HTTP."""

import http.client
from collections.abc import Iterator

import pytest

from compaction.kube.client.transport import ApiCall
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Health, LoopHeartbeat, ProbeServer, ProbeServerError


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
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
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
