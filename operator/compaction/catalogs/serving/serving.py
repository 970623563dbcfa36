"""A participant served from a thread of the process that it describes (docs/catalog-participants.md)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compaction.catalogs.participants.participant import Participant
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.serving.server import ParticipantServer
from compaction.serving.access import Gate
from compaction.serving.running import Address
from compaction.serving.running import serve as serve_until


class _Thread:
    """An event loop of its own, until `stop`."""

    def __init__(self, make: Callable[[], ParticipantServer], address: Address) -> None:
        self._make, self._address = make, address
        self._begun, self._failure = threading.Event(), list[BaseException]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._main, name="participant-server", daemon=True)

    def start(self) -> None:
        """Returns when requests are taken. Raises IngestConfigError."""
        self._thread.start()
        self._begun.wait()
        self._raise()

    def stop(self) -> None:
        """Requests under way end first."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._failure:
            raise self._failure.pop()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001  the thread's end: raised where it was started or is stopped
            self._failure.append(error)
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = self._make()

        def started(port: int) -> None:
            self.port = port
            self._begun.set()

        try:
            await serve_until(server, self._address, stop=self._stop, started=started)
        finally:
            server.close()


@contextmanager
def serve(
    participant: Participant,
    make_gate: Callable[[], Gate],
    *,
    address: Address | None = None,
    admin: ReferenceParticipant | None = None,
) -> Iterator[int]:
    """The port on which `participant` answers, until the end of the block.

    make_gate: called in the loop of the server, as in `lambda: Gate([SharedSecret("coordinator", path)], None)`.
    address: any free port of loopback unless given. Raises IngestConfigError.
    """
    thread = _Thread(lambda: ParticipantServer(participant, make_gate(), admin=admin), address or Address(port=0))
    thread.start()
    try:
        yield thread.port
    finally:
        thread.stop()
