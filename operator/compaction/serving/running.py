"""The endpoint on a port, until it is stopped: TLS by files that may be replaced, an end that breaks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from compaction.serving.errors import IngestConfigError
from compaction.serving.service import HttpService

LOOK_SECONDS: Final = 30.0
"""How often files of TLS are checked."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate (with its chain) and its key, as PEM."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Raises IngestConfigError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """New connections get what is in the files now. Raises IngestConfigError."""
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise IngestConfigError(f"{self.certificate} and {self.key}: cannot be used for TLS: {error}") from None

    def version(self) -> tuple[tuple[int, int], ...]:
        """Another one when a file was replaced; empty while one is missing."""
        try:
            found = [os.stat(path) for path in (self.certificate, self.key)]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 is any free one. `tls` None is plain HTTP, beyond loopback only if `plain` says so.

    `drain_seconds`: how long requests are still accepted after the signal to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    tls: TlsFiles | None = None
    plain: bool = False
    drain_seconds: float = 0.0

    def check(self) -> None:
        """Raises IngestConfigError: tokens would travel readably."""
        if self.tls is None and not self.plain and not is_loopback(self.host):
            raise IngestConfigError(
                f"{self.host}: beyond loopback, bearer tokens would travel readably: give --tls-cert and --tls-key, or "
                "--plain-http where something else encrypts"
            )


async def serve(
    server: HttpService, address: Address, *, stop: asyncio.Event, started: Callable[[int], None] = lambda _: None
) -> None:
    """Serve until `stop` is set; `started` gets the port. Raises IngestConfigError."""
    address.check()
    context = address.tls.context() if address.tls is not None else None
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=20.0,
        auto_decompress=False,  # a little that stands for a lot would be unpacked before anybody is known
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise IngestConfigError(f"cannot listen on {where}: {error.strerror}; choose another port") from None
        watching = asyncio.create_task(_watch(address.tls, context))
        port = int(runner.addresses[0][1])
        server.ready = True
        log.info("listening", host=address.host, port=port, tls=context is not None)
        started(port)
        try:
            await stop.wait()
        finally:
            server.ready = False
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await asyncio.sleep(address.drain_seconds)
    finally:
        await runner.cleanup()


async def _watch(files: TlsFiles | None, context: ssl.SSLContext | None) -> None:
    """Certificates are renewed long before they end."""
    if files is None or context is None:
        return
    seen = files.version()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = files.version()
        if found and found != seen:
            try:
                files.context()  # a pair that does not fit would spoil the one in use
                files.load(context)
            except IngestConfigError as error:
                log.error("the new certificate cannot be used; the old one stays", error=str(error))
            else:
                log.info("the certificate was replaced")
            seen = found


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own: what travels there needs no encryption."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
