"""A store that is replaced by a copy of itself, or by an empty one, under writers and watches: what is lost is noticed
in whatever order it happens, and a copy that lost nothing goes on.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.catalogs.errors import CatalogLogRewoundError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Endpoint, EtcdSettings, Stream
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from support.catalogs.etcd_members import QUICK, EtcdStore, Members, etcd_members
from support.catalogs.log_writers import Writer, followed, more, writing
from support.catalogs.logs import Collector, at, fill, snapshot, until, update, versions, watched
from support.faults.proxies import Network, TcpProxy


@pytest.fixture
def backup(tmp_path: Path, etcd_program: Path) -> Iterator[tuple[Members, EtcdStore, Path]]:
    """A member of its own, and where its copy goes."""
    with etcd_members(tmp_path / "etcd", etcd_program) as running:
        store = EtcdStore(running)
        yield running, store, tmp_path / "copy"
        store.close()


def copied(running: Members, copy: Path) -> None:
    """Copy the data while the member stands still."""
    one = running.members[0]
    one.signal(signal.SIGSTOP)
    shutil.copytree(one.directory / "data", copy)
    one.signal(signal.SIGCONT)


def restored(running: Members, copy: Path) -> None:
    """Stop the member, and start it over the copy."""
    one = running.members[0]
    one.kill()
    shutil.rmtree(one.directory / "data")
    shutil.copytree(copy, one.directory / "data")
    running.start()


def test_a_restore_that_loses_versions_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    """Under load: the copy lacks what watches delivered. They fail by name, and a new start goes on."""
    running, store, copy = backup
    writer = Writer(store.open(), 1)
    collector, _ = watched(store.open())
    with writing(writer):
        more((writer,), 10)
        copied(running, copy)
        more((writer,), 10)
        until(lambda: len(collector.events) >= 20, "the watch has what will be lost")
    last = store.open().recover().version
    restored(running, copy)
    until(lambda: bool(collector.errors), "the watch fails")
    assert isinstance(collector.errors[0], CatalogLogRewoundError)
    assert "restart the processes that use the catalog" in str(collector.errors[0])
    found = store.open().recover()
    assert 10 <= found.version < last
    assert versions(found) == list(range(1, found.version + 1))
    again = Writer(store.open(), 2)
    fresh, _ = watched(store.open())
    with writing(again):
        more((again,), 5)
    assert followed([event.event for event in store.open().recover().events]) == found.version + len(again.won)
    assert store.settle(fresh, 5)[0] == str(found.version + 1)


def test_a_restore_under_writers_and_a_watch(backup: tuple[Members, EtcdStore, Path]) -> None:
    """They do not stop: the watch fails by name, writers go on from what the copy has, and what is acknowledged after
    the restore stays.
    """
    running, store, copy = backup
    writers = tuple(Writer(store.open(), mark) for mark in (1, 2))
    late = Writer(store.open(), 3)
    collector, _ = watched(store.open())
    with writing(*writers):
        more(writers, 20)
        copied(running, copy)
        before = store.open().recover().version
        more(writers, 40)
        until(lambda: len(collector.events) > before, "the watch has what will be lost")
        restored(running, copy)
        assert "as it was delivered" in rewound(collector)
        fresh, _ = watched(store.open())
        with writing(late):
            more((late,), 10)
    found = store.open().recover()
    kept = {event.event.version: event.event for event in found.events}
    assert versions(found) == list(range(1, found.version + 1))
    assert {version: kept[version] for version in late.won} == {version: update(version, 3) for version in late.won}
    until(lambda: bool(fresh.events) and fresh.events[-1].event.version == found.version, "all events")
    first = fresh.events[0].event.version
    assert [event.event for event in fresh.events] == [kept[version] for version in range(first, found.version + 1)]


def test_a_restore_that_others_wrote_over_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    """The versions are there again before the watch is, and are other ones: their stamps differ. A snapshot of the old
    ones is refused.
    """
    running, store, copy = backup
    fill(store.open(), 5)
    copied(running, copy)
    target = running.members[0].endpoint
    with TcpProxy((target.host, target.port)) as proxy:
        log = store.open(Endpoint(False, "127.0.0.1", proxy.port), call_seconds=0.5)
        collector, _ = watched(log)
        fill(log, 8, first=6)
        store.settle(collector, 3)
        proxy.set(Network.REFUSING)
        restored(running, copy)
        others = store.open()
        for version in range(6, 12):
            assert others.append(update(version, 50), at(version) + 77)
        proxy.set(Network.UP)
        until(lambda: bool(collector.errors), "the watch fails")
        assert isinstance(collector.errors[0], CatalogLogRewoundError)
        assert "no longer holds version 8 as it was delivered" in str(collector.errors[0])
        assert collector.shown == ["6", "7", "8"]
        with pytest.raises(CatalogLogRewoundError, match="version 7 is active at"):
            log.save_snapshot(snapshot(7), 0)
        log.close()


def test_a_restore_that_lost_nothing_goes_on(backup: tuple[Members, EtcdStore, Path]) -> None:
    """The copy has all versions; its revisions are lower, since other keys changed. The watch goes on."""
    running, store, copy = backup
    log = store.open()
    fill(log, 5)
    collector, _ = watched(log)
    fill(log, 7, first=6)
    store.settle(collector, 2)
    copied(running, copy)
    other = EtcdStore(running)
    fill(other.open(), 30)
    other.close()
    restored(running, copy)
    fill(store.open(), 10, first=8)
    assert store.settle(collector, 5) == ["6", "7", "8", "9", "10"]
    assert not collector.errors


def test_a_log_that_vanished_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    """An empty etcd in the place of the old one."""
    running, store, _ = backup
    log = store.open()
    fill(log, 3)
    collector, _ = watched(log)
    emptied(running)
    assert "does not exist" in rewound(collector)
    with pytest.raises(CatalogLogRewoundError, match="does not exist, and it did before"):
        log.append(update(4), at(4))


class Interposed(GatewayClient):
    """Runs `before` once, when a watch that has compared the log with what it delivered is about to connect."""

    def __init__(self, settings: EtcdSettings, before: Callable[[], object]) -> None:
        super().__init__(settings)
        self.before: list[Callable[[], object]] = [before]

    def watch(self, key: bytes, end: bytes, start: int) -> Stream:
        if self.before:
            self.before.pop()()
        return super().watch(key, end, start)


def interposed(store: EtcdStore, replace: Callable[[], object]) -> Collector:
    """A watch between whose check and connection the store is replaced; it is when this returns."""
    replaced = threading.Event()

    def replace_now() -> None:
        replace()
        replaced.set()

    client = Interposed(store.members.settings(), replace_now)
    log = EtcdUpdateLog(client, store.prefix, pace=QUICK)
    store.opened.append(log)
    collector, _ = watched(log)
    until(replaced.is_set, "the store is replaced")
    return collector


def emptied(running: Members) -> None:
    """Stop the member, and start it over nothing."""
    one = running.members[0]
    one.kill()
    shutil.rmtree(one.directory / "data")
    running.start()


def rewound(collector: Collector) -> str:
    """The message that the watch fails with."""
    until(lambda: bool(collector.errors), "the watch fails")
    assert isinstance(collector.errors[0], CatalogLogRewoundError)
    return str(collector.errors[0])


def test_a_log_that_vanishes_before_the_connection_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    running, store, _ = backup
    fill(store.open(), 3)
    collector = interposed(store, lambda: emptied(running))
    assert "does not exist, and it did before" in rewound(collector)


def test_a_copy_that_lacks_versions_before_the_connection_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    running, store, copy = backup
    fill(store.open(), 3)
    copied(running, copy)
    fill(store.open(), 5, first=4)
    collector = interposed(store, lambda: restored(running, copy))
    assert "no longer holds version 5 as it was delivered" in rewound(collector)


def test_a_copy_that_others_wrote_over_before_the_connection_is_noticed(
    backup: tuple[Members, EtcdStore, Path],
) -> None:
    """Its revisions are past those of the watch, and its versions follow."""
    running, store, copy = backup
    fill(store.open(), 3)
    copied(running, copy)
    fill(store.open(), 5, first=4)

    def replace() -> None:
        restored(running, copy)
        others = store.open()
        for version in range(4, 12):
            assert others.append(update(version, 50), at(version))

    collector = interposed(store, replace)
    assert "no longer holds version 5 as it was delivered" in rewound(collector)
    assert collector.shown == []


@pytest.mark.parametrize("written", [0, 2], ids=["nothing written", "two versions written"])
def test_a_copy_that_lost_nothing_before_the_connection_goes_on(
    backup: tuple[Members, EtcdStore, Path], written: int
) -> None:
    """Its revisions are lower, since other keys changed after the copy was made: no connection that begins at the
    revision of the watch would deliver what comes next.
    """
    running, store, copy = backup
    fill(store.open(), 3)
    copied(running, copy)
    other = EtcdStore(running)
    fill(other.open(), 30)
    other.close()

    def replace() -> None:
        restored(running, copy)
        fill(store.open(), 3 + written, first=4)

    collector = interposed(store, replace)
    fill(store.open(), 8, first=4 + written)
    assert store.settle(collector, 5) == ["4", "5", "6", "7", "8"]
    assert not collector.errors


def test_a_log_that_vanishes_behind_a_silent_connection_is_noticed(backup: tuple[Members, EtcdStore, Path]) -> None:
    """The connection of the watch stays open and carries nothing, as across a network that is cut; the store answers
    at another endpoint.
    """
    running, store, _ = backup
    direct = running.members[0].endpoint
    with TcpProxy((direct.host, direct.port)) as proxy:
        log = store.open(Endpoint(False, "127.0.0.1", proxy.port), direct)
        fill(log, 3)
        collector, _ = watched(log)
        fill(log, 4, first=4)
        store.settle(collector, 1)
        proxy.set(Network.BLACK_HOLE)
        emptied(running)
        assert "does not exist, and it did before" in rewound(collector)
        log.close()
