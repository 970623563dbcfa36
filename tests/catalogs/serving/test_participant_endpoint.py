"""A participant over HTTP: what it reports, what it stores, whom it refuses, and how a test drives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogError
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role
from compaction.catalogs.serving.actions import ACTIONS
from compaction.catalogs.serving.messages import MOST_REPORT_BYTES, ReportMessage
from compaction.catalogs.serving.server import ParticipantServer, document, serve
from compaction.serving.access import Gate, SharedSecret
from compaction.serving.errors import TokenReviewUnavailableError
from compaction.serving.refusals import RefusedRequest
from compaction.serving.service import RequestLimits
from support.catalogs.participants import REPORT, participant, ready
from support.endpoints import SECRET, Answer, Endpoint, check_routes, check_whole, gate, problems, secured
from support.timing import examples

FROZEN = Path(__file__).parents[3] / "docs" / "openapi" / "catalog-participant.v1.json"


@pytest.fixture
def one() -> ReferenceParticipant:
    return ready()


@pytest.fixture
def endpoint(one: ReferenceParticipant, tmp_path: Path) -> Iterator[Endpoint]:
    with participant(one, tmp_path, admin=True) as running:
        yield running


def minimum(endpoint: Endpoint, timestamp: int, fence: int = 1, **options: Any) -> Answer:
    body = json.dumps({"timestamp": str(timestamp), "token": fence}).encode()
    return endpoint.call("POST", "/v1/minimum", body, **options)


def act(endpoint: Endpoint, name: str, **arguments: Any) -> Answer:
    return endpoint.call("POST", f"/v1/admin/{name}", json.dumps(arguments).encode())


def test_the_document_is_the_one_that_was_published() -> None:
    """Version 1 is closed: whatever changes it is another version. The program's version is no part of it."""
    frozen = json.loads(FROZEN.read_text())
    assert document() == frozen, f"write it again only before a release: {FROZEN.name}"


def test_routes_are_those_of_the_document(one: ReferenceParticipant, tmp_path: Path) -> None:
    check_routes(ParticipantServer(one, gate(tmp_path)), document())
    check_routes(ParticipantServer(one, gate(tmp_path), admin=one), document(admin=True))
    for admin in (False, True):
        check_whole(document(admin=admin))
    assert secured(document()) == {"getReport", "storeMinimum"}
    assert secured(document(admin=True)) == {"getReport", "storeMinimum", *(action.name for action in ACTIONS)}


def test_a_report_is_what_the_participant_says(endpoint: Endpoint, one: ReferenceParticipant) -> None:
    found = endpoint.call("GET", "/v1/report")
    assert found.status == 200
    assert found.body["minimum"] == str(hybrid(2500))
    assert found.body["partitions"] == [{"tableId": 5, "partition": 0, "role": "Primary", "minimum": str(hybrid(2500))}]
    assert (found.body["protocol"], found.body["cause"], found.body["name"]) == (1, "Partition", "node1")


def test_a_message_holds_the_whole_report() -> None:
    assert ReportMessage.model_validate_json(ReportMessage.of(REPORT).to_json(), by_name=False).report() == REPORT


def test_a_minimum_is_stored_and_published_by_the_next_checkpoint(endpoint: Endpoint) -> None:
    assert minimum(endpoint, hybrid(3500)).body == {"partitions": 1}
    assert endpoint.call("GET", "/v1/report").body["minimum"] == str(hybrid(2500))
    assert act(endpoint, "begin-checkpoint").status == act(endpoint, "finish-checkpoint").status == 200
    assert endpoint.call("GET", "/v1/report").body["minimum"] == str(hybrid(3500))


def test_a_coordinator_with_a_smaller_token_is_refused(endpoint: Endpoint, one: ReferenceParticipant) -> None:
    assert minimum(endpoint, hybrid(3000), 7).status == 200
    refused = minimum(endpoint, hybrid(3500), 6)
    assert (refused.status, refused.code) == (409, "StaleToken")
    assert minimum(endpoint, hybrid(3000), 7).status == 200, "repeating is harmless"
    assert minimum(endpoint, hybrid(3500), 8).status == 200


