"""The leader's renewals wait behind nothing of our own: the elector has a thread, a loop and connections to itself.

A server in memory, because it has to know on which connection a request arrives.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from compaction.kube.client.api import COMPACTION_POLICIES, LEASES, ApiClient
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.replica.operator import coordinator_lease
from compaction.leases.election import ElectionSettings
from compaction.leases.elector import Elector

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
