"""A connector of aiohttp whose sockets are closed when its session is.

aiohttp forgets a connection that it does not keep as soon as its transport begins to close, and TLS closes only after
an exchange with the other side. A loop that ends before that leaves the socket to the garbage collector, which reports
a leak in whatever runs then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import aiohttp

SETTLE_SECONDS: Final = 1.0
"""How long the other side has to answer the end of TLS; after that the connection is cut."""
CUT_SECONDS: Final = 5.0
"""How long the loop has to close what was cut: a few turns are enough."""


class ClosingConnector(aiohttp.TCPConnector):
    """A TCPConnector; `close`, which its session calls, returns when all of its sockets are closed."""

    def __init__(self, *, limit: int, ssl: ssl.SSLContext | bool = True, force_close: bool = False) -> None:
        super().__init__(limit=limit, ssl=ssl, force_close=force_close, socket_factory=self._made)
        self._sockets: set[_Socket] = set()
        self._none_open = asyncio.Event()

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close connections, at once where TLS is aborted; within seconds also where the other side is silent."""
        await super().close(abort_ssl=abort_ssl)
        if await self._closed_within(SETTLE_SECONDS):
            return
        for item in self._sockets:
            with contextlib.suppress(OSError):  # one that never was connected
                item.shutdown(socket.SHUT_RDWR)
        await self._closed_within(CUT_SECONDS)

    async def _closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self._sockets:
                    self._none_open.clear()
                    await self._none_open.wait()
        except TimeoutError:
            return False
        return True

    def _made(self, address: tuple[Any, ...]) -> socket.socket:
        """Make the socket for an address; aiohttp calls this for each address that it tries."""
        made = _Socket(*address[:3], forget=self._forget)
        self._sockets.add(made)
        return made

    def _forget(self, item: _Socket) -> None:
        self._sockets.discard(item)
        if not self._sockets:
            self._none_open.set()


class _Socket(socket.socket):
    """Says when it is closed."""

    def __init__(self, family: int, kind: int, protocol: int, *, forget: Callable[[_Socket], None]) -> None:
        super().__init__(family, kind, protocol)
        self._when_closed = forget

    def close(self) -> None:
        super().close()
        self._when_closed(self)
