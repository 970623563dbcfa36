"""Three members with a partition between them: one on its side alone, two on the other. Both sides have a writer and a
watch; what is acknowledged is in the log once, and each watch delivers each version once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.catalogs.errors import CatalogLogUnavailableError
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.model.entries import Event
from support.catalogs.etcd_members import EtcdStore, Member
from support.catalogs.etcd_partition import Partition, partitioned
from support.catalogs.log_writers import Writer, more, require_true, writing
from support.catalogs.logs import at, until, update, watched


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
