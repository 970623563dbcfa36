"""Several real operator processes and one real Lease: one leads, and what happens when it dies, sleeps or leaves.

Order and outcome are asserted, never speed. The replicas run with a lease of 4 s (tests/kube/replica/replica.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from compaction.kube.client.api import COMPACTION_POLICIES, LEASES, ApiClient
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.replica.operator import SWITCH_SECONDS, coordinator_lease
from compaction.leases.election import ElectionSettings
from compaction.leases.elector import Elector
from support.clocks import PATIENCE_SECONDS

REPLICA = Path(__file__).with_name("replica.py")
STOPPED, DEADMAN, LOST = 0, 70, 75


class Replicas:
    """Starts replicas that share a journal; kills what is left."""

    def __init__(self, kubeconfig: Path, namespace: str, directory: Path, kubectl: Any) -> None:
        self.kubeconfig, self.namespace, self.directory = kubeconfig, namespace, directory
        self.journal = directory / "journal"
        self.journal.touch()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kubectl = kubectl

    def start(self, identity: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{identity}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(REPLICA), str(self.kubeconfig), self.namespace, identity, str(self.journal)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes[identity] = process
        return process

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def log(self, identity: str) -> str:
        return (self.directory / f"{identity}.log").read_text()

    def lease(self) -> dict[str, Any]:
        found = self._kubectl(
            "get", "lease", "compaction-coordinator", "-o", "json", "--ignore-not-found", namespace=self.namespace
        )
        spec: dict[str, Any] = json.loads(found.stdout)["spec"] if found.stdout else {}
        return spec

    def until_leader(self, identity: str) -> None:
        wait_for(lambda: any(line.startswith(f"{identity} ") and " start" in line for line in self.lines()), self)

    def until_standing_by(self, identity: str) -> None:
        wait_for(lambda: "waiting to be elected" in self.log(identity), self)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def wait_for(condition: Callable[[], object], replicas: Replicas) -> None:
    ending = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ending:
            logs = "\n".join(f"--- {name}\n{replicas.log(name)}" for name in replicas.processes)
            pytest.fail(f"never happened\n{logs}\n--- journal\n" + "\n".join(replicas.lines()[-20:]))
        time.sleep(0.05)


@pytest.fixture
def replicas(
    control_plane: Any, namespace: str, tmp_path: Path, kubectl: Any, policy: Callable[..., Any]
) -> Iterator[Replicas]:
    kubectl("create", "-f", "-", input=json.dumps(policy("p")))
    started = Replicas(control_plane.kubeconfig, namespace, tmp_path, kubectl)
    yield started
    started.end()


def leaders_in_order(lines: list[str]) -> list[tuple[str, int]]:
    """(identity, epoch) of each term, in the order of their first lines."""
    terms = dict.fromkeys((line.split()[0], int(line.split()[1])) for line in lines)
    return list(terms)


def assert_one_at_a_time(lines: list[str]) -> None:
    """No term acts again after a later one has begun."""
    current = -1
    for line in lines:
        epoch = int(line.split()[1])
        if "reconcile" in line or line.endswith(" start"):
            assert epoch >= current, f"an ended term acted: {line}"
            current = epoch
        assert "leader=False" not in line


def assert_last_words(replicas: Replicas, identity: str) -> None:
    """A leader that ends because of its Lease says so at the level of errors, and which Lease it was."""
    name = f"{replicas.namespace}/compaction-coordinator"
    errors = [line for line in replicas.log(identity).splitlines() if "[error" in line and "why=" in line]
    assert any(name in line for line in errors), replicas.log(identity)


def test_exactly_one_leads_standbys_come_and_go_and_a_killed_leader_is_replaced(
    replicas: Replicas, kubectl: Any
) -> None:
    replicas.start("a")
    replicas.until_leader("a")
    replicas.start("b")
    replicas.until_standing_by("b")
    wait_for(lambda: sum("reconcile p" in line for line in replicas.lines()) >= 10, replicas)
    assert leaders_in_order(replicas.lines()) == [("a", 0)]
    assert replicas.lines()[0] == f"a 0 switches after {SWITCH_SECONDS} s", "the elector waits less for scans"
    for identity, leader in (("a", "1.0"), ("b", "0.0")):
        probes_answer(replicas, identity, leader=leader)

    standby = replicas.start("c")
    replicas.until_standing_by("c")
    standby.send_signal(signal.SIGTERM)
    assert standby.wait(timeout=PATIENCE_SECONDS) == STOPPED, replicas.log("c")
    assert replicas.lease()["holderIdentity"] == "a"

    replicas.processes["a"].send_signal(signal.SIGKILL)
    replicas.until_leader("b")
    wait_for(lambda: any(line.startswith("b 1 reconcile p") for line in replicas.lines()), replicas)
    assert leaders_in_order(replicas.lines()) == [("a", 0), ("b", 1)]
    assert_one_at_a_time(replicas.lines())
    spec = replicas.lease()
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("b", 1, 4)

    kubectl("delete", "cpol", "p", namespace=replicas.namespace)
    wait_for(lambda: any("Deleted CompactionPolicy p" in line for line in replicas.lines()), replicas)


def probes_answer(replicas: Replicas, identity: str, *, leader: str) -> None:
    """Probes and metrics of a replica, whether it leads or not."""
    match = re.search(r"ports=\[(\d+)", replicas.log(identity))
    assert match is not None, replicas.log(identity)
    base = f"http://127.0.0.1:{match.group(1)}"
    for path in ("livez", "readyz", "healthz"):
        answer = subprocess.run(["curl", "-fsS", f"{base}/{path}"], capture_output=True, text=True, check=True)
        assert answer.stdout == "ok\n"
    text = subprocess.run(["curl", "-fsS", f"{base}/metrics"], capture_output=True, text=True, check=True).stdout
    assert f'leader_election_master_status{{name="compaction-coordinator"}} {leader}' in text
    renewed = re.search(r"^compaction_lease_renew_delay_seconds_count (\S+)$", text, re.MULTILINE)
    assert renewed is not None
    assert (float(renewed[1]) > 0) == (leader == "1.0"), "a leader measures how late it renews"


def test_leaders_that_sleep_are_asked_to_stop_or_lose_their_lease_end_without_acting_any_more(
    replicas: Replicas, kubectl: Any
) -> None:
    replicas.start("a")
    replicas.until_leader("a")
    replicas.start("b")
    replicas.until_standing_by("b")

    # Stopped for longer than its lease.
    os.kill(replicas.processes["a"].pid, signal.SIGSTOP)
    asleep = len(replicas.lines())
    replicas.until_leader("b")
    assert not any(line.startswith("a ") for line in replicas.lines()[asleep:])
    os.kill(replicas.processes["a"].pid, signal.SIGCONT)
    assert replicas.processes["a"].wait(timeout=PATIENCE_SECONDS) in (DEADMAN, LOST), replicas.log("a")
    woken = [line for line in replicas.lines()[asleep:] if line.startswith("a ")]
    assert not any("reconcile" in line and "leader=True" in line for line in woken), woken
    assert_last_words(replicas, "a")
    assert replicas.lease()["holderIdentity"] == "b"

    # Asked to stop: it ends in order and hands over.
    wait_for(lambda: any(line.startswith("b 1 reconcile p") for line in replicas.lines()), replicas)
    replicas.processes["b"].send_signal(signal.SIGTERM)
    assert replicas.processes["b"].wait(timeout=PATIENCE_SECONDS) == STOPPED, replicas.log("b")
    assert replicas.lines()[-1] == "b 1 stop"
    spec = replicas.lease()
    assert (spec.get("holderIdentity"), spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("", 1, 1)
    replicas.start("c")
    replicas.until_leader("c")
    assert leaders_in_order(replicas.lines())[-1] == ("c", 2)
    without_the_sleeper = [line for line in replicas.lines() if line not in woken]
    assert_one_at_a_time(without_the_sleeper)

    # Robbed of its lease: it exits to be started again.
    kubectl(
        "patch", "lease", "compaction-coordinator", "--type=merge", "-p", '{"spec":{"holderIdentity":"thief"}}',
        namespace=replicas.namespace,
    )  # fmt: skip
    assert replicas.processes["c"].wait(timeout=PATIENCE_SECONDS) in (LOST, DEADMAN), replicas.log("c")
    assert_last_words(replicas, "c")
    assert replicas.lease()["holderIdentity"] == "thief"


# The leader's renewals wait behind nothing of our own: the elector has a thread, a loop and connections to itself.
#
# A server in memory, because it has to know on which connection a request arrives.

STEADY = ElectionSettings(lease_duration=120, renew_deadline=90.0, retry_period=0.05)
"""Nobody loses this Lease, however busy the machine is."""
GENEROUS = 60.0
ENOUGH = 5


class Server:
    """Keeps one Lease; a list of policies is answered when it is released."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {}
        self.versions = 0
        self.peers: dict[str, set[int]] = {}
        self.listing, self.released = threading.Event(), threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if COMPACTION_POLICIES.plural in self.path:
                    self._note()
                    outer.listing.set()
                    outer.released.wait(GENEROUS)
                    self._answer(200, {"items": [], "metadata": {"resourceVersion": "1"}})
                else:
                    self._note()
                    missing = {"kind": "Status", "reason": "NotFound", "details": {"kind": LEASES.plural}}
                    self._answer(*((200, outer.lease) if outer.lease else (404, missing)))

            def do_POST(self) -> None:
                self._note()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.versions += 1
                body["metadata"] |= {"uid": "u", "resourceVersion": str(outer.versions)}
                outer.lease = body
                self._answer(200, body)

            do_PUT = do_POST

            def _note(self) -> None:
                agent = str(self.headers["User-Agent"])
                outer.peers.setdefault(agent, set()).add(self.client_address[1])

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Not news."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.thread.start()

    @property
    def connection(self) -> ApiConnection:
        return ApiConnection(f"http://127.0.0.1:{self.http.server_address[1]}", None, no_token())

    def close(self) -> None:
        self.released.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


