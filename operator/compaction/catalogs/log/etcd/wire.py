"""Requests, answers and settings of etcd, and the port through which the update log uses it."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from compaction.catalogs.errors import CatalogLogAccessError, CatalogLogError

# Settings of a connection to etcd: endpoints, certificates, a user (docs/design/catalogs.md#client-of-etcd).

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member: `http://host:port` or `https://host:port`."""

    secure: bool
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises CatalogLogError for anything but scheme, host and port; a password in a URL would get into messages,
        so the message does not repeat what stands before an "@".
        """
        shown = url.rpartition("@")[2][:200]
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise CatalogLogError(shown, "not a URL; write https://host:port") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or "@" in parts.netloc:
            raise CatalogLogError(shown, "not an endpoint of etcd; write https://host:port, and the user apart from it")
        return cls(parts.scheme == "https", parts.hostname, port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: whom to trust (the system's authorities when there is none), and who we are."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self, log: str) -> ssl.SSLContext:
        """Read the files. Raises CatalogLogAccessError, which names the file and never its content."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.certificate is not None:
                context.load_cert_chain(str(self.certificate), None if self.key is None else str(self.key))
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise CatalogLogAccessError(log, f"{files} cannot be read ({type(error).__name__})") from error
        return context


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Members of one etcd. `attempt_seconds`: for one request to one member; `call_seconds`: for a call with all its
    attempts.
    """

    endpoints: tuple[Endpoint, ...]
    tls: Tls = Tls()
    user: str = ""
    password: str = field(default="", repr=False)
    attempt_seconds: float = 4.0
    call_seconds: float = 15.0

    @classmethod
    def of(cls, urls: str, **more: object) -> EtcdSettings:
        """Endpoints separated by commas. Raises CatalogLogError as `Endpoint.parse`, and when there is none."""
        endpoints = tuple(Endpoint.parse(url.strip()) for url in urls.split(",") if url.strip())
        if not endpoints:
            raise CatalogLogError("etcd", "no endpoint is named; write https://host:port")
        return cls(endpoints, **more)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The endpoints, for messages."""
        return ",".join(map(str, self.endpoints))


# Operations of etcd that the update log needs (docs/design/catalogs.md#client-of-etcd).


class Relation(StrEnum):
    """The relation between the value of a key and another value, compared byte by byte. A key that is absent compares
    with none.
    """

    EQUAL = "EQUAL"
    GREATER = "GREATER"
    LESS = "LESS"


@dataclass(frozen=True, slots=True)
class Compare:
    """The key's value is equal to, greater or less than `value`."""

    key: bytes
    relation: Relation
    value: bytes


@dataclass(frozen=True, slots=True)
class Absent:
    """The key does not exist."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """A key, or with `end` all keys from `key` to before `end`, ascending; at most `limit` of them, 0 for all."""

    key: bytes
    end: bytes = b""
    limit: int = 0
    keys_only: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """A key gets a value."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """All keys from `key` up to and without `end` are deleted."""

    key: bytes
    end: bytes


Operation = Get | Put | DeleteRange


@dataclass(frozen=True, slots=True)
class Transaction:
    """`success` when every comparison holds, else `failure`; as one."""

    compares: tuple[Compare | Absent, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`revision`: of the last change of the key. `value` is empty where only keys were asked for."""

    key: bytes
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class EtcdPage:
    """The pairs of a range, ascending, at the store's `revision`; `more` when the limit left something out."""

    pairs: tuple[KeyValue, ...]
    more: bool
    revision: int


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """The branch of a transaction that ran, and what its reads found, in their order. `repeated`: the transaction was
    sent more than once, so an earlier sending may have done already what this one was refused for.
    """

    succeeded: bool
    found: tuple[EtcdPage, ...]
    revision: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class Status:
    """One member, by its id, and the id of its leader, 0 where it knows none. `size`, `in_use` and `quota` are bytes of
    its database.
    """

    endpoint: str
    member: int
    version: str
    size: int
    in_use: int
    quota: int
    revision: int
    leader: int


@dataclass(frozen=True, slots=True)
class ClockHeard:
    """A member's clock: between which milliseconds since the epoch it stands now, as of an answer `age` seconds ago."""

    earliest: int
    latest: int
    age: float
    endpoint: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Puts of one or several revisions, in their order; deletions are left out. Empty: nothing happened up to
    `revision`.
    """

    pairs: tuple[KeyValue, ...]
    revision: int


class Stream(Protocol):
    """The changes of a range, as long as one connection lasts."""

    def next(self) -> Changes:
        """Wait for the next changes. Raises CatalogLogCutError when the history does not reach back to the first
        revision, CatalogLogUnavailableError when the connection ended.
        """
        ...

    def close(self) -> None:
        """End the stream; another thread's `next` ends too."""
        ...


