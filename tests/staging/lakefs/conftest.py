"""A lakeFS server that tests play on PostgreSQL, and the repository as a merger opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.lakefs.repository import LiveRepository, open_live_repository
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.staging.lakefs_server import LakeFsServer
from support.staging.staging_repos import SMALL_RANGES, TestClock
from tools.servers.postgres import PostgresServer

Action = Callable[[], object]


@dataclass
class QuietClock(TestClock):
    """Runs actions while a merger sleeps."""

    __test__ = False
    during: list[Action] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self.during:
            self.during.pop(0)()


class WatchedStore(SqlKeyValueStore):
    """The store of a merger. `before` and `after`: actions that run once, around the next call of a method."""

    before: dict[str, Action]
    after: dict[str, Action]
    calls: list[tuple[str, str]]

    @classmethod
    def on(cls, kv: SqlKeyValueStore) -> WatchedStore:
        store = cls(kv.database, table=kv.table)
        store.before, store.after, store.calls = {}, {}, []
        return store

    def _around(self, name: str, *args: Any) -> Any:
        self.calls.append((name, args[0] if args and isinstance(args[0], str) else ""))
        self.before.pop(name, _nothing)()
        result = getattr(SqlKeyValueStore, name)(self, *args)
        self.after.pop(name, _nothing)()
        return result

    def set_many(self, *args: Any) -> None:
        self._around("set_many", *args)

    def set_all_if(self, *args: Any) -> None:
        self._around("set_all_if", *args)

    def set_if(self, *args: Any) -> None:
        self._around("set_if", *args)

    def scan(self, partition: str, *args: Any, **more: Any) -> Any:
        self.calls.append(("scan", partition))
        return super().scan(partition, *args, **more)


def _nothing() -> None:
    """An action that does nothing."""


@pytest.fixture
def kv_url(postgres: PostgresServer, postgres_kv: str) -> str:
    """PostgreSQL only: it is what a live lakeFS is supported on."""
    return postgres.url(postgres_kv)


@pytest.fixture
def ranges(tmp_path: Path) -> RangeStorage:
    return RangeStorage(open_objects(str(tmp_path / "objects")), rule=SMALL_RANGES)


@pytest.fixture
def server(kv: SqlKeyValueStore, ranges: RangeStorage) -> LakeFsServer:
    """The keys `a` to `e` are committed."""
    return LakeFsServer(kv, ranges).create({key: f"{key} committed" for key in "abcde"})


@pytest.fixture
def clock() -> QuietClock:
    return QuietClock()


@pytest.fixture
def store(kv_url: str) -> Iterator[WatchedStore]:
    store = WatchedStore.on(open_key_value_store(kv_url))
    yield store
    store.close()


@pytest.fixture
def live(server: LakeFsServer, store: WatchedStore, ranges: RangeStorage, clock: QuietClock) -> LiveRepository:
    return open_live_repository(store, server.name, ranges=ranges, clock=clock.time, sleep=clock.sleep)
