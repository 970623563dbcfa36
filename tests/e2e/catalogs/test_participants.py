"""Participants that are silent, slow, wrong, hostile or restarted: each is named, and nothing is cut meanwhile; and
participants that are pods.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.participants.reports import Report
from support.catalogs.etcd_members import Members
from support.catalogs.participants import Script, answer, raw_server, report, report_answer, says
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, Object
from support.cluster.orders import TOKEN_SECRET, Orders, orders
from support.processes.operators import ACCOUNT, OperatorFleet

pytestmark = pytest.mark.apiserver

HOUR = 3_600_000
PORT = 7811
ENDLESS = 100 << 20


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Hears the question, and says nothing for longer than is waited."""
    over.wait()


def dripping(connection: socket.socket, over: threading.Event) -> None:
    """A byte now and then: never whole, never silent."""
    connection.sendall(answer(b"", length=1000))
    while not over.wait(0.2):
        connection.sendall(b" ")


def too_much(connection: socket.socket, over: threading.Event) -> None:
    """100 MB, without a length that would give it away."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    for _ in range(ENDLESS >> 20):
        connection.sendall(b" " * (1 << 20))


def named(**changes: object) -> Report:
    return report(name="b", **changes)


IMPOSTORS: tuple[tuple[str, str, Script], ...] = (
    ("AnswerLate", "no whole answer within 2 s", silent),
    ("AnswerLate", "no whole answer within 2 s", dripping),
    ("AnswerRefused", "more than", too_much),
    ("AnswerRefused", "more than", says(answer(b"", length=ENDLESS))),
    ("AnswerRefused", "not HTTP", says(b"\x00\x01\x02 garbage\r\n\r\n")),
    ("AnswerRefused", "not a report", says(answer(b"[" * 100_000))),
    ("AnswerRefused", "Content-Type", says(answer(b"<html>", kind="text/html"))),
    ("AnswerRefused", "'node1' answers there", says(report_answer(report()))),
    ("AnswerRefused", "minimum-covers-all", says(report_answer(named(minimum=110)))),
    ("AnswerRefused", "answers 302", says(answer(b"", status="302 Found", more="Location: http://127.0.0.1/\r\n"))),
    ("NoAnswer", "", lambda connection, _: connection.close()),
)
"""Reason, what the message says, and what answers at the participant's address."""


def test_a_participant_that_cannot_be_believed_is_named_and_nothing_is_cut(
    operators: OperatorFleet, catalog: Orders
) -> None:
    b = catalog.participants["b"]
    operators.start()
    catalog.apply(timeouts={"answer": "2s"})
    catalog.await_cut(7)
    b.kill()
    catalog.await_reason("NoAnswer", "b")
    last = catalog.grow(2)
    catalog.await_condition("False", "NoAnswer")
    for reason, words, script in IMPOSTORS:
        with raw_server(script, b.port):
            process = catalog.await_reason(reason, "b", says=words)
            assert process["outcome"] == "Aborted"
            (shown,) = (item for item in catalog.status()["participants"] if item["name"] == "b")
            assert shown["reason"] != "Answered"
            assert shown["message"]
    status = catalog.status()
    assert (status["earliestVersion"], status["versionsCut"], catalog.history()[0]) == (7, 6, 7)
    catalog.start("b")
    catalog.await_cut(last - 1)


