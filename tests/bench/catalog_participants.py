"""A round of a coordinator with many participants: how long answers take, and what the coordinator spends on them.

Participants are one process that answers at once, so what is measured is the coordinator's side: connections with TLS,
reading and believing reports, both decisions. The rival gets the same bytes over the same connections and does nothing
with them.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from bench.harness import Fact, Race, Side, Workspace
from compaction.catalogs.compaction.deciding import compacting, propagating
from compaction.catalogs.compaction.round import Round, Topology
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import later, physical
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.serving.client import (
    AskLimits,
    ParticipantAddress,
    ParticipantClient,
    ReportRound,
    StoreRound,
    ask_all,
    store_all,
)
from compaction.catalogs.serving.server import REPORT_PATH
from compaction.local.cluster.certs import ensure_authority
from compaction.storage.connector import ClosingConnector

PROCESS = Path(__file__).parent / "processes" / "participants.py"
LIMITS = AskLimits()


@contextmanager
def participants(
    count: int, partitions: int, directory: Path
) -> Iterator[tuple[list[ParticipantAddress], ssl.SSLContext]]:
    """Their addresses, and what their certificate is verified by."""
    authority = ensure_authority(directory)
    pair = authority.issue_server(["127.0.0.1"])
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    command = [sys.executable, str(PROCESS), str(count), str(partitions), str(certificate), str(key)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            addresses = [
                ParticipantAddress(f"node-{item}", f"https://127.0.0.1:{port}/{item}") for item in range(count)
            ]
            yield addresses, ssl.create_default_context(cafile=str(authority.ca))
        finally:
            process.stdin.close()


def asked(addresses: list[ParticipantAddress], tls: ssl.SSLContext) -> ReportRound:
    async def run() -> ReportRound:
        async with ParticipantClient(lambda: "a secret of the benchmark", tls=tls, limits=LIMITS) as client:
            return await ask_all(client, addresses)

    return asyncio.run(run())


def sent(addresses: list[ParticipantAddress], tls: ssl.SSLContext) -> StoreRound:
    async def run() -> StoreRound:
        async with ParticipantClient(lambda: "a secret of the benchmark", tls=tls, limits=LIMITS) as client:
            return await store_all(client, addresses, system_clock(), 1)

    return asyncio.run(run())


def read_only(addresses: list[ParticipantAddress], tls: ssl.SSLContext) -> None:
    """The same bytes, and nothing done with them."""

    async def run() -> None:
        turns = asyncio.Semaphore(LIMITS.connections)
        connector = ClosingConnector(limit=LIMITS.connections, ssl=tls, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one(address: ParticipantAddress) -> None:
                async with turns, session.get(address.url + REPORT_PATH) as response:
                    assert response.status == 200
                    await response.read()

            await asyncio.gather(*map(one, addresses))

    asyncio.run(run())


def round_of(found: ReportRound, addresses: list[ParticipantAddress]) -> Round:
    now = system_clock()
    topology = Topology(frozenset(address.name for address in addresses))
    return Round(now, later(now, -30_000), topology, found.answers, found.unanswered)


def history() -> CatalogHistory:
    """Three versions, all long active."""
    now = system_clock()
    return CatalogHistory([Catalog(version, later(now, (version - 10) * 60_000), 0) for version in (1, 2, 3)])


def measure(workspace: Workspace) -> Iterator[Race | Fact]:
    """See the module."""
    count, partitions = workspace.pick((1_000, 100), (20, 10))
    for held in (partitions, 10 * partitions):
        with participants(count, held, workspace.directory) as (addresses, tls):
            yield from _round(count, held, addresses, tls, workspace.pick(5, 1))


def _round(
    count: int, partitions: int, addresses: list[ParticipantAddress], tls: ssl.SSLContext, rounds: int
) -> Iterator[Race | Fact]:
    what = f"{count:,} participants with {partitions:,} partitions each"

    def ours() -> None:
        found = asked(addresses, tls)
        assert not found.failures, next(iter(found.failures.values()))

    yield Race(
        f"asking {what}",
        "reports",
        count,
        Side("asked and believed", ours),
        Side("read alone", lambda: read_only(addresses, tls)),
        rounds=rounds,
    )
    began, cpu = time.monotonic(), time.process_time()
    found = asked(addresses, tls)
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    taken = sorted(physical(answer.received_at) - physical(answer.asked_at) for answer in found.answers)
    assert len(taken) == count
    p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    limit = round(LIMITS.seconds * 1000)
    yield Fact(f"answers of {what}", f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms", f"p99 <= {limit:,} ms", p99 <= limit)
    yield Fact(f"one round of {what}", f"{wall:.2f} s, {cpu:.2f} s CPU of the coordinator")
    began, cpu = time.monotonic(), time.process_time()
    stored = sent(addresses, tls)
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    assert len(stored.stored) == count
    yield Fact(f"the minimum sent to {count:,} participants", f"{wall:.2f} s, {cpu:.2f} s CPU of the coordinator")
    decided = round_of(found, addresses)
    yield Fact(f"both decisions of {what}", _milliseconds(lambda: _decide(decided)))


def _decide(round: Round) -> None:
    assert propagating(round)
    assert compacting(round, history(), system_clock()).pin is not None


def _milliseconds(run: Callable[[], object]) -> str:
    began = time.process_time()
    run()
    return f"{(time.process_time() - began) * 1000:,.0f} ms CPU"
