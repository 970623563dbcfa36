"""The participants of a round's benchmark, all in one process: each has a path of its own, and answers at once.

    python participants.py COUNT PARTITIONS [CERTIFICATE KEY]

Prints the port when it listens; ends when its input does.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

from aiohttp import web

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import later
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.participants.reports import Cause, PartitionReport, Report, Role
from compaction.catalogs.serving.messages import ReportMessage, StoredMessage
from compaction.catalogs.serving.server import MINIMUM_PATH, REPORT_PATH

TABLE_PARTITIONS = 25
"""Of each table."""


def report(number: int, partitions: int, now: int) -> Report:
    """All its partitions have published the same minimum, a minute before now."""
    needed = later(now, -60_000)
    held = tuple(
        PartitionReport(10 + item // TABLE_PARTITIONS, item % TABLE_PARTITIONS, Role.REPLICA, needed)
        for item in range(partitions)
    )
    subject = "table 10 partition 0"
    return Report(f"node-{number}", needed, Cause.PARTITION, subject, now, UNDEFINED, needed, held, (), (), needed, now)


def application(count: int, partitions: int) -> web.Application:
    """The bodies are made once, but for the clock: what they cost is not what is measured."""
    made = system_clock()
    bodies = [ReportMessage.of(report(number, partitions, made)).to_json() for number in range(count)]
    written = str(made).encode()
    assert bodies[0].count(written) == 2, "the clock and the transactions alone are this time"
    stored = StoredMessage.model_construct(partitions=partitions).to_json()

    async def ask(request: web.Request) -> web.Response:
        body = bodies[int(request.match_info["number"])].replace(written, str(system_clock()).encode())
        return web.Response(body=body, content_type="application/json")

    async def store(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=stored, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{number}" + REPORT_PATH, ask)
    app.router.add_post("/{number}" + MINIMUM_PATH, store)
    return app


async def serve(count: int, partitions: int, tls: ssl.SSLContext | None) -> None:
    runner = web.AppRunner(application(count, partitions), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls, backlog=1024)
    await site.start()
    assert runner.addresses
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main(count: str, partitions: str, *pair: str) -> None:
    tls = None
    if pair:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*pair)
    asyncio.run(serve(int(count), int(partitions), tls))


if __name__ == "__main__":
    main(*sys.argv[1:])
