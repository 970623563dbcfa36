"""Members that stop, freeze and are cut off, under writers and watches: nothing that was acknowledged is lost, and no
event is lost or repeated.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compaction.catalogs.log.etcd.settings import Endpoint
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.model.entries import Event, Snapshot
from compaction.exceptions import CatalogLogError, CatalogLogRewoundError
from support.catalogs.etcd_members import EtcdStore, Members, etcd_members
from support.catalogs.logs import Collector, at, fill, snapshot, until, update, versions, watched
from support.faults.tcp_proxy import Network, TcpProxy


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd_program: Path) -> Iterator[Members]:
    with etcd_members(tmp_path_factory.mktemp("three"), etcd_program, 3) as running:
        yield running


@pytest.fixture
def store_of_three(three: Members) -> Iterator[EtcdStore]:
    store = EtcdStore(three)
    yield store
    store.close()


@dataclass
class Writer:
    """Appends one version after the other until it is stopped; a version it was not answered for is tried again."""

    log: EtcdUpdateLog
    mark: int
    won: dict[int, int] = field(default_factory=dict)
    """Version to the mark that was acknowledged."""
    doubtful: set[int] = field(default_factory=set)
    """Versions of calls that no answer came to."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                version = self.log.recover().version + 1
                try:
                    if self.log.append(update(version, self.mark), at(version)):
                        self.won[version] = self.mark
                except CatalogLogError:
                    self.doubtful.add(version)
                    raise
            except CatalogLogError:
                self.stopped.wait(0.02)