def test_a_clock_that_is_off_partitions_that_are_missing_and_a_restart(
    operators: OperatorFleet, catalog: Orders
) -> None:
    a, b = catalog.participants.values()
    operators.start()
    catalog.apply()
    catalog.await_cut(7)
    for offset, words in ((HOUR, "ahead of"), (-HOUR, "behind")):
        b.act("set-clock", milliseconds=offset)
        process = catalog.await_reason("ClockOff", "b", says=words)
        catalog.await_condition("False", "ClockOff")
        assert "synchronize the clocks" in process["message"]
        propagated = catalog.status()["propagation"]
        assert (propagated["reason"], propagated["participant"]) == ("ClockOff", "b")
        before = catalog.history()[0]
        last = catalog.grow(2)
        catalog.await_latest(last)
        assert catalog.history()[0] == before
        # Times that it has handed out go on ascending: only a process that starts again is rid of a wrong clock.
        b.kill()
        catalog.start("b")
        catalog.await_cut(last - 1)

    b.act("remove-partition", tableId=catalog.table_id, partition=0)
    catalog.grow(2)
    process = catalog.await_reason("MissingPartition", says="1 participants, 2 replicas are expected")
    assert process["subject"] == f"table {catalog.table_id} partition 0"
    catalog.await_condition("False", "MissingPartition")
    assert catalog.history()[0] == last - 1
    a.act("pause-replication", paused=False)
    catalog.hold_partition("b")
    last = max(catalog.versions)
    catalog.await_cut(last - 1)

    b.options = ("--availability=1h", "--update-interval=1h")
    b.kill()
    catalog.grow(2)
    catalog.start("b")
    process = catalog.await_reason("UndefinedPartition", "b")
    assert "after its next checkpoint" in process["message"]
    assert process["outcome"] == "Aborted"
    assert catalog.history()[0] == last - 1

    def checkpointed(done: Callable[[], bool]) -> Callable[[], bool]:
        """A checkpoint publishes the minimum that the process had when it began: none before a round has sent one, or
        that of an earlier round.
        """

        def look() -> bool:
            b.act("begin-checkpoint")
            b.act("finish-checkpoint")
            return done()

        return look

    (partition,) = b.report()["partitions"]
    assert int(partition["minimum"]) == UNDEFINED
    eventually(checkpointed(lambda: int(b.report()["partitions"][0]["minimum"]) != UNDEFINED), "b to publish a minimum")
    catalog.await_pin("LowWatermark", "b", earliest=last - 1)
    b.act("move-watermark", timestamp=int(b.report()["clock"]))
    earliest = max(catalog.versions) - 1
    eventually(checkpointed(lambda: catalog.history()[0] == earliest), f"history to begin with version {earliest}")
    catalog.await_cut(earliest)


@pytest.fixture
def in_pods(cluster: Cluster, etcd: Members, tmp_path: Path) -> Iterator[Orders]:
    """Participants on the addresses that their pods get: one port, as a selector has it."""
    with orders(cluster, etcd.settings(), tmp_path / "participants", "orders-0", "orders-1", port=PORT) as found:
        for number, item in enumerate(found.participants.values()):
            item.host = f"127.0.0.{number + 2}"
        found.create()
        found.write_token()
        found.allow_secrets(ACCOUNT)
        yield found


def test_participants_are_the_pods_of_a_selector(operators: OperatorFleet, in_pods: Orders) -> None:
    catalog, cluster = in_pods, in_pods.cluster
    operators.start()
    selector = {"matchLabels": {"app": "orders"}, "port": PORT}
    catalog.apply(
        participants={"selector": selector, "plainHTTP": True, "token": {"secretName": TOKEN_SECRET}},
        topology={"minParticipants": 2},
    )
    catalog.await_reason("NoParticipants", says="0 participants were found")
    add_pod(cluster, "other", labels={"app": "another"}, address="127.0.0.9")
    first, second = catalog.participants.values()
    add_pod(cluster, first.name, address=first.host)
    add_pod(cluster, second.name, address="")
    catalog.await_reason("NoParticipants", says="1 participants were found")
    set_status(cluster, second.name, {"phase": "Running", "podIP": second.host, "podIPs": [{"ip": second.host}]})
    status = catalog.await_cut(7)
    assert {item["name"]: item["reason"] for item in status["participants"]} == {
        "orders-0": "Answered",
        "orders-1": "Answered",
    }

    # A pod that is being deleted still has transactions; one that has ended has none.
    begun = second.act("begin")
    cluster.patch(f"pod/{second.name}", {"metadata": {"finalizers": ["example.com/x"]}})
    cluster.delete(f"pod/{second.name}")
    last = catalog.grow(2)
    catalog.await_pin("Transaction", second.name, earliest=7)
    second.act("finish", timestamp=begun)
    catalog.await_cut(last - 1)
    set_status(cluster, second.name, {"phase": "Succeeded"})
    cluster.patch(f"pod/{second.name}", {"metadata": {"finalizers": None}})
    catalog.await_reason("NoParticipants")
    second.kill()
    catalog.patch(topology={"minParticipants": 1})
    last = catalog.grow(2)
    status = catalog.await_cut(last - 1)
    assert [item["name"] for item in status["participants"]] == [first.name]


def add_pod(cluster: Cluster, name: str, *, address: str, labels: Object | None = None) -> None:
    """A pod that runs, to the API server: no kubelet starts it. Without an address it waits."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": "orders"}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "orders", "image": "orders"}],
        },
    }
    cluster.apply(body)
    if address:
        set_status(cluster, name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})


def set_status(cluster: Cluster, name: str, status: Object) -> None:
    """As its kubelet would."""
    cluster.patch(f"pod/{name}", {"status": status}, subresource="status")