class EtcdClient(Protocol):
    """Each call tries the endpoints in turn until the time of a call is over.

    Raises:
        CatalogLogUnavailableError: none answered. A transaction may have happened.
        CatalogLogAccessError: the certificate, user or role was refused.
        CatalogLogCutError: the revision of a read is compacted.
        CatalogLogRefusedError: anything else that etcd refuses.
    """

    @property
    def name(self) -> str:
        """The endpoints, for messages."""
        ...

    def range(self, what: Get, revision: int = 0) -> EtcdPage:
        """Read at a revision, 0 for the newest (linearizable)."""
        ...

    def transaction(self, what: Transaction, *, within: float | None = None) -> TransactionAnswer:
        """Run a transaction, and after a lost answer again: it is written so that a second run changes nothing.
        `within`: seconds after which it is sent no more, where that is less than the time of a call.
        """
        ...

    def heard(self) -> ClockHeard | None:
        """The clock of the member that answered last; asks none. None when no answer has said it."""
        ...

    def watch(self, key: bytes, end: bytes, start: int) -> Stream:
        """Changes of a range from the revision `start` on. Returns when a member has made the watch: what is written
        from then on arrives, as long as the connection lasts.
        """
        ...

    def status(self) -> tuple[Status, ...]:
        """Of every member that answers."""
        ...

    def compact(self, revision: int) -> None:
        """Forget the history before `revision`. Done already is no error."""
        ...

    def close(self) -> None:
        """Close all connections; later calls raise CatalogLogUnavailableError."""
        ...


# Requests and answers of etcd's JSON gateway: keys and values in base64, 64-bit integers as texts, zeros left out
# (docs/design/catalogs.md#client-of-etcd).

Document = dict[str, Any]
RANGE: Final = "/v3/kv/range"
TRANSACTION: Final = "/v3/kv/txn"
COMPACTION: Final = "/v3/kv/compaction"
WATCH: Final = "/v3/watch"
STATUS: Final = "/v3/maintenance/status"
AUTHENTICATE: Final = "/v3/auth/authenticate"


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def range_request(what: Get, revision: int = 0) -> Document:
    """A read; of the newest revision it is linearizable."""
    request: Document = {"key": _text(what.key)}
    if what.end:
        request["range_end"] = _text(what.end)
    if what.limit:
        request["limit"] = what.limit
    if what.keys_only:
        request["keys_only"] = True
    if revision:
        request["revision"] = revision
    return request


def _operation(what: Operation) -> Document:
    match what:
        case Get():
            return {"request_range": range_request(what)}
        case Put():
            return {"request_put": {"key": _text(what.key), "value": _text(what.value)}}
        case DeleteRange():
            return {"request_delete_range": {"key": _text(what.key), "range_end": _text(what.end)}}


def _compare(what: Compare | Absent) -> Document:
    if isinstance(what, Absent):
        return {"key": _text(what.key), "target": "CREATE", "result": "EQUAL", "create_revision": 0}
    return {"key": _text(what.key), "target": "VALUE", "result": what.relation.value, "value": _text(what.value)}


def transaction_request(what: Transaction) -> Document:
    """A transaction."""
    return {
        "compare": [_compare(compare) for compare in what.compares],
        "success": [_operation(item) for item in what.success],
        "failure": [_operation(item) for item in what.failure],
    }


def watch_request(key: bytes, end: bytes, start: int) -> Document:
    """A watch of puts alone. Large revisions come in fragments, so no answer grows with what was missed."""
    wanted = {
        "key": _text(key),
        "range_end": _text(end),
        "start_revision": start,
        "progress_notify": True,
        "filters": ["NODELETE"],
        "fragment": True,
    }
    return {"create_request": wanted}


def document(body: bytes) -> Document:
    """An answer. ValueError when it is not a JSON object."""
    found = json.loads(body)
    if isinstance(found, dict):
        return found
    raise ValueError("the answer is not a JSON object")


def revision_of(answer: Document) -> int:
    """The store's revision when it answered."""
    return int(answer["header"]["revision"])


def _pair(pair: Document) -> KeyValue:
    return KeyValue(b64decode(pair["key"]), b64decode(pair.get("value", "")), int(pair["mod_revision"]))


def page(answer: Document, revision: int) -> EtcdPage:
    """Decode what a range found; `revision` is the store's."""
    return EtcdPage(tuple(map(_pair, answer.get("kvs", ()))), bool(answer.get("more", False)), revision)


def transaction_answer(answer: Document, *, repeated: bool) -> TransactionAnswer:
    """Decode what a transaction did and found."""
    revision = revision_of(answer)
    found = tuple(
        page(item["response_range"], revision) for item in answer.get("responses", ()) if "response_range" in item
    )
    return TransactionAnswer(bool(answer.get("succeeded", False)), found, revision, repeated)


def changes(result: Document) -> Changes:
    """A message of a watch. The revision in its header may be ahead of what the watch has delivered: it counts only in
    a notification of progress, which has no events.
    """
    pairs = tuple(_pair(event["kv"]) for event in result.get("events", ()) if event.get("type", "PUT") == "PUT")
    return Changes(pairs, pairs[-1].revision if pairs else int(result["header"].get("revision", 0)))


def status(answer: Document, endpoint: str) -> Status:
    """One member's status."""
    return Status(
        endpoint,
        int(answer["header"]["member_id"]),
        str(answer.get("version", "")),
        int(answer.get("dbSize", 0)),
        int(answer.get("dbSizeInUse", 0)),
        int(answer.get("dbSizeQuota", 0)),
        revision_of(answer),
        int(answer.get("leader", 0)),
    )
