"""Asks one participant for its report, and sends it the minimum to store: for a coordinator.

Whatever a participant does, the answer is a report that keeps the rules, or a ParticipantError that says which
participant gives none, and why. Nothing is repeated here: the next round asks again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import aiohttp
from pydantic import ValidationError
from yarl import URL

from compaction.catalogs.compaction.round import Answer
from compaction.catalogs.errors import ParticipantConfigError, ParticipantError, ParticipantFailure
from compaction.catalogs.model.hybrid import physical
from compaction.catalogs.participants.consistency import contradictions
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.participants.report import Report
from compaction.catalogs.serving import answers
from compaction.catalogs.serving.messages import MOST_REPORT_BYTES, MinimumMessage, ReportMessage, StoredMessage
from compaction.catalogs.serving.openapi import MINIMUM_PATH, REPORT_PATH
from compaction.serving.running import is_loopback
from compaction.storage.connector import ClosingConnector

_LARGE: Final = 256 << 10
"""Bytes from which on a report is parsed in a thread: the loop has other participants to serve."""
_GARBAGE: Final = ParticipantFailure.GARBAGE


@dataclass(frozen=True, slots=True)
class ParticipantAddress:
    """`url`: scheme, host and port, and a path in front of /v1 if there is one."""

    name: str
    url: str

    def check(self, *, plain: bool) -> None:
        """Raises ParticipantConfigError: no address of a participant, or one to which a secret would travel readably.

        plain: whether something else encrypts.
        """
        try:
            found = URL(self.url)
        except ValueError:
            raise ParticipantConfigError(f"participant {self.name}: {self.url!r} is not a URL") from None
        if found.scheme not in {"http", "https"} or not found.host or found.user or found.query or found.fragment:
            raise ParticipantConfigError(
                f"participant {self.name}: {self.url!r}: write http or https, a host and a port, and no query"
            )
        if found.scheme == "http" and not plain and not is_loopback(found.host):
            raise ParticipantConfigError(
                f"participant {self.name}: {self.url}: beyond loopback, the secret would travel readably: use https, "
                "or serviceAccountToken with plainHTTP where something else encrypts"
            )


@dataclass(frozen=True, slots=True)
class AskLimits:
    """For one coordinator. `seconds`: of one request, from its turn to the last byte; `connections`: at a time;
    `round_seconds`: of a whole round, in which no turn begins that might end later; `report_bytes`: of a body.
    """

    seconds: float = 10.0
    connections: int = 32
    round_seconds: float = 120.0
    report_bytes: int = MOST_REPORT_BYTES

    @property
    def turn_seconds(self) -> float:
        """From the beginning of a round to the last turn; those that need no turn of others always have theirs."""
        return max(self.round_seconds - self.seconds, self.seconds)


@dataclass(frozen=True, slots=True)
class Skew:
    """Milliseconds by which the participant's clock is ahead of the coordinator's; `uncertainty`: milliseconds that it
    may be wrong by, because the moment in between at which the participant read its clock is not known.
    """

    milliseconds: int
    uncertainty: int


def skew_of(answer: Answer) -> Skew:
    """The clock of the report against the middle between question and receipt."""
    asked, received = physical(answer.asked_at), physical(answer.received_at)
    return Skew(physical(answer.report.clock) - (asked + received) // 2, -(-(received - asked) // 2))


@dataclass(slots=True)
class ParticipantClient:
    """`secret`: returns the bearer token to send, read for every request so that it may be replaced. `tls`: how servers
    are verified; the system's authorities unless given. `plain`: allows plain HTTP beyond loopback. `clock`: hybrid
    timestamps of the coordinator.

    For one event loop; an asynchronous context manager.
    """

    secret: Callable[[], str]
    tls: ssl.SSLContext | None = None
    plain: bool = False
    limits: AskLimits = field(default_factory=AskLimits)
    clock: Callable[[], int] = system_clock
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        # Connections are not kept: rounds are minutes apart, and on a kept one a request may be sent twice.
        connector = ClosingConnector(limit=self.limits.connections, ssl=self.tls or True, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self.limits.seconds),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, address: ParticipantAddress) -> Answer:
        """The report of the participant, dated. Raises ParticipantError, ParticipantConfigError."""
        asked_at = self.clock()
        body = await self._exchange(address, "GET", REPORT_PATH, None)
        received_at = self.clock()
        if len(body) < _LARGE:
            report = _believed(address, body)
        else:
            report = await asyncio.to_thread(_believed, address, body)
        return Answer(report, asked_at, received_at)

    async def store(self, address: ParticipantAddress, timestamp: int, token: int) -> int:
        """Send the minimum of all participants; the number of partitions that it was stored in.

        Raises ParticipantError, ParticipantConfigError.
        """
        wanted = MinimumMessage.model_construct(timestamp=timestamp, token=token)
        body = await self._exchange(address, "POST", MINIMUM_PATH, wanted.to_json())
        try:
            return StoredMessage.model_validate_json(body, by_name=False, by_alias=True).partitions
        except ValidationError as error:
            raise answers.garbage(address.name, address.url, error) from None

    async def _exchange(self, address: ParticipantAddress, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer that says yes."""
        address.check(plain=self.plain)
        limits = self.limits

        def failed(reason: ParticipantFailure, detail: str) -> ParticipantError:
            return ParticipantError(address.name, address.url, reason, detail)

        try:
            async with asyncio.timeout(limits.seconds), self._send(address, method, path, body) as response:
                if response.status != HTTPStatus.OK:
                    beginning = await answers.beginning(response, answers.MOST_PROBLEM_BYTES)
                    raise answers.refused(address.name, address.url, path, response, beginning)
                if (wrong := answers.wrong_form(response)) is not None:
                    raise failed(_GARBAGE, wrong)
                found = await answers.whole(response, limits.report_bytes)
        except TimeoutError:
            raise failed(ParticipantFailure.LATE, f"no whole answer within {limits.seconds:g} s") from None
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise failed(_GARBAGE, f"the answer is not HTTP: {answers.text_of(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise failed(ParticipantFailure.NO_ANSWER, answers.text_of(error)) from error
        if found is None:
            raise failed(ParticipantFailure.TOO_LARGE, f"the answer has more than {limits.report_bytes} bytes")
        return found

    def _send(
        self, address: ParticipantAddress, method: str, path: str, body: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise ParticipantConfigError("the client of participants is not open: use it as a context manager")
        headers = {
            "Authorization": f"Bearer {self.secret()}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "compaction",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = address.url.rstrip("/") + path
        return self._session.request(method, url, data=body, headers=headers, allow_redirects=False)


def _believed(address: ParticipantAddress, body: bytes) -> Report:
    """The report in `body`. Raises ParticipantError."""
    try:
        report = ReportMessage.model_validate_json(body, by_name=False, by_alias=True).report()
    except ValidationError as error:
        raise answers.garbage(address.name, address.url, error, body=body) from None
    if (broken := next(contradictions(report), None)) is not None:
        raise ParticipantError(address.name, address.url, _GARBAGE, f"{broken.what} (rule {broken.rule})")
    if report.name != address.name:
        detail = f"{report.name!r} answers there"
        raise ParticipantError(address.name, address.url, ParticipantFailure.NAME_DIFFERS, detail)
    return report
