"""The endpoint of a participant: its operations, OpenAPI document and refusals, in a thread of the process it
describes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from compaction.catalogs.errors import CatalogError, MinimumAheadError, ParticipantStateError, StaleCoordinatorError
from compaction.catalogs.participants.reference import Participant, ReferenceParticipant
from compaction.catalogs.serving.actions import ACTIONS, Action, DoneMessage
from compaction.catalogs.serving.messages import (
    MOST_MINIMUM_BYTES,
    MOST_REPORT_BYTES,
    MinimumMessage,
    ParticipantProblem,
    ParticipantProblemMessage,
    ReportMessage,
    StoredMessage,
)
from compaction.serving.access import Gate
from compaction.serving.openapi import Api, Call, EndpointOperation
from compaction.serving.refusals import Refusals, failed_here
from compaction.serving.service import Address, HttpService, RequestLimits, RequestMetrics
from compaction.serving.service import serve as serve_until

DOCUMENT_PATH: Final = "/v1/openapi.json"
REPORT_PATH: Final = "/v1/report"
MINIMUM_PATH: Final = "/v1/minimum"
HEALTH_PATH: Final = "/healthz"

# The refusals of a participant's endpoint.


def _answer(code: StrEnum, message: str) -> ParticipantProblemMessage:
    return ParticipantProblemMessage(code=ParticipantProblem(code.value), message=message)


REFUSALS: Final = Refusals(
    _answer,
    CatalogError,
    {
        StaleCoordinatorError: (HTTPStatus.CONFLICT, ParticipantProblem.STALE_TOKEN),
        MinimumAheadError: (HTTPStatus.UNPROCESSABLE_ENTITY, ParticipantProblem.MINIMUM_AHEAD),
        ParticipantStateError: (HTTPStatus.CONFLICT, ParticipantProblem.STATE),
    },
    "the API server cannot be asked whose token it is, and the log says why: send the same request again",
    document=DOCUMENT_PATH,
)


# The endpoint of a participant (docs/design/catalog-compaction.md#protocol).

log = structlog.get_logger(__name__)
REPORT, MINIMUM, ADMIN = "report", "minimum", "admin"
"""What a rule of access may allow a caller."""


class TokenFloor:
    """The largest fencing token that a coordinator came with. Memory only: what a stopped coordinator sends after a
    restart is a minimum of the past, which changes nothing where a later one is stored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._largest = 0

    def check(self, participant: str, token: int) -> None:
        """Raises StaleCoordinatorError."""
        with self._lock:
            if token < self._largest:
                raise StaleCoordinatorError(participant, token, self._largest)
            self._largest = token


class ParticipantServer(HttpService):
    """Serves one participant; for one event loop. `close` when the application has ended.

    admin: the participant itself, when callers may drive it, which only a reference participant allows.
    """

    def __init__(
        self,
        participant: Participant,
        gate: Gate,
        *,
        admin: ReferenceParticipant | None = None,
        limits: RequestLimits | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        limits = limits or RequestLimits(body_bytes=MOST_MINIMUM_BYTES, threads=2)
        self._participant, self._admin, self._floor = participant, admin, TokenFloor()
        super().__init__(
            gate,
            PARTICIPANT_API if admin is None else ADMIN_API,
            REFUSALS,
            limits=limits,
            metrics=RequestMetrics("compaction_participant", registry),
        )

    async def report(self, _: Call) -> bytes:
        """The report of this instant. Raises RequestRefusedError for one that no coordinator would take."""
        found = await self.in_thread(lambda: ReportMessage.of(self._participant.report()).to_json())
        if len(found) > MOST_REPORT_BYTES:
            log.error("the report is too large: hold fewer partitions in one process", size=len(found))
            raise failed_here()
        return found

    async def minimum(self, call: Call) -> StoredMessage:
        """The minimum is stored, unless a coordinator with a larger token was here."""
        return await self.in_thread(partial(self._store, call.body))

    def _store(self, wanted: MinimumMessage) -> StoredMessage:
        self._floor.check(self._participant.name, wanted.token)
        return StoredMessage(partitions=self._participant.store_minimum(wanted.timestamp))

    async def act(self, action: Action, call: Call) -> DoneMessage:
        """One action of a reference participant."""
        if self._admin is None:
            raise web.HTTPNotFound
        return await self.in_thread(partial(action.on, self._admin, call.body))


def _acting(action: Action) -> Callable[[ParticipantServer, Call], Awaitable[DoneMessage]]:
    return lambda server, call: server.act(action, call)


_OPERATIONS: Final = (
    EndpointOperation(
        "getReport",
        "GET",
        REPORT_PATH,
        "Report from when on the catalog is needed, and why.",
        ReportMessage,
        ParticipantServer.report,
        "Everything in a report is of one instant. It is at most 4 MiB long, and not compressed.",
        scope=REPORT,
    ),
    EndpointOperation(
        "storeMinimum",
        "POST",
        MINIMUM_PATH,
        "Store the minimum of the transactions of all participants.",
        StoredMessage,
        ParticipantServer.minimum,
        "It is stored in the log of each partition that the participant leads, and published by the next checkpoint. "
        "Repeating is harmless. 409: a coordinator with a larger token was here. 422: the participant's own "
        "transactions need an older version, so this is not the minimum of all; nothing was stored.",
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
        scope=MINIMUM,
        body=MinimumMessage,
    ),
)
_ADMIN: Final = tuple(
    EndpointOperation(
        action.name.value,
        "POST",
        action.path,
        action.summary,
        DoneMessage,
        _acting(action),
        problems=(HTTPStatus.CONFLICT,),
        scope=ADMIN,
        body=action.body,
    )
    for action in ACTIONS
)
PARTICIPANT_API: Final = Api(
    "Participant of a catalog",
    "A coordinator asks from when on the participant needs the catalog, and sends the minimum of all participants.",
    _OPERATIONS,
    ParticipantProblemMessage,
    DOCUMENT_PATH,
)
ADMIN_API: Final = replace(
    PARTICIPANT_API,
    description=f"{PARTICIPANT_API.description} The operations under /v1/admin drive a reference participant in tests.",
    own=(*_OPERATIONS, *_ADMIN),
)


def document(*, admin: bool = False, version: str = "1") -> dict[str, Any]:
    """The OpenAPI document."""
    return (ADMIN_API if admin else PARTICIPANT_API).document(version)


# A participant served from a thread of the process that it describes (docs/catalog-participants.md).


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
