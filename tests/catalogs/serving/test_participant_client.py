"""The coordinator's side: whatever answers on the socket, a report that may be believed or a failure with a name."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.api.catalog.reasons import Reason
from compaction.catalogs.compaction.deciding import unanswered
from compaction.catalogs.compaction.round import ParticipantAnswer, Round, Topology
from compaction.catalogs.errors import ParticipantConfigError, ParticipantError, ParticipantFailure
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import PartitionReport, Report, Role
from compaction.catalogs.serving.client import (
    AskLimits,
    ParticipantAddress,
    ParticipantClient,
    ReportRound,
    Skew,
    ask_all,
    skew_of,
    store_all,
)
from compaction.catalogs.serving.messages import ReportMessage
from compaction.local.cluster.certs import ensure_authority
from compaction.serving.service import Address, TlsFiles
from support.catalogs.participants import (
    REPORT,
    Script,
    answer,
    at,
    client,
    participant,
    raw_server,
    ready,
    report,
    report_answer,
    says,
)
from support.endpoints import SECRET

MESSAGE = json.loads(ReportMessage.of(REPORT).to_json())


def ask(address: ParticipantAddress, made: ParticipantClient | None = None) -> ParticipantAnswer:
    async def run() -> ParticipantAnswer:
        async with made or client() as asking:
            return await asking.ask(address)

    return asyncio.run(run())


def failure(script: Script, **limits: Any) -> ParticipantError:
    with raw_server(script) as port, pytest.raises(ParticipantError) as caught:
        ask(at(port), client(**limits))
    return caught.value


def changed(**fields: Any) -> bytes:
    """The message of a report with other fields; None leaves one out."""
    return json.dumps({name: value for name, value in (MESSAGE | fields).items() if value is not None}).encode()


def test_a_report_arrives_whole_and_dated_by_the_coordinator(tmp_path: Path) -> None:
    one = ready()
    moments = iter([hybrid(5_000), hybrid(5_100)])
    with participant(one, tmp_path) as endpoint:
        asking = client()
        asking.clock = lambda: next(moments)
        found = ask(at(endpoint.port), asking)
    assert replace(found.report, transactions=0, clock=0) == replace(one.report(), transactions=0, clock=0)
    assert (found.asked_at, found.received_at) == (hybrid(5_000), hybrid(5_100))


def test_a_clock_that_is_an_hour_off_is_measured(tmp_path: Path) -> None:
    for milliseconds in (3_600_000, -3_600_000):
        one = ready()
        one.restart()
        one.set_clock_offset(milliseconds)
        with participant(one, tmp_path) as endpoint:
            found = ask(at(endpoint.port))
        assert abs(skew_of(found).milliseconds - milliseconds) < 600_000
        seen = Round(found.asked_at, 1, Topology(frozenset({"node1"})), (found,))
        decided = unanswered(seen)
        assert decided is not None
        assert (decided.reason, decided.participant) == (Reason.CLOCK_OFF, "node1")
        assert unanswered(replace(seen, max_skew=5_000_000)) is None


def test_a_skew_is_as_certain_as_the_round_trip_is_short() -> None:
    answer = ParticipantAnswer(report(clock=hybrid(10_600)), asked_at=hybrid(10_000), received_at=hybrid(11_000))
    assert skew_of(answer) == Skew(100, 500)
    assert skew_of(replace(answer, received_at=hybrid(10_001), asked_at=hybrid(10_000))) == Skew(600, 1)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "not a report"),
        (b"garbage", "not a report"),
        (b"\xff\xfe{}", "not a report"),
        (b"[]", "not a report"),
        (b"{}", "not a report"),
        (b"[" * 100_000, "not a report"),
        (ReportMessage.of(REPORT).to_json() + b"x", "not a report"),
        (changed(clock="-5"), "clock: "),
        (changed(minimum=-5), "minimum: "),
        (changed(minimum=90), "decimal digits"),
        (changed(lowWatermark="9223372036854775808"), "lowWatermark: "),
        (changed(clock=None), "clock: Field required"),
        (changed(cause="Boredom"), "cause: "),
        (changed(sequences=[]), "sequences: Extra"),
        (changed(partitions=MESSAGE["partitions"] * 40_000), "partitions: Tuple should have at most"),
        (changed(partitions=MESSAGE["partitions"] * 2), "subjects-are-unique"),
        (changed(minimum="91"), "minimum-covers-all"),
        (changed(subject="a\u202eb"), "texts-are-short"),
        (changed(transactions="201", oldestTransaction="0"), "transactions-before-clock"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_garbage_is_named(body: bytes, what: str) -> None:
    found = failure(says(answer(body)))
    assert (found.reason, found.name) == (ParticipantFailure.GARBAGE, "node1")
    assert what in str(found)
    assert "compactor catalogs debug conformance" in str(found)


@pytest.mark.parametrize(
    ("data", "reason", "what"),
    [
        (answer(changed(), kind="text/html"), ParticipantFailure.GARBAGE, "Content-Type is text/html"),
        (answer(changed(), more="Content-Encoding: gzip\r\n"), ParticipantFailure.GARBAGE, "Content-Encoding is gzip"),
        (answer(changed(protocol=2)), ParticipantFailure.WRONG_VERSION, "version 2 of the protocol, not 1"),
        (answer(b"", status="404 Not Found"), ParticipantFailure.WRONG_VERSION, "/v1/report is not served"),
        (answer(b"", status="401 Unauthorized"), ParticipantFailure.UNAUTHORIZED, "same secret"),
        (answer(b"", status="403 Forbidden"), ParticipantFailure.UNAUTHORIZED, "403"),
        (answer(b"", status="302 Found", more="Location: http://127.0.0.1:1/\r\n"), ParticipantFailure.REDIRECTED, ""),
        (answer(b"", status="500 Oops"), ParticipantFailure.REFUSED, "answers 500"),
        (answer(b'{"code":"Busy","message":"come later"}', status="503 x"), ParticipantFailure.REFUSED, "come later"),
        (answer(changed(name="node2")), ParticipantFailure.NAME_DIFFERS, "'node2' answers there"),
        (answer(b"x", length=100 << 20), ParticipantFailure.TOO_LARGE, "more than 4194304 bytes"),
        (answer(changed(), length=len(changed()) + 1), ParticipantFailure.NO_ANSWER, ""),
        (b"SSH-2.0-OpenSSH_9.6\r\n", ParticipantFailure.GARBAGE, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n", ParticipantFailure.GARBAGE, "not HTTP"),
        (b"", ParticipantFailure.NO_ANSWER, ""),
    ],
    ids=lambda value: value if isinstance(value, ParticipantFailure) else "",
)
def test_other_answers_have_reasons_of_their_own(data: bytes, reason: ParticipantFailure, what: str) -> None:
    found = failure(says(data))
    assert found.reason is reason, found
    assert what in str(found)
    assert SECRET not in str(found)


def test_a_body_of_100_megabytes_is_not_read() -> None:
    sent = [0]

    def endless(connection: socket.socket, _: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _megabyte in range(100):
            connection.sendall(b"100000\r\n" + b"[" * (1 << 20) + b"\r\n")
            sent[0] += 1

    assert failure(endless).reason is ParticipantFailure.TOO_LARGE
    assert sent[0] < 90, "the connection was closed long before the end"


def test_a_body_of_100_megabytes_behind_a_refusal_is_not_read() -> None:
    assert failure(says(answer(b"x" * 8192, status="500 x", length=100 << 20))).reason is ParticipantFailure.REFUSED


def test_a_slow_drip_is_late() -> None:
    def drip(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(answer(b"", length=1000))
        while not over.wait(0.02):
            connection.sendall(b" ")

    found = failure(drip, seconds=0.5)
    assert found.reason is ParticipantFailure.LATE
    assert "no whole answer within 0.5 s" in str(found)


def test_a_server_that_accepts_and_is_silent_is_late() -> None:
    assert failure(lambda _, over: _wait(over), seconds=0.3).reason is ParticipantFailure.LATE


def _wait(over: threading.Event) -> None:
    over.wait()


def test_a_port_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ParticipantError) as caught:
        ask(at(port))
    assert caught.value.reason is ParticipantFailure.NO_ANSWER
    assert "network policies" in str(caught.value)


def test_a_wrong_secret(tmp_path: Path) -> None:
    with participant(ready(), tmp_path) as endpoint, pytest.raises(ParticipantError) as caught:
        ask(at(endpoint.port), ParticipantClient(lambda: "not the secret of the tests"))
    assert caught.value.reason is ParticipantFailure.UNAUTHORIZED


def certified(directory: Path) -> tuple[TlsFiles, ssl.SSLContext]:
    """A server's files, and the context of a client that trusts them."""
    authority = ensure_authority(directory / "one")
    pair = authority.issue_server(["127.0.0.1"])
    files = TlsFiles(directory / "tls.crt", directory / "tls.key")
    files.certificate.write_bytes(pair.certificate)
    files.key.write_bytes(pair.key)
    return files, ssl.create_default_context(cafile=str(authority.ca))


