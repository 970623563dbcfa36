"""The rules of the protocol as checks, and the requests they send, wrong ones too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from compaction.catalogs.compaction.deciding import unanswered
from compaction.catalogs.compaction.round import ParticipantAnswer, Round, Topology
from compaction.catalogs.model.descriptors import MINIMUM, later
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.participants.reports import Report, ReportRule, contradictions
from compaction.catalogs.serving import client
from compaction.catalogs.serving.messages import MOST_REPORT_BYTES, ReportMessage
from compaction.catalogs.serving.server import DOCUMENT_PATH, HEALTH_PATH, MINIMUM_PATH, REPORT_PATH
from compaction.errors import CompactionError
from compaction.serving.openapi import JSON

# Requests as a check sends them, wrong ones too, and answers as they are.

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
                found = await client.whole_answer(response, MOST_REPORT_BYTES)
        except TimeoutError:
            raise BrokenRuleError(f"{what} has no whole answer within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenRuleError(f"{what} has no answer: {client.text_of(error)}") from None
        if found is None:
            raise BrokenRuleError(f"{what} answers with more than {MOST_REPORT_BYTES} bytes")
        encoding = response.headers.get("Content-Encoding", "identity")
        return Reply(response.status, response.content_type, encoding, found)

    async def report(self) -> ParticipantAnswer:
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
            raise BrokenRuleError(client.garbage("", "", error, body=reply.body).detail) from None
        return ParticipantAnswer(message.report(), asked_at, received_at)

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


# The rules of the protocol, one check each (docs/design/catalog-compaction.md#protocol).

AHEAD: Final = 3_600_000
"""Milliseconds: no participant's transactions need a time in an hour."""


@dataclass(frozen=True, slots=True)
class ProtocolCheck:
    """One rule. `run` raises BrokenRuleError. `after`: the check without which this one says nothing."""

    name: str
    rule: str
    run: Callable[[Probe], Awaitable[None]]
    after: str = ""


async def _health(probe: Probe) -> None:
    (await probe.call("GET", HEALTH_PATH, secret=None)).expect(200, f"GET {HEALTH_PATH} without a secret")


async def _document(probe: Probe) -> None:
    reply = await probe.call("GET", DOCUMENT_PATH, secret=None)
    reply.expect(200, f"GET {DOCUMENT_PATH} without a secret")
    found = _json(reply)
    paths = found.get("paths") if isinstance(found, dict) else None
    if not isinstance(paths, dict) or not str(found.get("openapi", "")).startswith("3."):
        raise BrokenRuleError(f"{DOCUMENT_PATH} is no OpenAPI 3 document")
    for path in (REPORT_PATH, MINIMUM_PATH):
        if path not in paths:
            raise BrokenRuleError(f"{DOCUMENT_PATH} does not describe {path}")


async def _report_secret(probe: Probe) -> None:
    for secret, what in ((None, "without a secret"), (WRONG_SECRET, "with a wrong secret")):
        (await probe.call("GET", REPORT_PATH, secret=secret)).expect(401, f"GET {REPORT_PATH} {what}")


async def _report(probe: Probe) -> None:
    await probe.report()


def _kept(rule: ReportRule) -> Callable[[Probe], Awaitable[None]]:
    async def check(probe: Probe) -> None:
        answer = await probe.report()
        for contradiction in contradictions(answer.report):
            if contradiction.rule is rule:
                raise BrokenRuleError(contradiction.what)

    return check


async def _clock_fits(probe: Probe) -> None:
    answer = await probe.report()
    asked = Topology(frozenset({answer.name}))
    seen = Round(answer.asked_at, MINIMUM, asked, (answer,), max_skew=probe.settings.max_skew)
    if (found := unanswered(seen)) is not None:
        raise BrokenRuleError(found.message)


async def _grows(probe: Probe) -> None:
    before, after = await probe.report(), await probe.report()
    _later(before, after)


def _later(before: ParticipantAnswer, after: ParticipantAnswer) -> None:
    """Check what may only grow. Raises BrokenRuleError."""
    earlier, two = before.report, after.report
    if two.name != earlier.name:
        raise BrokenRuleError(f"its name was {earlier.name!r}, and is {two.name!r}")
    if two.clock < earlier.clock:
        raise BrokenRuleError(f"its clock went back from {earlier.clock} to {two.clock}")
    if two.low_watermark < earlier.low_watermark:
        raise BrokenRuleError(f"its low watermark fell from {earlier.low_watermark} to {two.low_watermark}")
    known = {(found.table_id, found.partition): found.minimum for found in earlier.partitions}
    for found in two.partitions:
        if found.minimum < known.get((found.table_id, found.partition), 0):
            raise BrokenRuleError(f"the minimum of table {found.table_id} partition {found.partition} fell")


async def _other_paths(probe: Probe) -> None:
    (await probe.call("GET", "/v1/no-such-path")).expect(404, "GET /v1/no-such-path")
    (await probe.call("DELETE", REPORT_PATH)).expect(405, f"DELETE {REPORT_PATH}")


async def _minimum_secret(probe: Probe) -> None:
    for secret, what in ((None, "without a secret"), (WRONG_SECRET, "with a wrong secret")):
        (await probe.minimum(MINIMUM, probe.settings.token, secret=secret)).expect(401, f"POST {MINIMUM_PATH} {what}")


