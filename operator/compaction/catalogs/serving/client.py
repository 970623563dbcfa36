"""Requests of a coordinator to participants: one at a time or a round of all, each with a report or a named
failure.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeVar

import aiohttp
from pydantic import ValidationError
from pydantic_core import from_json
from yarl import URL

from compaction.api.catalog.reasons import Reason
from compaction.api.text.printing import cut, printable
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered
from compaction.catalogs.errors import ParticipantConfigError, ParticipantError, ParticipantFailure
from compaction.catalogs.model.descriptors import physical
from compaction.catalogs.participants.reference import system_clock
from compaction.catalogs.participants.reports import Report, contradictions
from compaction.catalogs.serving.messages import (
    MOST_REPORT_BYTES,
    VERSION,
    MinimumMessage,
    ParticipantProblem,
    ParticipantProblemMessage,
    ReportMessage,
    StoredMessage,
)
from compaction.catalogs.serving.server import MINIMUM_PATH, REPORT_PATH
from compaction.errors import CompactionError
from compaction.serving.openapi import JSON
from compaction.serving.service import is_loopback
from compaction.storage.connector import ClosingConnector
from compaction.unexpected import defect

# Permitted answers of participants, and the meaning of each other one.

MOST_PROBLEM_BYTES = 4096
_LONGEST_DETAIL = 300
_BY_STATUS = {
    401: ParticipantFailure.UNAUTHORIZED,
    403: ParticipantFailure.UNAUTHORIZED,
    404: ParticipantFailure.WRONG_VERSION,
    410: ParticipantFailure.WRONG_VERSION,
}
_BY_CODE = {
    ParticipantProblem.STALE_TOKEN: ParticipantFailure.STALE_TOKEN,
    ParticipantProblem.MINIMUM_AHEAD: ParticipantFailure.MINIMUM_AHEAD,
}


def wrong_form(response: aiohttp.ClientResponse) -> str | None:
    """Return the reason for which the body is not read at all, None when it is read."""
    if response.content_type != JSON:
        return f"Content-Type is {printable(cut(response.content_type, 100))}, not {JSON}"
    encoding = response.headers.get("Content-Encoding", "identity")
    return (
        None if encoding == "identity" else f"Content-Encoding is {printable(cut(encoding, 100))}: nothing unpacks it"
    )


async def whole_answer(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body; None when it is longer than `most` bytes, of which no more are read."""
    if response.content_length is not None and response.content_length > most:
        return None
    found = bytearray()
    async for chunk in response.content.iter_any():
        if len(found) + len(chunk) > most:
            return None
        found += chunk
    return bytes(found)


async def beginning_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first bytes of a body, `most` at the most."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk[: most - len(found)]
        if len(found) >= most:
            break
    return bytes(found)


def refused_answer(
    name: str, url: str, path: str, response: aiohttp.ClientResponse, first_bytes: bytes
) -> ParticipantError:
    """An answer with another status than 200."""
    status = response.status
    try:
        problem = ParticipantProblemMessage.model_validate_json(first_bytes, by_name=False, by_alias=True)
    except ValidationError:
        said, code = "", None
    else:
        said, code = f": {printable(cut(problem.message, _LONGEST_DETAIL))}", problem.code
    reason = _BY_CODE[code] if code in _BY_CODE else _BY_STATUS.get(status, ParticipantFailure.REFUSED)
    if 300 <= status < 400:
        reason = ParticipantFailure.REDIRECTED
    detail = f"{path} is not served (404)" if status == 404 else f"{path} answers {status}{said}"
    return ParticipantError(name, url, reason, detail)


def garbage(name: str, url: str, error: ValidationError, *, body: bytes = b"") -> ParticipantError:
    """A body that does not have the form; of another version of the protocol when it says so."""
    try:
        found = from_json(body) if body else None
    except ValueError:
        found = None
    version = found.get("protocol") if isinstance(found, dict) else None
    if isinstance(version, int) and version != VERSION:
        detail = f"it has version {version} of the protocol, not {VERSION}"
        return ParticipantError(name, url, ParticipantFailure.WRONG_VERSION, detail)
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    detail = printable(cut(f"{where}: {first['msg']}" if where else first["msg"], _LONGEST_DETAIL))
    return ParticipantError(name, url, ParticipantFailure.GARBAGE, f"not a report: {detail}")


def text_of(error: BaseException) -> str:
    """Return the text of an error of the connection, in one line."""
    return printable(cut(" ".join(str(error).split()) or type(error).__name__, _LONGEST_DETAIL))


# Asks one participant for its report, and sends it the minimum to store: for a coordinator.
#
# Whatever a participant does, the answer is a report that keeps the rules, or a ParticipantError that says which
# participant gives none, and why. Nothing is repeated here: the next round asks again.

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


