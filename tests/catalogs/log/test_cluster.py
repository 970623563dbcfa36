"""Members that stop, freeze and are cut off, under writers and watches: nothing that was acknowledged is lost, and no
event is lost or repeated.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.catalogs.errors import CatalogLogError, CatalogLogUnavailableError
from compaction.catalogs.log.etcd.wire import Endpoint
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.model.entries import Event, Snapshot
from support.catalogs.etcd_members import EtcdStore, Member, Members, Partition, etcd_members, partitioned
from support.catalogs.log_writers import Writer, followed, more, require_true, writing
from support.catalogs.logs import Collector, at, fill, snapshot, until, update, versions, watched
from support.clocks import PATIENCE_SECONDS
from support.faults.proxies import Network, TcpProxy


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd_program: Path) -> Iterator[Members]:
    with etcd_members(tmp_path_factory.mktemp("three"), etcd_program, 3) as running:
        yield running


@pytest.fixture
def store_of_three(three: Members) -> Iterator[EtcdStore]:
    store = EtcdStore(three)
    yield store
    store.close()


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


def test_members_restart_in_an_orderly_way(three: Members, store_of_three: EtcdStore) -> None:
    """A rolling restart, as an upgrade makes it: a member that is asked to stop ends each watch with a refusal in the
    stream, where one that is killed ends the connection.
    """
    writers = tuple(Writer(store_of_three.open(), mark) for mark in (1, 2))
    claimer, claimed = store_of_three.open(), list[int]()
    watches = [
        watched(store_of_three.open(member.endpoint, *(item.endpoint for item in three.members if item is not member)))[
            0
        ]
        for member in three.members
    ]
    with writing(*writers):
        for member in three.members:
            more(writers, 5)
            member.stop(patience=PATIENCE_SECONDS)
            claimed.append(claimer.claim(1))
            more(writers, 5)
            three.start(member)
            claimed.append(claimer.claim(1))
        more(writers, 5)
    assert claimed == sorted(set(claimed))
    require_true(store_of_three, writers, *watches)


def test_the_leader_freezes(three: Members, store_of_three: EtcdStore) -> None:
    """Its connections stay open, and nothing comes over them: a watch there is moved to another member."""
    writers = (Writer(store_of_three.open(), 1),)
    leader = three.leader()
    others = [member.endpoint for member in three.members if member is not leader]
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
        reached = (Endpoint(False, "127.0.0.1", proxy.port), *(other.endpoint for other in others))
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


def await_followed(collector: Collector, version: int) -> None:
    """Until whoever applies what the watch delivered is at this version."""
    until(
        lambda: bool(collector.errors) or followed([event.event for event in collector.events]) == version,
        f"version {version} to be followed",
    )
    assert not collector.errors


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
                await_followed(collector, 20 * step)
        snapshots = [event.event.version for event in collector.events if isinstance(event.event, Snapshot)]
        assert snapshots == sorted(set(snapshots))
        assert snapshots[-1] == 233
        assert len(collector.events) < 240 + 12, "nothing was cut, so this showed nothing"
        reader.close()


@contextlib.contextmanager
def maintained(store: EtcdStore) -> Iterator[list[int]]:
    """History of etcd is compacted and its database defragmented again and again; the list grows with each round."""
    stopped, rounds = threading.Event(), list[int]()

    def run() -> None:
        while not stopped.is_set():
            store.forget_history()
            store.defragment()
            rounds.append(len(rounds))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield rounds
    finally:
        stopped.set()
        thread.join()


def test_recoveries_are_whole_while_etcd_is_maintained(member: Members, etcd_store: EtcdStore) -> None:
    """Under a writer, and cuts of the log."""
    writer, reader = Writer(etcd_store.open(), 1), etcd_store.open()
    fill(reader, 300)
    whole, earliest, deadline = 0, 1, time.monotonic() + PATIENCE_SECONDS
    with writing(writer), maintained(etcd_store) as rounds:
        while (whole < 20 or len(rounds) < 5) and time.monotonic() < deadline:
            try:
                found = reader.recover()
            except CatalogLogUnavailableError:
                continue  # compacted during each of its attempts, and named: reading again helps
            assert versions(found) == list(range(earliest, found.version + 1))
            whole += 1
            if whole % 5 == 0:
                cut = found.events[-100]
                reader.save_snapshot(snapshot(cut.event.version, activation=cut.activation_time), 0)
                earliest = cut.event.version
    assert whole >= 20
    assert len(rounds) >= 5
    assert earliest > 1, "nothing was cut, so this showed nothing"


# Three members with a partition between them: one on its side alone, two on the other. Both sides have a writer and a
# watch; what is acknowledged is in the log once, and each watch delivers each version once.


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory, etcd_program: Path) -> Iterator[Partition]:
    with partitioned(tmp_path_factory.mktemp("partition"), etcd_program) as running:
        yield running


@pytest.fixture
def store(partition: Partition) -> Iterator[EtcdStore]:
    found = EtcdStore(partition.members)
    yield found
    partition.heal()
    found.close()


def sides(partition: Partition, store: EtcdStore, alone: Member) -> tuple[EtcdUpdateLog, EtcdUpdateLog]:
    """A log that reaches the one member only, and one that reaches the other two."""
    others = [member.endpoint for member in partition.members.members if member is not alone]
    return store.open(alone.endpoint, call_seconds=1.0), store.open(*others, call_seconds=5.0)


@pytest.mark.parametrize("leads", [True, False], ids=["the leader is cut off", "a follower is cut off"])
def test_both_sides_of_a_partition_write_and_watch(partition: Partition, store: EtcdStore, leads: bool) -> None:
    leader = partition.members.leader()
    alone = leader if leads else next(member for member in partition.members.members if member is not leader)
    minority, majority = sides(partition, store, alone)
    writers = Writer(minority, 1), Writer(majority, 2)
    behind, _ = watched(sides(partition, store, alone)[0])
    ahead, _ = watched(sides(partition, store, alone)[1])
    with writing(*writers):
        more(writers[:1], 5)
        more(writers[1:], 5)
        partition.isolate(alone)
        more(writers[1:], 20)
        until(lambda: len(ahead.events) >= 30, "the watch of the majority goes on")
        seen = len(behind.events)
        assert seen < len(ahead.events), "a member without a quorum knows what the others wrote"
        partition.heal()
        until(lambda: len(behind.events) > seen or bool(behind.errors), "the watch of the minority resumes")
        more(writers[:1], 5)
        more(writers[1:], 5)
    require_true(store, writers, behind, ahead)
    assert not behind.errors
    assert not ahead.errors


def test_the_minority_answers_nothing_and_writes_nothing(partition: Partition, store: EtcdStore) -> None:
    """What it answered before could be what others have replaced since."""
    leader = partition.members.leader()
    minority, majority = sides(partition, store, leader)
    assert majority.append(update(1), at(1))
    partition.isolate(leader)
    with pytest.raises(CatalogLogUnavailableError):
        minority.append(update(2, 7), at(2))
    with pytest.raises(CatalogLogUnavailableError):
        minority.recover()
    until(lambda: appended(majority), "the others have a leader")
    partition.heal()
    until(lambda: recovered(minority) == [update(1), update(2)], "the minority has what the majority wrote")


def appended(log: EtcdUpdateLog) -> bool:
    try:
        return log.append(update(2), at(2))
    except CatalogLogUnavailableError:
        return False


def recovered(log: EtcdUpdateLog) -> list[Event]:
    try:
        return [event.event for event in log.recover().events]
    except CatalogLogUnavailableError:
        return []