_FORMS: Final = (
    b"", b"garbage", b"[]", b"{}", b'{"timestamp": "1"}', b'{"token": 1}', b'{"timestamp": 1, "token": 1}',
    b'{"timestamp": "-1", "token": 1}', b'{"timestamp": "0", "token": 1}', b'{"timestamp": "1", "token": 0}',
    b'{"timestamp": "1", "token": "1"}', b'{"timestamp": "1", "token": 1, "more": 1}',
    b'{"timestamp": "9223372036854775808", "token": 1}',
)  # fmt: skip


async def _minimum_form(probe: Probe) -> None:
    for body in _FORMS:
        (await probe.call("POST", MINIMUM_PATH, body)).expect(400, f"POST {MINIMUM_PATH} {body.decode()}")


async def _minimum_size(probe: Probe) -> None:
    reply = await probe.call("POST", MINIMUM_PATH, b" " * (1 << 20))
    reply.expect(413, f"POST {MINIMUM_PATH} with a body of 1 MiB")


async def _minimum_type(probe: Probe) -> None:
    reply = await probe.call("POST", MINIMUM_PATH, b"{}", headers={"Content-Type": "text/plain"})
    reply.expect(415, f"POST {MINIMUM_PATH} as text/plain")


async def _minimum_stored(probe: Probe) -> None:
    wanted = (await probe.bare_report()).transactions
    for what in ("", ", repeated"):
        reply = await probe.minimum(wanted, probe.settings.token)
        reply.expect(200, f"POST {MINIMUM_PATH} of the minimum of its transactions{what}")
        if not isinstance(count := _json(reply), dict) or not isinstance(count.get("partitions"), int):
            raise BrokenRuleError(f"POST {MINIMUM_PATH} answers without the number of partitions")


async def _minimum_older(probe: Probe) -> None:
    before = await probe.report()
    reply = await probe.minimum(MINIMUM, probe.settings.token)
    reply.expect(200, f"POST {MINIMUM_PATH} of an older minimum, which changes nothing")
    _later(before, await probe.report())


async def _minimum_ahead(probe: Probe) -> None:
    ahead = later((await probe.bare_report()).clock, AHEAD)
    reply = await probe.minimum(ahead, probe.settings.token)
    reply.expect(422, f"POST {MINIMUM_PATH} of a time that is an hour ahead")


async def _token(probe: Probe) -> None:
    token = probe.settings.token
    (await probe.minimum(MINIMUM, token + 1)).expect(200, f"POST {MINIMUM_PATH} with the token {token + 1}")
    reply = await probe.minimum(MINIMUM, token)
    reply.expect(409, f"POST {MINIMUM_PATH} with the token {token} after {token + 1}")


def _json(reply: Reply) -> Any:
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise BrokenRuleError("the answer is not JSON") from None


_REPORT: Final = "report-has-the-form"
_STORED: Final = "minimum-is-stored"
_RULES: Final = {
    ReportRule.TIMES: "All times are hybrid timestamps, ids are not negative.",
    ReportRule.TEXTS: "Name and subject are printable, with 1 to 200 characters.",
    ReportRule.UNIQUE: "No partition, index or zone is reported twice.",
    ReportRule.NOT_READY: "While something is undefined, the cause is NotReady and the minimum is 1.",
    ReportRule.COVERS: "The minimum is not later than watermark, partitions and rebalances.",
    ReportRule.TRANSACTIONS: "The minimum of transactions is not later than the clock and the oldest one.",
}
PROTOCOL_CHECKS: Final = (
    ProtocolCheck("health-answers", "The process answers without a secret.", _health),
    ProtocolCheck("document-is-served", "The OpenAPI document describes both paths.", _document),
    ProtocolCheck("report-needs-the-secret", "Callers without the secret get 401.", _report_secret),
    ProtocolCheck(_REPORT, "A report is JSON, of version 1, and has exactly the fields of the document.", _report),
    *(ProtocolCheck(rule.value, sentence, _kept(rule), _REPORT) for rule, sentence in _RULES.items()),
    ProtocolCheck(
        "clock-fits", "Its clock differs from this machine's by the allowed skew at most.", _clock_fits, _REPORT
    ),
    ProtocolCheck(
        "nothing-goes-back", "Name, clock, watermark and published minimums do not go back.", _grows, _REPORT
    ),
    ProtocolCheck("other-paths-are-refused", "404 for an unknown path, 405 for another method.", _other_paths),
    ProtocolCheck(
        "minimum-needs-the-secret", "Callers without the secret get 401, and store nothing.", _minimum_secret
    ),
    ProtocolCheck(
        "minimum-form-is-checked", "400 for everything that has not the form of the document.", _minimum_form
    ),
    ProtocolCheck("minimum-size-is-bounded", "413 for a body that no minimum needs.", _minimum_size),
    ProtocolCheck("minimum-type-is-checked", "415 for another content type.", _minimum_type),
    ProtocolCheck(
        _STORED, "The minimum of its transactions is stored, and may be sent again.", _minimum_stored, _REPORT
    ),
    ProtocolCheck("older-minimum-is-harmless", "A smaller minimum changes nothing.", _minimum_older, _STORED),
    ProtocolCheck(
        "minimum-ahead-is-refused", "422 for a time that its transactions do not allow.", _minimum_ahead, _STORED
    ),
    ProtocolCheck("stale-token-is-refused", "409 for a token smaller than one it has seen.", _token, _STORED),
)
