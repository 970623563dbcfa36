"""A staging area as the rest of the system opens it: its key-value store, and the repositories in it.

One key-value store holds any number of repositories; the objects of each are below the URL that its record names
(docs/design/staging-areas.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.kv.port import TABLE
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.refs.branches import Repositories, Repository
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.database import DEFAULT_PATIENCE
from compaction.storage.objects.store import open_objects
from compaction.storage.opened import StoreAddress


@dataclass(frozen=True, slots=True)
class StagingConnection:
    """The connection to a staging area. `kv_url` (of the key-value store) and `options` (credentials of the objects)
    never show. `authorities`: certificates, in PEM, that the server of the key-value store is trusted by. `kv_from` and
    `options_from`: the places where these two are written, for messages, such as `Secret kv`.
    """

    kv_url: str = field(repr=False)
    table: str = TABLE
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    kv_from: str = ""
    options_from: str = ""
    authorities: str = field(default="", repr=False)

    def open_kv(self, *, patience: float = DEFAULT_PATIENCE) -> SqlKeyValueStore:
        """The key-value store; nothing is read yet. Raises DatabaseUrlError, KeyValueArgumentError."""
        return open_key_value_store(self.kv_url, table=self.table, authorities=self.authorities, patience=patience)

    def address(self, namespace: str = "") -> StoreAddress:
        """Return the address in messages about a store that cannot be reached. `namespace`: the URL of the objects."""
        return StoreAddress(namespace, self.options, self.options_from, self.kv_from)


@dataclass(frozen=True, slots=True)
class StagingStore:
    """The repositories of one key-value store. Safe for threads. `clock`: seconds since 1970."""

    connection: StagingConnection
    kv: SqlKeyValueStore
    counters: TokenCounters
    clock: Callable[[], float] = time.time

    @classmethod
    def open(
        cls,
        connection: StagingConnection,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = DEFAULT_PATIENCE,
    ) -> Self:
        """Open a store; nothing is read or created yet. `patience`: seconds for which a call is repeated while the
        database is away. Raises DatabaseUrlError, KeyValueArgumentError.
        """
        kv = connection.open_kv(patience=patience)
        return cls(connection, kv, TokenCounters(kv), clock)

    @property
    def repositories(self) -> Repositories:
        """The records of the repositories."""
        return Repositories(self.kv)

    def create(self, name: str, namespace: str, *, committer: str, default_branch: str = "main") -> Area:
        """A new repository with its default branch on an empty tree. `namespace`: the URL of its objects. A key-value
        store without a table gets one.

        Raises StagingNameError, RefExistsError, SchemaVersionError, ObjectStoreUrlError, DatabaseError.
        """
        open_objects(namespace, options=self.connection.options)
        self.kv.migrate()
        self.repositories.prepare()
        repository = self.repositories.create(name, namespace, now=self.clock(), default_branch=default_branch)
        area = self._area(repository)
        Brancher(area).begin(committer)
        return area

    def area(self, name: str) -> Area:
        """One repository. Keep it: it remembers the lists of ranges that it has read.

        Raises UnknownRefError, ForeignRepositoryError, SchemaVersionError, ObjectStoreUrlError, DatabaseError.
        """
        self.repositories.check_version()
        return self._area(self.repositories.get(name))

    def close(self) -> None:
        """Write down what was counted, and close the connections. DatabaseError when that is not possible."""
        try:
            self.counters.close()
        finally:
            self.kv.close()

    def _area(self, repository: Repository) -> Area:
        objects = open_objects(repository.namespace, options=self.connection.options)
        return Area.of(repository, self.kv, RangeStorage(objects), self.counters, clock=self.clock)


class OpenedRepository:
    """One repository that stays open for many calls, and what was read of its trees. Safe for threads."""

    def __init__(self, store: StagingStore, name: str) -> None:
        self._store = store
        self._name = name
        self._area: Area | None = None

    @classmethod
    def open(cls, connection: StagingConnection, name: str, *, patience: float = DEFAULT_PATIENCE) -> OpenedRepository:
        """Open the store that has it. Raises as `StagingStore.open`."""
        return cls(StagingStore.open(connection, patience=patience), name)

    def area(self) -> Area:
        """The repository as its record says now: one that was created again is another one. Raises as
        `StagingStore.area`.
        """
        found = self._store.area(self._name)
        if self._area is None or self._area.repository != found.repository:
            self._area = found
        return self._area

    def close(self) -> None:
        """Close the store."""
        self._store.close()