@contextlib.contextmanager
def writing(*writers: Writer) -> Iterator[None]:
    threads = [threading.Thread(target=one.run) for one in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in writers:
            one.stopped.set()
        for thread in threads:
            thread.join()


def acknowledged(*writers: Writer) -> int:
    return sum(len(one.won) for one in writers)


def more(writers: tuple[Writer, ...], count: int) -> None:
    """Wait for so many more acknowledged versions."""
    before = acknowledged(*writers)
    until(lambda: acknowledged(*writers) >= before + count, f"{count} versions after {before}")


def require_true(store: EtcdStore, writers: tuple[Writer, ...], *collectors: Collector) -> None:
    """Each acknowledged version is in the log as its writer wrote it, and each watch delivered the log, once."""
    kept = {one.event.version: one.event for one in store.open().recover().events}
    for writer in writers:
        assert {version: kept[version] for version in writer.won} == {
            version: update(version, mark) for version, mark in writer.won.items()
        }
    owners = {version for writer in writers for version in writer.won}
    assert sum(len(writer.won) for writer in writers) == len(owners), "a version was won twice"
    assert set(kept) - owners <= {version for writer in writers for version in writer.doubtful}
    for collector in collectors:
        until(lambda collector=collector: len(collector.events) >= len(kept) or bool(collector.errors), "all events")  # type: ignore[misc]
        assert [one.event for one in collector.events] == list(kept.values())


def test_the_leader_is_killed(three: Members, store_of_three: EtcdStore) -> None:
    writers = tuple(Writer(store_of_three.open(), mark) for mark in (1, 2))
    collector, _ = watched(store_of_three.open())
    with writing(*writers):
        more(writers, 20)
        leader = three.leader()
        leader.kill()
        more(writers, 40)
        three.start(leader)
        more(writers, 20)
    require_true(store_of_three, writers, collector)


def test_the_leader_freezes(three: Members, store_of_three: EtcdStore) -> None:
    """Its connections stay open, and nothing comes over them: a watch there is moved to another member."""
    writers = (Writer(store_of_three.open(), 1),)
    leader = three.leader()
    others = [one.endpoint for one in three.members if one is not leader]
    collector, _ = watched(store_of_three.open(leader.endpoint, *others))
    with writing(*writers):
        more(writers, 10)
        leader.signal(signal.SIGSTOP)
        try:
            more(writers, 20)
            until(lambda: len(collector.events) >= 20, "the watch goes on")
        finally:
            leader.signal(signal.SIGCONT)
        more(writers, 10)
    require_true(store_of_three, writers, collector)


@pytest.mark.parametrize("state", [Network.REFUSING, Network.BLACK_HOLE])
def test_a_client_is_cut_off_from_one_member(three: Members, store_of_three: EtcdStore, state: Network) -> None:
    """A partition between the client and the member it uses."""
    first, *others = three.members
    with TcpProxy((first.endpoint.host, first.client_port)) as proxy:
        reached = (Endpoint(False, "127.0.0.1", proxy.port), *(one.endpoint for one in others))
        writers = (Writer(store_of_three.open(*reached), 1),)
        collector, _ = watched(store_of_three.open(*reached))
        with writing(*writers):
            more(writers, 10)
            proxy.set(state)
            more(writers, 20)
            until(lambda: len(collector.events) >= 20, "the watch goes on")
            proxy.set(Network.UP)
            more(writers, 10)
        require_true(store_of_three, writers, collector)
        store_of_three.close()


@pytest.mark.parametrize("state", [Network.REFUSING, Network.BLACK_HOLE])
def test_a_client_is_cut_off_from_all(member: Members, etcd_store: EtcdStore, state: Network) -> None:
    """Calls end with an error; once the network is up, writes and the watch go on."""
    target = member.members[0].endpoint
    with TcpProxy((target.host, target.port)) as proxy:
        log = etcd_store.open(Endpoint(False, "127.0.0.1", proxy.port), call_seconds=0.5)
        fill(log, 3)
        collector, _ = watched(log)
        proxy.set(state)
        with pytest.raises(CatalogLogError, match="did not answer"):
            log.append(update(4), at(4))
        other = etcd_store.open()
        first = other.recover().version + 1
        fill(other, 6, first=first)
        proxy.set(Network.UP)
        until(lambda: len(collector.events) >= 3, "the watch goes on")
        last = log.recover().version
        assert log.append(update(last + 1), at(last + 1))
        assert etcd_store.settle(collector, last - 2) == [str(version) for version in range(4, last + 2)]
        log.close()


def test_etcd_restarts(tmp_path: Path, etcd_program: Path) -> None:
    with etcd_members(tmp_path, etcd_program) as running:
        store = EtcdStore(running)
        writers = (Writer(store.open(), 1),)
        collector, _ = watched(store.open())
        with writing(*writers):
            for _ in range(3):
                more(writers, 10)
                running.members[0].kill()
                running.start()
            more(writers, 10)
        require_true(store, writers, collector)
        store.close()


def followed(events: list[Event], start: int = 0) -> int:
    """A user of the log that applies what a watch delivers: the version it ends with. Each update must be the next, a
    snapshot may jump ahead.
    """
    version = start
    for event in events:
        if isinstance(event, Snapshot):
            version = max(version, event.version)
        else:
            assert event.version == version + 1, f"version {event.version} after {version}"
            version = event.version
    return version


def test_history_is_compacted_and_cut_under_a_watch_that_is_interrupted(member: Members, etcd_store: EtcdStore) -> None:
    """Writers, snapshots and compactions of etcd go on while the watch's network comes and goes."""
    target = member.members[0].endpoint
    with TcpProxy((target.host, target.port)) as proxy:
        reader = etcd_store.open(Endpoint(False, "127.0.0.1", proxy.port), call_seconds=0.5)
        collector, _ = watched(reader)
        log = etcd_store.open()
        for step in range(1, 13):
            proxy.set(Network.REFUSING if step % 3 else Network.UP)
            fill(log, 20 * step, first=20 * step - 19)
            log.save_snapshot(snapshot(20 * step - 7), 0)
            if step % 2:
                etcd_store.forget_history()
            if step % 3 == 0:
                seen = len(collector.events)
                until(lambda seen=seen: len(collector.events) > seen or bool(collector.errors), "events")  # type: ignore[misc]
        proxy.set(Network.UP)
        until(lambda: bool(collector.errors) or followed([one.event for one in collector.events]) == 240, "the last")
        assert not collector.errors
        snapshots = [one.event.version for one in collector.events if isinstance(one.event, Snapshot)]
        assert snapshots == sorted(set(snapshots))
        assert snapshots[-1] == 233
        assert len(collector.events) < 240 + 12, "nothing was cut, so this showed nothing"
        reader.close()


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
    assert followed([one.event for one in store.open().recover().events]) == found.version + len(again.won)
    assert store.settle(fresh, 5)[0] == str(found.version + 1)


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
    running.members[0].kill()
    shutil.rmtree(running.members[0].directory / "data")
    running.start()
    until(lambda: bool(collector.errors), "the watch fails")
    assert isinstance(collector.errors[0], CatalogLogRewoundError)
    with pytest.raises(CatalogLogRewoundError, match="does not exist, and it did before"):
        log.append(update(4), at(4))