class Leader:
    """An elector that leads, and what it says of its renewals."""

    def __init__(self, server: Server) -> None:
        self.late: list[float] = []
        self.threads: set[str] = set()
        self.elector = Elector(
            coordinator_lease(
                server.connection, namespace="ns", name="coordinator", call_deadline=STEADY.call_deadline
            ),
            identity="one",
            settings=STEADY,
            on_sent=self._sent,
        )
        self.elector.start()
        self.until(1)

    def _sent(self, late: float) -> None:
        self.late.append(late)
        self.threads.add(threading.current_thread().name)

    def until(self, renewals: int) -> None:
        """Block this thread, and whatever loop runs in it, until so many more renewals were sent."""
        wanted, end = len(self.late) + renewals, time.monotonic() + GENEROUS
        while len(self.late) < wanted:
            assert time.monotonic() < end, "renewals wait behind this thread"
            time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def leader(server: Server) -> Iterator[Leader]:
    leader = Leader(server)
    yield leader
    leader.elector.stop(release=False)


def test_renewals_do_not_wait_for_a_loop_that_is_stuck_nor_for_calls_that_hang(server: Server, leader: Leader) -> None:
    async def work() -> None:
        async with ApiClient(server.connection, user_agent="work") as client:
            calls = [asyncio.create_task(client.list(COMPACTION_POLICIES, deadline=GENEROUS)) for _ in range(20)]
            assert await asyncio.to_thread(server.listing.wait, GENEROUS)
            leader.until(ENOUGH)  # the loop of all other work stands still in here
            server.released.set()
            await asyncio.gather(*calls)

    asyncio.run(work())
    assert leader.threads == {"elector"}
    assert server.peers["compactor-elector"].isdisjoint(server.peers["work"]), "connections of its own"
    assert len(server.peers["compactor-elector"]) == 1, "one, which stays open"
    assert leader.elector.is_leader()


def test_renewals_do_not_wait_for_threads_that_compute(leader: Leader) -> None:
    """They share the interpreter with scans, so they are late by its turns, but never by a scan."""
    ended = threading.Event()

    def scan() -> None:
        while not ended.is_set():
            json.loads(json.dumps({str(number): [number] for number in range(2000)}))

    scans = [threading.Thread(target=scan, daemon=True) for _ in range(4)]
    for item in scans:
        item.start()
    try:
        leader.until(ENOUGH)
    finally:
        ended.set()
        for item in scans:
            item.join()
    assert leader.elector.is_leader()
    assert all(0.0 <= late < STEADY.renew_deadline / 3 for late in leader.late), leader.late
