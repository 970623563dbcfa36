"""What the update log needs of etcd (docs/design/catalogs.md#client-of-etcd)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Relation(StrEnum):
    """How the value of a key compares with another, byte by byte. A key that is absent compares with none."""

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
class Page:
    """What a range holds, ascending, at the store's `revision`; `more` when the limit left something out."""

    pairs: tuple[KeyValue, ...]
    more: bool
    revision: int


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """Which branch ran, and what its reads found, in their order. `repeated`: the transaction was sent more than once,
    so an earlier sending may have done already what this one was refused for.
    """

    succeeded: bool
    found: tuple[Page, ...]
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

    def range(self, what: Get, revision: int = 0) -> Page:
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