def test_tls_is_verified(tmp_path: Path) -> None:
    files, trusted = certified(tmp_path)
    stranger = ssl.create_default_context(cafile=str(ensure_authority(tmp_path / "other").ca))
    with participant(ready(), tmp_path, address=Address(port=0, tls=files), tls=trusted) as endpoint:
        address = ParticipantAddress("node1", f"https://127.0.0.1:{endpoint.port}")
        assert ask(address, ParticipantClient(lambda: SECRET, tls=trusted)).report.name == "node1"
        with pytest.raises(ParticipantError) as caught:
            ask(address, ParticipantClient(lambda: SECRET, tls=stranger))
    assert caught.value.reason is ParticipantFailure.NO_ANSWER
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)


def test_a_loop_that_ends_after_a_round_leaves_no_socket(tmp_path: Path) -> None:
    files, trusted = certified(tmp_path)
    with participant(ready(), tmp_path, address=Address(port=0, tls=files), tls=trusted) as endpoint:
        address = ParticipantAddress("node1", f"https://127.0.0.1:{endpoint.port}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(40):
                ask(address, ParticipantClient(lambda: SECRET, tls=trusted))
            gc.collect()
    assert [str(item.message) for item in caught] == []


@pytest.mark.parametrize(
    "url",
    ["", "node1", "ftp://127.0.0.1", "http://a:b@127.0.0.1", "https://x/?a=b", "http://10.0.0.3:80", "http://[::"],
)
def test_addresses_that_are_not_asked(url: str) -> None:
    with pytest.raises(ParticipantConfigError, match="node1"):
        ask(ParticipantAddress("node1", url))
    ParticipantAddress("node1", "http://10.0.0.3:80").check(plain=True)


def test_a_client_that_is_not_open() -> None:
    with pytest.raises(ParticipantConfigError, match="not open"):
        asyncio.run(client().ask(at(1)))


def store(port: int, timestamp: int, token: int) -> int:
    async def run() -> int:
        async with client() as asking:
            return await asking.store(at(port), timestamp, token)

    return asyncio.run(run())


def test_a_minimum_is_sent_and_its_refusals_have_names(tmp_path: Path) -> None:
    one = ready()
    with participant(one, tmp_path) as endpoint:
        assert store(endpoint.port, hybrid(3000), 7) == 1
        for timestamp, token, reason in (
            (hybrid(3000), 6, ParticipantFailure.STALE_TOKEN),
            (later(one.now(), 3_600_000), 8, ParticipantFailure.MINIMUM_AHEAD),
        ):
            with pytest.raises(ParticipantError) as caught:
                store(endpoint.port, timestamp, token)
            assert caught.value.reason is reason
    with raw_server(says(answer(b'{"partitions": -1}'))) as port, pytest.raises(ParticipantError) as caught:
        store(port, 1, 1)
    assert caught.value.reason is ParticipantFailure.GARBAGE


def run_round(addresses: list[ParticipantAddress], **limits: Any) -> Any:
    async def run() -> Any:
        async with client(**limits) as asking:
            return await ask_all(asking, addresses)

    return asyncio.run(run())


def test_a_round_has_every_participant_once() -> None:
    names = [f"node{number}" for number in range(40)]

    def any_of(names_left: list[str]) -> Script:
        lock = threading.Lock()

        def script(connection: socket.socket, _: threading.Event) -> None:
            with lock:
                name = names_left.pop()
            connection.sendall(report_answer(report(name=name)))

        return script

    with raw_server(any_of(["node0"] * 40)) as port:
        found = run_round([at(port, name) for name in names], connections=4)
    assert list(found.reports) == ["node0"]
    assert set(found.failures) == set(names[1:])
    assert {item.reason for item in found.failures.values()} == {ParticipantFailure.NAME_DIFFERS}


def test_no_more_connections_at_a_time_than_allowed() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def script(connection: socket.socket, over: threading.Event) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        over.wait(0.02)
        with lock:
            running[0] -= 1
        connection.sendall(report_answer(REPORT))

    with raw_server(script) as port:
        found = run_round([ParticipantAddress(f"n{number}", at(port).url) for number in range(20)], connections=3)
    assert len(found.failures) == 20
    assert 1 <= most[0] <= 3


def test_one_that_hangs_delays_no_other_and_is_the_only_one_that_fails(tmp_path: Path) -> None:
    with participant(ready(), tmp_path) as endpoint, raw_server(lambda _, over: _wait(over)) as silent:
        found = run_round([at(silent, "silent"), at(endpoint.port)], seconds=1.0)
    assert (list(found.reports), list(found.failures)) == (["node1"], ["silent"])
    (silent_one,) = found.unanswered
    assert (silent_one.name, silent_one.reason) == ("silent", Reason.ANSWER_LATE)
    assert "no whole answer within 1 s" in silent_one.message
    assert [item.name for item in found.answers] == ["node1"]


@pytest.mark.parametrize("failure", ParticipantFailure)
def test_each_failure_has_a_reason_of_the_decision(failure: ParticipantFailure) -> None:
    """An answer that is there and cannot be believed is another thing than none."""
    reasons = {ParticipantFailure.NO_ANSWER: Reason.NO_ANSWER, ParticipantFailure.LATE: Reason.ANSWER_LATE}
    (found,) = ReportRound({}, {"a": ParticipantError("a", "http://a", failure, "the particulars")}).unanswered
    assert (found.name, found.reason) == ("a", reasons.get(failure, Reason.ANSWER_REFUSED))
    assert "the particulars" in found.message


def test_a_round_ends_though_most_of_it_hangs() -> None:
    with raw_server(lambda _, over: _wait(over)) as silent:
        addresses = [at(silent, f"silent{number}") for number in range(30)]
        found = run_round(addresses, seconds=0.3, connections=2, round_seconds=0.5)
    assert len(found.failures) == 30
    assert {item.reason for item in found.failures.values()} == {ParticipantFailure.LATE}
    assert any("its turn did not come" in str(item) for item in found.failures.values())


def test_a_name_with_two_addresses_is_asked_at_none() -> None:
    with pytest.raises(ParticipantConfigError, match="node1 has several addresses"):
        run_round([at(1), at(2)])


def test_the_minimum_is_sent_to_all(tmp_path: Path) -> None:
    async def run(addresses: list[ParticipantAddress]) -> Any:
        async with client() as asking:
            return await store_all(asking, addresses, hybrid(3000), 9)

    one = ready()
    with participant(one, tmp_path) as endpoint, raw_server(says(answer(b"", status="500 x"))) as broken:
        found = asyncio.run(run([at(endpoint.port), at(broken, "broken")]))
    assert (found.stored, list(found.failures)) == ({"node1": 1}, ["broken"])
    one.begin_checkpoint()
    one.finish_checkpoint()
    assert one.report().minimum == hybrid(3000)


def test_a_large_report_is_read(tmp_path: Path) -> None:
    partitions = tuple(PartitionReport(1, number, Role.REPLICA, 95) for number in range(10_000))
    large: Report = report(partitions=partitions)

    class Large(ReferenceParticipant):
        def report(self) -> Report:
            return large

    with participant(Large("node1"), tmp_path) as endpoint:
        assert ask(at(endpoint.port)).report == large


def test_limits_have_defaults_that_bound_everything() -> None:
    limits = AskLimits()
    check: Callable[[float], bool] = lambda value: 0 < value < 10_000_000  # noqa: E731
    assert all(map(check, (limits.seconds, limits.connections, limits.round_seconds, limits.report_bytes)))
    assert (limits.round_seconds, limits.turn_seconds + limits.seconds) == (120.0, 120.0), "the last turn ends in time"
    assert AskLimits(seconds=200.0).turn_seconds == 200.0


def test_a_participant_on_which_the_code_fails_is_one_failure_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ParticipantClient.ask

    async def ask(self: ParticipantClient, address: ParticipantAddress) -> ParticipantAnswer:
        return [][3] if address.name == "node1" else await plain(self, address)

    monkeypatch.setattr(ParticipantClient, "ask", ask)
    with raw_server(says(report_answer(report(name="node0")))) as port:
        found = run_round([at(port, "node0"), at(port, "node1")])
    assert list(found.reports) == ["node0"]
    assert "an unexpected IndexError at catalogs/serving/client.py:" in found.failures["node1"].detail
