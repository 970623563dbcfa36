"""The endpoint of a participant (docs/design/catalog-compaction.md#protocol)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import StrEnum
from functools import partial

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from compaction.catalogs.errors import StaleCoordinatorError
from compaction.catalogs.participants.participant import Participant
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.serving.actions import ACTIONS, Action
from compaction.catalogs.serving.messages import (
    MOST_MINIMUM_BYTES,
    MOST_REPORT_BYTES,
    MinimumMessage,
    ReportMessage,
    StoredMessage,
)
from compaction.catalogs.serving.openapi import ADMIN_API, PARTICIPANT_API, ParticipantName
from compaction.catalogs.serving.refusals import REFUSALS
from compaction.serving.access import Gate, Principal
from compaction.serving.metrics import RequestMetrics
from compaction.serving.service import HttpService, KnownHandler, RequestLimits, answered

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

    def known_handlers(self) -> Mapping[StrEnum, KnownHandler]:
        handlers: dict[StrEnum, KnownHandler] = {
            ParticipantName.REPORT: self._report,
            ParticipantName.MINIMUM: self._minimum,
        }
        if (driven := self._admin) is not None:
            handlers |= {action.name: partial(self._act, driven, action) for action in ACTIONS}
        return handlers

    async def _report(self, _: web.Request, principal: Principal) -> web.StreamResponse:
        principal.check(REPORT)
        found = await self.in_thread(lambda: ReportMessage.of(self._participant.report()).to_json())
        if len(found) > MOST_REPORT_BYTES:
            log.error("the report is too large: hold fewer partitions in one process", size=len(found))
            return self.refusals.unexpected()
        return web.Response(body=found, content_type="application/json")

    async def _minimum(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        principal.check(MINIMUM)
        body = await self.body_of(request)
        if isinstance(body, web.Response):
            return body
        try:
            wanted = MinimumMessage.model_validate_json(body, by_name=False, by_alias=True)
        except ValidationError as error:
            return self.refusals.malformed(error)
        return answered(await self.in_thread(partial(self._store, wanted)))

    def _store(self, wanted: MinimumMessage) -> StoredMessage:
        self._floor.check(self._participant.name, wanted.token)
        return StoredMessage(partitions=self._participant.store_minimum(wanted.timestamp))

    async def _act(
        self, driven: ReferenceParticipant, action: Action, request: web.Request, principal: Principal
    ) -> web.StreamResponse:
        principal.check(ADMIN)
        body = await self.body_of(request)
        if isinstance(body, web.Response):
            return body
        try:
            return answered(await self.in_thread(partial(action.on, driven, body)))
        except ValidationError as error:
            return self.refusals.malformed(error)
