"""Requests as a check sends them, wrong ones too, and answers as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from compaction.catalogs.compaction.round import Answer
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.participants.report import Report
from compaction.catalogs.serving import answers
from compaction.catalogs.serving.messages import MOST_REPORT_BYTES, ReportMessage
from compaction.catalogs.serving.openapi import MINIMUM_PATH, REPORT_PATH
from compaction.errors import CompactionError
from compaction.serving.openapi import JSON

WRONG_SECRET: Final = "a secret that is not the one of this participant"


class BrokenRuleError(CompactionError):
    """A check found what it checks for; the text says what, and the name of the check says which rule."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Of one request. `body` is at most as long as a report."""

    status: int
    kind: str
    encoding: str
    body: bytes

    def expect(self, status: int, what: str) -> None:
        """Raises BrokenRuleError."""
        if self.status != status:
            raise BrokenRuleError(f"{what} answers {self.status}, not {status}")


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """`token`: the fencing token to come with, of which the run also uses the next. `max_skew`: milliseconds."""

    url: str
    secret: str
    token: int = 1
    max_skew: int = 500
    seconds: float = 10.0


class Probe:
    """One participant; in an event loop."""

    def __init__(self, session: aiohttp.ClientSession, settings: ProbeSettings) -> None:
        self._session, self.settings = session, settings

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        secret: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request. `secret` "" is that of the settings, None sends none. Raises BrokenRuleError for no answer."""
        sent = {"Accept": JSON, "Accept-Encoding": "identity", **(headers or {})}
        if secret is not None:
            sent["Authorization"] = f"Bearer {secret or self.settings.secret}"
        if body is not None:
            sent.setdefault("Content-Type", JSON)
        what, seconds = f"{method} {path}", self.settings.seconds
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method, self.settings.url.rstrip("/") + path, data=body, headers=sent, allow_redirects=False
                ) as response,
            ):
                found = await answers.whole(response, MOST_REPORT_BYTES)
        except TimeoutError:
            raise BrokenRuleError(f"{what} has no whole answer within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenRuleError(f"{what} has no answer: {answers.text_of(error)}") from None
        if found is None:
            raise BrokenRuleError(f"{what} answers with more than {MOST_REPORT_BYTES} bytes")
        encoding = response.headers.get("Content-Encoding", "identity")
        return Reply(response.status, response.content_type, encoding, found)

    async def report(self) -> Answer:
        """A report of the form it should have. Raises BrokenRuleError."""
        asked_at = system_clock()
        reply = await self.call("GET", REPORT_PATH)
        received_at = system_clock()
        reply.expect(200, f"GET {REPORT_PATH}")
        if (reply.kind, reply.encoding) != (JSON, "identity"):
            raise BrokenRuleError(f"a report is {JSON} and not compressed, and this is {reply.kind}, {reply.encoding}")
        try:
            message = ReportMessage.model_validate_json(reply.body, by_name=False, by_alias=True)
        except ValidationError as error:
            raise BrokenRuleError(answers.garbage("", "", error, body=reply.body).detail) from None
        return Answer(message.report(), asked_at, received_at)

    async def bare_report(self) -> Report:
        """The same, not dated."""
        return (await self.report()).report

    async def minimum(self, timestamp: int, token: int, **options: Any) -> Reply:
        """Send a minimum to store. Raises BrokenRuleError for no answer."""
        body = json.dumps({"timestamp": str(timestamp), "token": token}).encode()
        return await self.call("POST", MINIMUM_PATH, body, **options)

    async def act(self, action: str, **arguments: Any) -> Any:
        """Drive the participant; the timestamp of the answer. Raises BrokenRuleError when it is refused."""
        reply = await self.call("POST", f"/v1/admin/{action}", json.dumps(arguments).encode())
        reply.expect(200, f"POST /v1/admin/{action} {json.dumps(arguments)}")
        try:
            return int(json.loads(reply.body).get("timestamp", "0"))
        except (ValueError, AttributeError):
            raise BrokenRuleError(f"POST /v1/admin/{action} answers with no timestamp") from None