def skew_of(answer: ParticipantAnswer) -> Skew:
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

    async def ask(self, address: ParticipantAddress) -> ParticipantAnswer:
        """The report of the participant, dated. Raises ParticipantError, ParticipantConfigError."""
        asked_at = self.clock()
        body = await self._exchange(address, "GET", REPORT_PATH, None)
        received_at = self.clock()
        if len(body) < _LARGE:
            report = _believed(address, body)
        else:
            report = await asyncio.to_thread(_believed, address, body)
        return ParticipantAnswer(report, asked_at, received_at)

    async def store(self, address: ParticipantAddress, timestamp: int, token: int) -> int:
        """Send the minimum of all participants; the number of partitions that it was stored in.

        Raises ParticipantError, ParticipantConfigError.
        """
        wanted = MinimumMessage.model_construct(timestamp=timestamp, token=token)
        body = await self._exchange(address, "POST", MINIMUM_PATH, wanted.to_json())
        try:
            return StoredMessage.model_validate_json(body, by_name=False, by_alias=True).partitions
        except ValidationError as error:
            raise garbage(address.name, address.url, error) from None

    async def _exchange(self, address: ParticipantAddress, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer that says yes."""
        address.check(plain=self.plain)
        limits = self.limits

        def failed(reason: ParticipantFailure, detail: str) -> ParticipantError:
            return ParticipantError(address.name, address.url, reason, detail)

        try:
            async with asyncio.timeout(limits.seconds), self._send(address, method, path, body) as response:
                if response.status != HTTPStatus.OK:
                    beginning = await beginning_of(response, MOST_PROBLEM_BYTES)
                    raise refused_answer(address.name, address.url, path, response, beginning)
                if (wrong := wrong_form(response)) is not None:
                    raise failed(_GARBAGE, wrong)
                found = await whole_answer(response, limits.report_bytes)
        except TimeoutError:
            raise failed(ParticipantFailure.LATE, f"no whole answer within {limits.seconds:g} s") from None
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise failed(_GARBAGE, f"the answer is not HTTP: {text_of(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise failed(ParticipantFailure.NO_ANSWER, text_of(error)) from error
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
        raise garbage(address.name, address.url, error, body=body) from None
    if (broken := next(contradictions(report), None)) is not None:
        raise ParticipantError(address.name, address.url, _GARBAGE, f"{broken.what} (rule {broken.rule})")
    if report.name != address.name:
        detail = f"{report.name!r} answers there"
        raise ParticipantError(address.name, address.url, ParticipantFailure.NAME_DIFFERS, detail)
    return report


# Asks all participants at once, with a bounded number of connections; each ends in a report or in a named failure.

T = TypeVar("T")
_REASONS: Final = {
    ParticipantFailure.NO_ANSWER: Reason.NO_ANSWER,
    ParticipantFailure.LATE: Reason.ANSWER_LATE,
}
"""Of those that have no answer; every other answer is refused."""


@dataclass(frozen=True, slots=True)
class ReportRound:
    """By name, in the order asked. Every participant is in one of the two."""

    reports: Mapping[str, ParticipantAnswer]
    failures: Mapping[str, ParticipantError]

    @property
    def answers(self) -> tuple[ParticipantAnswer, ...]:
        """As a decision reads them."""
        return tuple(self.reports.values())

    @property
    def unanswered(self) -> tuple[Unanswered, ...]:
        """As a decision reads them."""
        return tuple(
            Unanswered(name, _REASONS.get(error.reason, Reason.ANSWER_REFUSED), error.explanation)
            for name, error in self.failures.items()
        )


@dataclass(frozen=True, slots=True)
class StoreRound:
    """By name: number of partitions that the minimum was stored in, or why it was not."""

    stored: Mapping[str, int]
    failures: Mapping[str, ParticipantError]


async def ask_all(client: ParticipantClient, addresses: Sequence[ParticipantAddress]) -> ReportRound:
    """The reports of all. Raises ParticipantConfigError for addresses that cannot be asked; none is asked then."""
    found, failures = await _each(client, addresses, client.ask)
    return ReportRound(found, failures)


async def store_all(
    client: ParticipantClient, addresses: Sequence[ParticipantAddress], timestamp: int, token: int
) -> StoreRound:
    """Send the minimum to all. Raises ParticipantConfigError; it is sent to none then."""
    stored, failures = await _each(client, addresses, lambda address: client.store(address, timestamp, token))
    return StoreRound(stored, failures)


async def _each(
    client: ParticipantClient,
    addresses: Sequence[ParticipantAddress],
    call: Callable[[ParticipantAddress], Awaitable[T]],
) -> tuple[dict[str, T], dict[str, ParticipantError]]:
    for address in addresses:
        address.check(plain=client.plain)
    if twice := [name for name, count in Counter(address.name for address in addresses).items() if count > 1]:
        raise ParticipantConfigError(f"participant {twice[0]} has several addresses: give it one")
    limits, loop = client.limits, asyncio.get_running_loop()
    turns, last_turn = asyncio.Semaphore(limits.connections), loop.time() + limits.turn_seconds

    async def one(address: ParticipantAddress) -> T | ParticipantError:
        # The time of a request begins with its turn: those that hang take time from the round, and not from others.
        async with turns:
            if loop.time() > last_turn:
                detail = f"its turn did not come within {limits.turn_seconds:g} s: too many others do not answer"
                return ParticipantError(address.name, address.url, ParticipantFailure.LATE, detail)
            try:
                return await call(address)
            except ParticipantError as error:
                return error
            except CompactionError:
                raise  # of the round as a whole
            except Exception as error:  # noqa: BLE001 - of one participant: the others are asked all the same
                detail = defect(error, f"participant {address.name}")
                return ParticipantError(address.name, address.url, ParticipantFailure.GARBAGE, detail)

    results = dict(
        zip((address.name for address in addresses), await asyncio.gather(*map(one, addresses)), strict=True)
    )
    failures = {name: result for name, result in results.items() if isinstance(result, ParticipantError)}
    return {name: result for name, result in results.items() if not isinstance(result, ParticipantError)}, failures
