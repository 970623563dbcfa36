"""What a session leaves behind when it is closed: no socket, whatever the other side does."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from compaction.local.cluster.certs import ensure_authority
from compaction.storage.connector import ClosingConnector

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}"


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server and of the client."""
    directory = tmp_path_factory.mktemp("tls")
    authority = ensure_authority(directory)
    pair = authority.issue_server(["127.0.0.1"])
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (directory / name).write_bytes(content)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return server, ssl.create_default_context(cafile=str(authority.ca))


@contextmanager
def silent_server(context: ssl.SSLContext | None, data: bytes) -> Iterator[str]:
    """Answers each connection with `data`, and then neither reads nor closes until the test is over."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    workers: list[threading.Thread] = []

    def one(plain: socket.socket) -> None:
        try:
            with context.wrap_socket(plain, server_side=True) if context else plain as connection:
                connection.recv(65536)
                connection.sendall(data)
                over.wait()
        except OSError:
            return  # the client had enough

    def accept() -> None:
        while not over.is_set():
            connection, _ = listener.accept()
            if over.is_set():
                connection.close()
                return
            workers.append(threading.Thread(target=one, args=(connection,)))
            workers[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        over.set()
        socket.create_connection(listener.getsockname()).close()
        accepting.join()
        listener.close()
        for worker in workers:
            worker.join()


def leaks(work: Callable[[], Awaitable[object]]) -> list[str]:
    """What a loop that ends right after `work` leaves behind."""

    async def run() -> None:
        await work()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    return [str(item.message) for item in caught if issubclass(item.category, ResourceWarning)]


async def read_whole(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        assert await response.read() == b"{}"


async def break_off(session: aiohttp.ClientSession, url: str) -> None:
    """Leave in the middle of an answer, as a watch does."""
    async with session.get(url) as response:
        assert await response.content.read(2) == b"{}"


@pytest.mark.parametrize("force_close", [True, False], ids=["connections not kept", "connections kept"])
@pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])
@pytest.mark.parametrize(("data", "use"), [(ANSWER, read_whole), (ENDLESS, break_off)], ids=["whole", "broken off"])
def test_a_closed_session_leaves_no_socket(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    force_close: bool,
    secure: bool,
    data: bytes,
    use: Callable[[aiohttp.ClientSession, str], Awaitable[None]],
) -> None:
    """Also where the server never answers the end of TLS."""
    server, trusted = contexts

    async def work() -> None:
        connector = ClosingConnector(limit=8, ssl=trusted if secure else True, force_close=force_close)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(use(session, url) for _ in range(4)))

    with silent_server(server if secure else None, data) as url:
        assert leaks(work) == []


def test_a_connection_that_is_refused_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def work() -> None:
        async with aiohttp.ClientSession(connector=ClosingConnector(limit=8)) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://127.0.0.1:{port}/")

    assert leaks(work) == []


def test_a_cancelled_request_leaves_no_socket(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Its connection is in the middle of TLS's beginning, at a server that does not speak it."""
    _, trusted = contexts

    async def work() -> None:
        async with aiohttp.ClientSession(connector=ClosingConnector(limit=8, ssl=trusted)) as session:
            asking = asyncio.create_task(session.get(url))
            accepted.append((await asyncio.get_running_loop().sock_accept(listener))[0])
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepted: list[socket.socket] = []
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        assert leaks(work) == []
        for item in accepted:
            item.close()
