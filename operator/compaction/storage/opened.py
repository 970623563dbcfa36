"""A store that an adapter keeps open, its errors when it cannot be reached, and the processes that claim its jobs."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

from compaction.storage.errors import (
    DatabaseLoginError,
    DatabaseUnreachableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
)

# A process that claims jobs where no cluster does: who it is, so that others can tell whether it still runs.

LEASE: Final = 60 * 1_000_000
"""Microseconds of silence after which a local run counts as gone."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. `host` is its machine's name, for people; `place` tells the machine, its boot and the namespace of its
    pids from every other (empty: unknown), so that `pid` and `started` mean the same only where `place` is the same.
    `lease`: microseconds of silence after which it counts as gone.
    """

    id: str
    host: str
    place: str
    pid: int
    started: str
    lease: int


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """This process as a holder of claims. `has_ended(pid, started)`: that process of this machine has ended."""

    holder: Holder
    has_ended: Callable[[int, str], bool]


# Errors of a store or an index that cannot be reached, with what their raiser does not know: the URL, the endpoint,
# and where both are written.

_OWN_FOLDER: Final = "_compaction/"
"""Users do not know the objects in it: what is wrong with one of them is wrong with the store."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a store, and where that is written: `url` and `options` of its objects (the latter never show),
    and `options_from` and `database_from`, such as `Secret index`.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)
    options_from: str
    database_from: str


@contextmanager
def explaining(address: StoreAddress) -> Iterator[None]:
    """Errors of objects or of a database that cannot be reached say what to check, and where. Not to be nested."""
    try:
        yield
    except (ObjectStoreUnavailableError, ObjectAccessError) as error:
        of_store = not error.path or error.path == address.url or error.path.startswith(_OWN_FOLDER)
        place = address.url if of_store else f"{address.url.rstrip('/')}/{error.path}"
        raise type(error)(place, _advice(address, error)) from None
    except (DatabaseUnreachableError, DatabaseLoginError) as error:
        check = f" Check the URL in {address.database_from}." if address.database_from else ""
        raise type(error)(error.database, error.reason + check) from None


def _advice(address: StoreAddress, error: ObjectStoreUnavailableError | ObjectAccessError) -> str:
    """The reason with the server's address in it, and what to check."""
    origin = address.options_from
    if urllib.parse.urlsplit(address.url).scheme in {"", "file"}:
        return f"{error.reason}. Check the folder and its permissions."
    if isinstance(error, ObjectAccessError):
        if error.reason.startswith("the region"):
            where = f'"region" in {origin}' if origin else "the region"
            return f"{error.reason}. Correct {where}."
        if error.reason.startswith("the bucket"):
            return f"{error.reason}. Create it or correct the URL."
        return f"{error.reason}. Check {f'the keys in {origin}' if origin else 'the identity'} and the bucket policy."
    option, server = _endpoint(address)
    where = f'"{option}" in {origin} and ' if origin else ""
    return f"{error.reason.replace('the store', server, 1)}. Check {where}the network."


def _endpoint(address: StoreAddress) -> tuple[str, str]:
    """The name of the option, and the address in it: scheme, host and port, because the rest may be a secret."""
    for option, value in address.options.items():
        if option.lower().endswith(("endpoint", "endpoint_url")):
            try:
                parts = urllib.parse.urlsplit(value)
                port = f":{parts.port}" if parts.port else ""
            except ValueError:
                return option, "the store"
            host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
            return option, f"{parts.scheme}://{host}{port}" if host else "the store"
    return "endpoint", "the store"


# A store that an adapter keeps open, and opens again when the Secret behind its connection has changed.


class Closable(Protocol):
    """A resource that can be closed."""

    def close(self) -> None:
        """Close all connections."""
        ...


C = TypeVar("C")
S = TypeVar("S", bound=Closable)


class KeptOpen(Generic[C, S]):
    """Opens stores of type `S` by connections of type `C`; a former one is closed when no thread uses it any more."""

    def __init__(self, opened: Callable[[C], S]) -> None:
        self._open = opened
        self._lock = Lock()
        self._current: tuple[C, S] | None = None
        self._former: list[S] = []
        self._users = 0
        self._closed = False

    @property
    def current(self) -> S | None:
        """The store that is open now."""
        return None if self._current is None else self._current[1]

    @contextmanager
    def use(self, wanted: C) -> Iterator[S]:
        """The store behind a connection, for as long as the block runs. Raises what opening it raises."""
        with self._lock:
            store = self._store(wanted)
            self._users += 1
        try:
            yield store
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def close(self) -> None:
        """Close the store, or let the last thread that uses it do so; one that comes later closes its own."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _store(self, wanted: C) -> S:
        if self._current is not None and self._current[0] == wanted:
            return self._current[1]
        store = self._open(wanted)
        if self._current is not None:
            self._former.append(self._current[1])
        self._current = wanted, store
        return store

    def _let_go(self) -> None:
        if self._users:
            return
        if self._closed and self._current is not None:
            self._former.append(self._current[1])
            self._current = None
        while self._former:
            self._former.pop().close()
