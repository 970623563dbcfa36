"""etcd by its JSON gateway: endpoints in turn, tokens, watches, and what a refusal means."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Final, TypeVar

from compaction.catalogs.errors import (
    CatalogLogAccessError,
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogFullError,
    CatalogLogRefusedError,
    CatalogLogSizeError,
    CatalogLogUnavailableError,
)
from compaction.catalogs.log.etcd import wire
from compaction.catalogs.log.etcd.connections import Connections, EtcdAnswer, distrusts, send, shut
from compaction.catalogs.log.etcd.wire import (
    Changes,
    ClockHeard,
    Document,
    Endpoint,
    EtcdPage,
    EtcdSettings,
    Get,
    Status,
    Stream,
    Transaction,
    TransactionAnswer,
    document,
)

# The meaning of a refusal of etcd: a code of gRPC and a sentence (docs/design/catalogs.md#client-of-etcd).

CANCELLED, UNKNOWN, DEADLINE, DENIED, OUT_OF_RANGE, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 1, 2, 4, 7, 11, 13, 14, 16
TRANSIENT: Final = frozenset({CANCELLED, DEADLINE, INTERNAL, UNAVAILABLE})
"""Another member, or this one in a moment, may do it: no leader, a leader that changes, a server that stops."""
STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
NO_USER: Final = (
    "user name is empty",
    "authentication failed",
    "user name not found",
    "permission denied",
    # The gateway of an etcd with users takes no certificate that has a common name.
    "commonname of client",
)
BUSY: Final = ("too many requests",)
TOO_LARGE: Final = ("request is too large", "received message larger than max")
"""Of etcd, above `--max-request-bytes`; and of gRPC before it, above that by half a mebibyte."""
FULL: Final = "database space exceeded"
"""The alarm NOSPACE: until it is disarmed etcd takes what deletes, and nothing that puts."""
COMPACTED: Final = "required revision has been compacted"
SENTENCE: Final = 300
"""Characters of a foreign message that are repeated."""


class RefusalFate(Enum):
    """The reaction to a refusal."""

    RETRY = auto()
    RENEW_TOKEN = auto()
    GIVE_UP = auto()


def refusal(answer: EtcdAnswer, log: str) -> tuple[RefusalFate, CatalogLogError]:
    """The fate of a request that was answered with anything but 200, and the error if it is given up."""
    code, sentence = _content(answer)
    lowered = sentence.lower()
    if any(words in lowered for words in STALE_TOKEN):
        return RefusalFate.RENEW_TOKEN, CatalogLogAccessError(log, sentence)
    if code in {DENIED, UNAUTHENTICATED} or any(words in lowered for words in NO_USER):
        return RefusalFate.GIVE_UP, CatalogLogAccessError(log, sentence)
    if COMPACTED in lowered:
        return RefusalFate.GIVE_UP, CatalogLogCutError(log, "the revision that was asked for is compacted")
    if FULL in lowered:
        return RefusalFate.GIVE_UP, CatalogLogFullError(log, sentence)
    if any(words in lowered for words in TOO_LARGE):
        return RefusalFate.GIVE_UP, CatalogLogSizeError(log, code, sentence)
    refused = CatalogLogRefusedError(log, code, sentence)
    transient = code in TRANSIENT or answer.status >= 500 or any(words in lowered for words in BUSY)
    return (RefusalFate.RETRY if transient else RefusalFate.GIVE_UP), refused


def _content(answer: EtcdAnswer) -> tuple[int, str]:
    """Code and sentence; of an answer that is not in JSON, its status and its text."""
    try:
        found = document(answer.body)
        return int(found.get("code", UNKNOWN)), str(found.get("message") or found.get("error") or "")[:SENTENCE]
    except (ValueError, TypeError):
        text = answer.body[:SENTENCE].decode("utf-8", "replace")
        return UNKNOWN, f"HTTP status {answer.status}, {' '.join(text.split())!a}"


# A watch of etcd over one connection: lines of JSON for as long as it lasts (docs/design/catalogs.md#client-of-etcd).


class GatewayStream:
    """A `Stream`. One thread reads, any other may close."""

    def __init__(
        self, connection: http.client.HTTPConnection, log: str, forget: Callable[[GatewayStream], object]
    ) -> None:
        """Waits for the first message: the member has made the watch, or says why not. From then on a read has no time
        limit, since nothing may happen for hours. OSError and http.client.HTTPException as a request.
        """
        self._connection, self._log, self._forget = connection, log, forget
        self._socket = connection.sock  # the connection forgets it where the answer ends with the connection
        self._response = connection.getresponse()
        self._status = self._response.status
        self._refusal = self._response.read() if self._status != http.client.OK else b""
        self._first = b""
        if self._status == http.client.OK:
            self._first = self._response.readline()
            if not self._first:
                raise http.client.RemoteDisconnected("the watch ended before it was made")
            self._socket.settimeout(None)

    def refused(self) -> EtcdAnswer | None:
        """Return the answer of a member that does not watch, and close the connection; None when it watches."""
        if self._status == http.client.OK:
            return None
        self.close()
        return EtcdAnswer(self._status, self._refusal)

    def next(self) -> Changes:
        while True:
            result = self._message()
            if int(result.get("compact_revision", 0)):
                self.close()
                raise CatalogLogCutError(self._log, "the history before the watch is compacted")
            if result.get("canceled"):
                self.close()
                reason = str(result.get("cancel_reason", ""))[:200] or "no reason given"
                raise CatalogLogUnavailableError(self._log, f"the watch was cancelled: {reason}")
            # The answer to the request itself says nothing about what this watch has seen.
            if not result.get("created"):
                return wire.changes(result)

    def _message(self) -> wire.Document:
        try:
            line, self._first = self._first or self._response.readline(), b""
            if not line:
                raise CatalogLogUnavailableError(self._log, "the watch ended")
            message = wire.document(line)
        # ValueError also where another thread closed the connection under the read, AttributeError in the same race.
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise CatalogLogUnavailableError(self._log, f"the watch broke off ({type(error).__name__})") from error
        if "result" not in message:
            failed = message.get("error")
            body = json.dumps(failed if isinstance(failed, dict) else message).encode()
            fate, refused = refusal(EtcdAnswer(http.client.OK, body), self._log)
            if fate is RefusalFate.GIVE_UP:
                raise refused
            # A member that is asked to stop says so in the stream; another one, or a new token, goes on from here.
            raise CatalogLogUnavailableError(self._log, f"the watch was ended: {refused.reason}")
        found: wire.Document = message["result"]
        return found

    def close(self) -> None:
        shut(self._socket)
        self._connection.close()
        self._forget(self)


# etcd by its JSON gateway: endpoints in turn, tokens, watches (docs/design/catalogs.md#client-of-etcd).

PAUSE_SECONDS: Final = 0.05
MOST_PAUSE_SECONDS: Final = 1.0
Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class _Dated:
    """The date of an answer, and when its request was sent and it was received, by the monotonic clock."""

    date: str
    sent: float
    received: float
    endpoint: str


class GatewayClient:
    """An `EtcdClient`. Any thread may use it."""

    def __init__(
        self,
        settings: EtcdSettings,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Reads the certificates; connects when it is first used. Raises CatalogLogAccessError as `Tls.context`."""
        self._settings = settings
        self._clock, self._sleep = clock, sleep
        secure = any(endpoint.secure for endpoint in settings.endpoints)
        context = settings.tls.context(settings.name) if secure else None
        self._connections = Connections(context, settings.attempt_seconds)
        self._order = list(settings.endpoints)
        self._token = ""
        self._lock = threading.Lock()
        self._streams: set[GatewayStream] = set()
        self._dated: _Dated | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    def range(self, what: Get, revision: int = 0) -> EtcdPage:
        answer, _ = self._call(wire.RANGE, wire.range_request(what, revision))
        return wire.page(answer, wire.revision_of(answer))

    def transaction(self, what: Transaction, *, within: float | None = None) -> TransactionAnswer:
        answer, attempts = self._call(wire.TRANSACTION, wire.transaction_request(what), within)
        return wire.transaction_answer(answer, repeated=attempts > 1)

    def compact(self, revision: int) -> None:
        try:
            self._call(wire.COMPACTION, {"revision": revision})
        except CatalogLogError as error:
            if "has been compacted" not in error.reason and "is compacted" not in error.reason:
                raise

    def status(self) -> tuple[Status, ...]:
        found: list[Status] = []
        for endpoint in self._settings.endpoints:
            try:
                if self._settings.user and not self._token:
                    self._authenticate(endpoint)
                answer = self._post(endpoint, wire.STATUS, {})
            except (OSError, http.client.HTTPException):
                continue
            if answer.status == http.client.OK:
                found.append(wire.status(wire.document(answer.body), str(endpoint)))
        return tuple(found)

    def heard(self) -> ClockHeard | None:
        dated = self._dated
        if dated is None:
            return None
        try:
            second = int(parsedate_to_datetime(dated.date).timestamp()) * 1_000
        except ValueError:  # a proxy between that writes a date of its own
            return None
        now = self._clock()
        # The header is cut to the second; the clock was read between sending and receiving.
        since_sent, since_received = (int(1_000 * (now - at)) for at in (dated.sent, dated.received))
        return ClockHeard(second + since_received, second + 1_000 + since_sent, now - dated.received, dated.endpoint)

    def watch(self, key: bytes, end: bytes, start: int) -> Stream:
        def opened(endpoint: Endpoint) -> GatewayStream:
            connection = self._connections.open(endpoint)
            try:
                send(connection, wire.WATCH, wire.watch_request(key, end, start), self._token)
                return GatewayStream(connection, self.name, self._streams.discard)
            except BaseException:
                connection.close()
                raise

        stream, _ = self._over_endpoints(opened, GatewayStream.refused)
        self._streams.add(stream)
        if self._connections.closed:  # meanwhile, and without knowing this stream
            stream.close()
        return stream

    def close(self) -> None:
        self._connections.close()
        for stream in list(self._streams):
            stream.close()

    # -- one call ---------------------------------------------------------------------------------------------------

    def _call(self, path: str, what: Document, within: float | None = None) -> tuple[Document, int]:
        """The answer, and how many times the request was sent."""
        answer, attempts = self._over_endpoints(
            lambda endpoint: self._post(endpoint, path, what),
            lambda answer: None if answer.status == http.client.OK else answer,
            within,
        )
        try:
            return wire.document(answer.body), attempts
        except ValueError as error:
            raise CatalogLogUnavailableError(self.name, "the answer is not one of etcd's JSON gateway") from error

    def _over_endpoints(
        self,
        request: Callable[[Endpoint], Sent],
        refused: Callable[[Sent], EtcdAnswer | None],
        within: float | None = None,
    ) -> tuple[Sent, int]:
        """Try members in turn until one does it, or the time of a call is over."""
        seconds = self._settings.call_seconds
        deadline = self._clock() + (seconds if within is None else min(seconds, within))
        attempts, strangers, renewed, pause, last = 0, 0, False, PAUSE_SECONDS, "no endpoint answered"
        while not self._connections.closed:
            endpoint = self._order[0]
            attempts += 1
            try:
                if self._settings.user and not self._token:
                    self._authenticate(endpoint)
                done = request(endpoint)
                answer = refused(done)
                if answer is None:
                    return done, attempts
                fate, error = refusal(answer, self.name)
                if fate is RefusalFate.GIVE_UP or (
                    fate is RefusalFate.RENEW_TOKEN and (renewed or not self._settings.user)
                ):
                    raise error
                last = f"{endpoint} refused: {error.reason}"
                if fate is RefusalFate.RENEW_TOKEN:
                    renewed, self._token = True, ""
                    continue
            except (OSError, http.client.HTTPException) as error:
                last = f"{endpoint} did not answer ({_kind(error)})"
                self._connections.forget(endpoint)
                strangers = strangers + 1 if distrusts(error) else 0
                if strangers >= len(self._order):
                    raise CatalogLogAccessError(self.name, f"TLS fails with every endpoint: {last}") from error
            self._demote(endpoint)
            if self._clock() >= deadline:
                raise CatalogLogUnavailableError(self.name, last)
            if attempts % len(self._order) == 0:
                self._sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
        raise CatalogLogUnavailableError(self.name, "the client is closed")

    def _post(self, endpoint: Endpoint, path: str, what: Document) -> EtcdAnswer:
        sent = self._clock()
        answer = self._connections.post(endpoint, path, what, self._token)
        if answer.date:
            self._dated = _Dated(answer.date, sent, self._clock(), str(endpoint))
        return answer

    def _demote(self, endpoint: Endpoint) -> None:
        """The next call begins with another member."""
        with self._lock:
            if self._order[0] == endpoint:
                self._order.append(self._order.pop(0))

    def _authenticate(self, endpoint: Endpoint) -> None:
        """Get a token for the user. OSError and HTTPException as a request; CatalogLogAccessError when refused."""
        credentials = {"name": self._settings.user, "password": self._settings.password}
        answer = self._connections.post(endpoint, wire.AUTHENTICATE, credentials, "")
        if answer.status != http.client.OK:
            fate, error = refusal(answer, self.name)
            if fate is RefusalFate.RETRY:
                raise ConnectionError(error.reason)
            raise CatalogLogAccessError(self.name, f"user {self._settings.user}: {error.reason}") from None
        self._token = str(wire.document(answer.body).get("token", ""))


def _kind(error: Exception) -> str:
    """The failure in words that never hold what was sent."""
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    words = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