def test_a_minimum_that_its_own_transactions_contradict_is_refused(
    endpoint: Endpoint, one: ReferenceParticipant
) -> None:
    refused = minimum(endpoint, later(one.now(), 3_600_000))
    assert (refused.status, refused.code) == (422, "MinimumAhead")


@pytest.mark.parametrize(
    "body",
    [
        {}, [], None, {"timestamp": "1"}, {"token": 1}, {"timestamp": 1, "token": 1}, {"timestamp": "-1", "token": 1},
        {"timestamp": "0", "token": 1}, {"timestamp": "01", "token": 1}, {"timestamp": "1", "token": 0},
        {"timestamp": "1", "token": True}, {"timestamp": "1", "token": 1, "more": 1}, {"timestamp": "1 ", "token": 1},
        {"timestamp": "9" * 19, "token": 1}, {"timestamp": "٣", "token": 1},
    ],
)  # fmt: skip
def test_a_minimum_of_another_form_is_refused(endpoint: Endpoint, body: Any) -> None:
    found = endpoint.call("POST", "/v1/minimum", json.dumps(body).encode())
    assert (found.status, found.code) == (400, "BadRequest")


TIMES = st.one_of(st.sampled_from(["0", "1", "-1", "x", "007", ""]), st.integers(0, 2**63 - 1).map(str), st.integers())


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=st.fixed_dictionaries({}, optional={"timestamp": TIMES, "token": st.integers(-1, 2**53), "x": st.just(1)}))
def test_the_handler_takes_exactly_the_requests_of_the_document(endpoint: Endpoint, body: Any) -> None:
    operation = endpoint.document["paths"]["/v1/minimum"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    found = endpoint.call("POST", "/v1/minimum", json.dumps(body).encode())
    assert (found.status == 400) == bool(problems(body, schema, endpoint.document)), found.body


def test_callers_without_the_secret_learn_nothing(endpoint: Endpoint) -> None:
    for token in (None, "another secret of the tests"):
        assert endpoint.call("GET", "/v1/report", token=token).code == RefusedRequest.UNAUTHENTICATED
        assert minimum(endpoint, 1, token=token).status == 401
        assert endpoint.call("POST", "/v1/admin/restart", b"{}", token=token).status == 401
    assert endpoint.call("GET", "/healthz", token=None).status == 200


def test_rules_say_who_may_do_what(one: ReferenceParticipant, tmp_path: Path) -> None:
    def rules() -> Gate:
        return gate(tmp_path, tenants={"secret:writer": ["report"]})

    with participant(one, tmp_path, admin=True, make_gate=rules) as endpoint:
        assert endpoint.call("GET", "/v1/report").status == 200
        assert minimum(endpoint, 1).status == act(endpoint, "restart").status == 403


def test_the_admin_paths_are_there_only_when_asked_for(one: ReferenceParticipant, tmp_path: Path) -> None:
    with participant(one, tmp_path) as endpoint:
        for action in ACTIONS:
            assert endpoint.call("POST", action.path, b"{}").status == 404


def test_a_participant_is_driven_over_http(endpoint: Endpoint, one: ReferenceParticipant) -> None:
    begun = act(endpoint, "begin").body["timestamp"]
    act(endpoint, "add-version", version=4, activation=str(one.now()))
    for name, arguments in (
        ("add-partition", {"tableId": 5, "partition": 1, "role": "Learner"}),
        ("start-index-build", {"indexId": 9}),
        ("start-rebalance", {"zoneId": 2, "minimum": str(hybrid(1500))}),
        ("begin-read", {"timestamp": str(hybrid(60_000))}),
        ("pause-replication", {"paused": True}),
    ):
        assert act(endpoint, name, **arguments).status == 200, name
    held = act(endpoint, "move-watermark", timestamp=str(hybrid(70_000)))
    assert held.body["timestamp"] == str(hybrid(50_000))
    found = endpoint.call("GET", "/v1/report").body
    assert (found["oldestTransaction"], found["transactions"]) == (begun, str(hybrid(3000)))
    assert (found["cause"], found["subject"]) == ("NotReady", "table 5 partition 1")
    assert [item["indexId"] for item in found["indexBuilds"]] == [9]
    for name, arguments in (
        ("finish", {"timestamp": begun}),
        ("finish", {"timestamp": str(hybrid(60_000))}),
        ("remove-partition", {"tableId": 5, "partition": 1}),
        ("end-index-build", {"indexId": 9}),
        ("end-rebalance", {"zoneId": 2}),
        ("set-clock", {"milliseconds": 3_600_000}),
    ):
        assert act(endpoint, name, **arguments).status == 200, name
    found = endpoint.call("GET", "/v1/report").body
    assert (found["lowWatermark"], found["oldestTransaction"]) == (str(hybrid(70_000)), "0")
    assert int(found["clock"]) > later(ready().now(), 3_500_000)
    act(endpoint, "restart", earliest=str(hybrid(80_000)))
    found = endpoint.call("GET", "/v1/report").body
    assert (found["cause"], found["lowWatermark"]) == ("NotReady", str(hybrid(80_000)))


def test_an_action_that_does_not_fit(endpoint: Endpoint) -> None:
    refused = act(endpoint, "finish-checkpoint")
    assert (refused.status, refused.code) == (409, "State")
    assert "no checkpoint is under way" in refused.body["message"]
    assert act(endpoint, "add-partition", tableId=5, partition=1, role="Boss").status == 400


class Away:
    """The review of tokens while the API server is away."""

    async def __call__(self, token: str) -> str | None:
        raise TokenReviewUnavailableError("away")


class Odd(ReferenceParticipant):
    """Fails as no participant should."""

    failure: Exception | None = None

    def report(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().report()


def test_every_answer_of_the_document_is_given(tmp_path: Path) -> None:
    one = Odd("node1")
    limits = RequestLimits(body_seconds=0.2, body_bytes=4096)

    def callers() -> Gate:
        return gate(tmp_path, tenants={"secret:writer": ["*"]}, review=Away(), allowed=("a/b",))

    with participant(one, tmp_path, make_gate=callers, limits=limits) as endpoint:
        for path in ("/healthz", "/readyz", "/metrics"):
            endpoint.call("GET", path)
        endpoint.call("GET", "/v1/report")
        minimum(endpoint, 1, 5)
        minimum(endpoint, 1, 4)
        minimum(endpoint, later(one.now(), 10**6), 5)
        minimum(endpoint, 0)
        endpoint.call("POST", "/v1/minimum", b" " * 5000)
        endpoint.call("POST", "/v1/minimum", b"{", headers={"Content-Length": "100"})
        endpoint.call("POST", "/v1/minimum", b"{}", headers={"Content-Type": "text/plain"})
        for call in (
            partial(endpoint.call, "GET", "/v1/report"),
            partial(minimum, endpoint, 1),
        ):
            call(token=None)
            call(token="e30.e30.e30")
        one.failure = CatalogError("odd, of secret-host")
        found = endpoint.call("GET", "/v1/report")
        assert (found.status, "secret-host" in str(found.body)) == (500, False)
        endpoint.server.ready = False
        endpoint.call("GET", "/readyz")
        left = endpoint.documented - endpoint.seen
    assert {(path, status) for _, path, status in left} == {
        ("/v1/report", 400), ("/v1/report", 403), ("/v1/minimum", 403), ("/v1/minimum", 500),
    }  # fmt: skip


def test_a_report_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    one = ReferenceParticipant("node1")
    for partition in range(MOST_REPORT_BYTES // 60):
        one.add_partition(2_000_000_000, partition, Role.PRIMARY)
    with participant(one, tmp_path) as endpoint:
        assert endpoint.call("GET", "/v1/report").status == 500
        assert endpoint.call("GET", "/v1/nothing").body["message"].endswith("see /v1/openapi.json")


def test_a_python_process_serves_itself_from_a_thread(one: ReferenceParticipant, tmp_path: Path) -> None:
    file = tmp_path / "coordinator"
    file.write_text(SECRET)
    with serve(one, lambda: Gate([SharedSecret("coordinator", file)], None)) as port:
        found = Endpoint(port, ParticipantServer(one, gate(tmp_path))).call("GET", "/v1/report")
        assert found.body["name"] == "node1"


def test_what_is_wrong_at_the_start_is_raised_there(one: ReferenceParticipant) -> None:
    with pytest.raises(CatalogError, match="no secret today"), serve(one, _fail):
        pytest.fail("it started")


def _fail() -> Gate:
    raise CatalogError("no secret today")
