"""Recovery from etcd: pages at one revision, compaction meanwhile, and everything that is corruption."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogLogRewoundError, CatalogLogUnavailableError, CorruptCatalogLogError
from compaction.catalogs.log import layout
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import DeleteRange, EtcdPage, Get, Operation, Put, Transaction
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.layout import Keys, Stored, encoded, last, number, pack, short_name, unpack
from compaction.catalogs.log.port import LogEvent, SnapshotOutcome, UpdateLog
from compaction.catalogs.model.descriptors import LOGICAL_BITS, hybrid
from compaction.catalogs.model.entries import AdvanceIdsEntry, Event, Snapshot, VersionedUpdate
from support.catalogs.etcd_members import EtcdStore
from support.catalogs.events import events
from support.catalogs.logs import at, fill, snapshot, update, versions
from support.catalogs.memory_log import MemoryUpdateLog
from support.timing import examples

STAMP = bytes(16)


def change(store: EtcdStore, *operations: Operation) -> None:
    """Write past the log."""
    client = store.members.client()
    assert client.transaction(Transaction((), operations)).succeeded
    client.close()


def keys_of(store: EtcdStore) -> list[str]:
    client = store.members.client()
    page = client.range(Get(store.prefix.encode(), store.prefix.encode() + b"0", keys_only=True))
    client.close()
    return [pair.key.decode().removeprefix(f"{store.prefix}/catalog.") for pair in page.pairs]


def test_the_keys_of_a_log(etcd_store: EtcdStore) -> None:
    """The product is written once and never overwritten."""
    fill(etcd_store.open(), 2)
    etcd_store.open().claim(3)
    assert keys_of(etcd_store) == [
        "product", "snapshot.version", "token", "update.0000000001", "update.0000000002", "version",
    ]  # fmt: skip
    client = etcd_store.members.client()
    product = client.range(Get(Keys(etcd_store.prefix).product)).pairs[0]
    client.close()
    fill(etcd_store.open(), 3, first=3)
    client = etcd_store.members.client()
    assert client.range(Get(Keys(etcd_store.prefix).product)).pairs[0] == product
    client.close()


def test_a_recovery_writes_nothing(etcd_store: EtcdStore) -> None:
    """A user with permission to read is enough."""
    etcd_store.open().recover()
    assert keys_of(etcd_store) == []


def test_many_pages(etcd_store: EtcdStore) -> None:
    log = etcd_store.open()
    fill(log, 700)
    found = log.recover()
    assert versions(found) == list(range(1, 701))
    assert [event.timestamp for event in found.events] == [at(version) for version in range(1, 701)]


class _Compacting(GatewayClient):
    """Compacts the history behind each reading of a page, so often."""

    times = 1
    first = True

    def range(self, what: Get, revision: int = 0) -> EtcdPage:
        page = super().range(what, revision)
        if page.more and self.times:
            self.times -= 1
            keys = Keys("/elsewhere")
            newest = self.transaction(Transaction((), (Put(keys.version, b""),))).revision
            self.compact(newest)
        return page


@pytest.mark.parametrize("times", [1, 3])
def test_history_is_compacted_during_a_recovery(etcd_store: EtcdStore, times: int) -> None:
    """The revision of the reading is gone: it starts over."""
    fill(etcd_store.open(), 100)
    client = _Compacting(etcd_store.members.settings())
    client.times = times
    log = EtcdUpdateLog(client, etcd_store.prefix)
    etcd_store.opened.append(log)
    assert versions(log.recover()) == list(range(1, 101))
    assert client.times == 0


def test_a_database_is_defragmented_between_the_pages_of_a_recovery(etcd_store: EtcdStore) -> None:
    """The member answers nothing while it rewrites its database, and has the same revisions afterwards."""

    class Defragmenting(_Compacting):
        pages = 0

        def range(self, what: Get, revision: int = 0) -> EtcdPage:
            page = super().range(what, revision)
            self.pages += 1
            etcd_store.defragment()
            return page

    fill(etcd_store.open(), 700)
    client = Defragmenting(etcd_store.members.settings())
    log = EtcdUpdateLog(client, etcd_store.prefix)
    etcd_store.opened.append(log)
    assert versions(log.recover()) == list(range(1, 701))
    assert client.pages > 3


def test_a_recovery_does_not_start_over_for_ever(etcd_store: EtcdStore) -> None:
    fill(etcd_store.open(), 100)
    client = _Compacting(etcd_store.members.settings())
    client.times = 100
    log = EtcdUpdateLog(client, etcd_store.prefix)
    etcd_store.opened.append(log)
    with pytest.raises(CatalogLogUnavailableError, match="compacted during each of 5 readings"):
        log.recover()


def value(event: Event, activation: int) -> bytes:
    """The bytes of a value that no log would write, as those of one that it does."""
    return encoded(Stored(event, activation, STAMP))


def corruptions(keys: Keys) -> dict[str, tuple[tuple[Operation, ...], str]]:
    """Each writes past a log of the snapshot 3 and the versions 4 to 6; and the key and reason that are named."""
    return {
        "a gap": ((DeleteRange(keys.update(5), keys.update(6)),), r"update.0000000005: is missing, and version 6"),
        "no last version": ((DeleteRange(keys.update(6), keys.update(7)),), r"0000000006: is missing, and the last"),
        "no snapshot": ((DeleteRange(keys.update(3), keys.update(4)),), r"0000000003: is missing, and version 4"),
        "nothing at all": ((DeleteRange(*keys.updates),), r"0000000003: is missing, and the last version is 6"),
        "one too many": (
            (Put(keys.update(7), value(update(7), hybrid(99_000))),),
            r"0000000007: exists, and the last version is 6",
        ),
        "no layout": ((Put(keys.update(5), b"\x07" * 40),), r"0000000005: no value of this log \(40 bytes\)"),
        "empty": ((Put(keys.update(5), b""),), r"0000000005: no value of this log \(0 bytes\)"),
        "damaged": (
            (Put(keys.update(5), value(update(5), hybrid(5_005))[:-1]),),
            r"0000000005: byte \d+ of the value: the value ends",
        ),
        "an unknown type": (
            (Put(keys.update(5), value(update(5), hybrid(5_005))[:26] + b"\x02\x00\xff\x7f"),),
            r"0000000005: byte \d+ of the value",
        ),
        "another version": (
            (Put(keys.update(5), value(update(4), hybrid(5_005))),),
            "0000000005: holds version 4",
        ),
        "a second snapshot": (
            (Put(keys.update(5), value(snapshot(5), snapshot(5).activation_time)),),
            "0000000005: holds a snapshot, and the log's is version 3",
        ),
        "an update for the snapshot": (
            (Put(keys.update(3), value(update(3), hybrid(3_005))),),
            "0000000003: holds an update where",
        ),
        "times that do not ascend": (
            (Put(keys.update(5), value(update(5), hybrid(4_005))),),
            "0000000005: is not active later",
        ),
        "another last time": ((Put(keys.version, last(6, hybrid(7_777))),), r"version: says \d+, and the last version"),
        "a short number": ((Put(keys.version, b"6"),), "catalog.version: 1 bytes instead of 16"),
        "no number": ((DeleteRange(keys.token, keys.token + b"0"),), "catalog.token: is missing"),
        "another product": ((Put(keys.product, b"IGNITE"),), "catalog.product: the log of another product: b'IGNITE'"),
        "no product": ((DeleteRange(keys.product, keys.product + b"0"),), "exists, and .*catalog.product does not"),
        "a foreign key": ((Put(keys.updates[0] + b"5", b""),), r"update\.5: a key that no version has|no value"),
        "a time before the first": (
            (Put(keys.update(4), value(update(4), 3)),),
            "contradicts the value",
        ),
        "an early last version": ((Put(keys.version, last(5, hybrid(5_005))),), "0000000006: exists, and the last"),
        "a late snapshot": ((Put(keys.snapshot, number(9)),), r"snapshot.version: is 9, the last version 6"),
    }


@pytest.mark.parametrize("which", list(corruptions(Keys("/x"))))
def test_corruption_names_the_key_and_what_to_do(etcd_store: EtcdStore, which: str) -> None:
    log = etcd_store.open()
    fill(log, 6)
    assert log.save_snapshot(snapshot(3), 0) is SnapshotOutcome.SAVED
    assert versions(log.recover()) == [3, 4, 5, 6]
    operations, reason = corruptions(Keys(etcd_store.prefix))[which]
    change(etcd_store, *operations)
    with pytest.raises(CorruptCatalogLogError, match=reason) as error:
        log.recover()
    assert str(error.value).startswith(etcd_store.prefix)
    assert "restore the update log from a copy" in str(error.value)


def test_the_log_of_another_product_is_not_written_to(etcd_store: EtcdStore) -> None:
    change(etcd_store, Put(Keys(etcd_store.prefix).product, b"IGNITE"))
    log = etcd_store.open()
    calls: tuple[Callable[[], object], ...] = (lambda: log.append(update(1), at(1)), lambda: log.claim(1))
    for call in calls:
        with pytest.raises(CorruptCatalogLogError, match="another product"):
            call()
    assert keys_of(etcd_store) == ["product"]


def test_a_large_cut_is_swept_in_pieces(etcd_store: EtcdStore) -> None:
    """About 2,500 versions at once; a range delete takes 1,000."""
    log = etcd_store.open()
    fill(log, 2_500)
    assert log.save_snapshot(snapshot(2_400), 0) is SnapshotOutcome.SAVED
    kept = [key for key in keys_of(etcd_store) if key.startswith("update")]
    assert (kept[0], len(kept)) == ("update.0000002400", 101)


class _Unswept(GatewayClient):
    """Ends like a process that is killed right after a snapshot."""

    def range(self, what: Get, revision: int = 0) -> EtcdPage:
        raise CatalogLogUnavailableError(self.name, "killed")


def test_garbage_is_deleted_by_the_next(etcd_store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that failed changes nothing for readers; whatever the next snapshot's outcome, it deletes."""
    monkeypatch.setattr(layout, "AT_ONCE", 2)
    fill(etcd_store.open(), 8)
    killed = EtcdUpdateLog(_Unswept(etcd_store.members.settings()), etcd_store.prefix)
    etcd_store.opened.append(killed)
    assert killed.save_snapshot(snapshot(6), 0) is SnapshotOutcome.SAVED
    assert [key for key in keys_of(etcd_store) if key.startswith("update")] == [
        f"update.{version:010d}" for version in (1, 2, 3, 6, 7, 8)
    ]
    log = etcd_store.open()
    assert versions(log.recover()) == [6, 7, 8]
    assert log.save_snapshot(snapshot(5, hybrid(1)), 0) is SnapshotOutcome.NOT_NEWER
    assert [key for key in keys_of(etcd_store) if key.startswith("update")] == [
        f"update.{version:010d}" for version in (6, 7, 8)
    ]


# Properties of the log: values round-trip, numbers compare as bytes, a watch shows the log, memory and etcd agree.

KEYS = Keys("/catalogs/x")
u64 = st.integers(0, 2**64 - 1)
writers = st.text(st.characters(codec="utf-8")).map(short_name)


@given(u64, u64, u64, u64)
def test_numbers_compare_as_bytes(a: int, b: int, c: int, d: int) -> None:
    assert (number(a) < number(b)) == (a < b)
    assert (last(a, b) < last(c, d)) == ((a, b) < (c, d))
    assert number(a) < last(a, b) < number(a + 1) if a < 2**64 - 1 else True


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_keys_sort_as_versions(a: int, b: int) -> None:
    assert (KEYS.update(a) < KEYS.update(b)) == (a < b)
    start, end = KEYS.updates
    assert start <= KEYS.update(a) < end
    assert KEYS.version_of(KEYS.update(a)) == a


@given(events, st.integers(1, 2**31 - 1), st.integers(1, 2**62), st.binary(min_size=16, max_size=16), writers)
def test_values_round_trip(event: Event, version: int, activation: int, stamp: bytes, writer: str) -> None:
    if isinstance(event, Snapshot):
        wanted: Event = replace(event, version=version, activation_time=activation)
    else:
        wanted = replace(event, version=version, delay=min(abs(event.delay), activation - 1 >> LOGICAL_BITS))
    given = Stored(wanted, activation, stamp, writer)
    stored = unpack(KEYS, KEYS.update(version), pack(KEYS, given))
    assert stored == given
    assert isinstance(wanted, Snapshot) or stored.timestamp + (wanted.delay << LOGICAL_BITS) == activation


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_corruption(value: bytes) -> None:
    with contextlib.suppress(CorruptCatalogLogError):
        assert unpack(KEYS, KEYS.update(1), b"\x02" + value).event.version == 1


@dataclass
class User:
    """Applies what a watch delivers, as a catalog does."""

    version: int = 0
    snapshot: int = 1
    revision: int = 0
    updates: list[int] = field(default_factory=list)

    def deliver(self, event: LogEvent) -> None:
        assert event.revision >= self.revision
        self.revision = event.revision
        if isinstance(event.event, Snapshot):
            assert event.event.version > self.snapshot
            self.snapshot = event.event.version
            self.version = max(self.version, self.snapshot)
        else:
            assert event.event.version == self.version + 1
            self.version += 1
            self.updates.append(self.version)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "snapshot", "forget", "pump", "pump", "watch"]), st.integers(0, 6)),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=examples(400), deadline=None)
def test_a_watch_shows_the_log_whatever_is_forgotten(steps: list[tuple[str, int]]) -> None:
    log = MemoryUpdateLog()
    users: list[User] = []
    for what, amount in steps:
        match what:
            case "append":
                assert append(log, amount)
            case "snapshot":
                cut(log, log.version - amount)
            case "forget":
                log.forget_history()
            case "pump":
                log.pump(amount)
            case _:
                found = log.recover()
                users.append(User(found.version, log.earliest, found.revision))
                log.watch(found.revision, users[-1].deliver, failed)
    log.pump()
    assert all((user.version, user.snapshot) == (log.version, log.earliest) for user in users)
    assert log.pump() == 0


def failed(error: Exception) -> None:
    pytest.fail(str(error))


def append(log: UpdateLog, delay: int, timestamp: int = 1 << 30) -> bool:
    return log.append(VersionedUpdate(log.recover().version + 1, delay, (AdvanceIdsEntry(delay),)), timestamp)


def cut(log: UpdateLog, version: int, token: int = 0) -> str:
    """Save the snapshot of a version with the time that the log has for it."""
    kept = {event.event.version: event for event in log.recover().events}
    one = kept.get(version)
    active = 1 if one is None else one.activation_time
    try:
        return log.save_snapshot(Snapshot(max(version, 0), active, 5, (), (), None), token)
    except CatalogLogRewoundError:
        return "rewound"


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "again", "snapshot", "claim"]), st.integers(0, 6), st.integers(0, 4)),
        max_size=15,
    )
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_etcd_agree(etcd_store: EtcdStore, steps: list[tuple[str, int, int]]) -> None:
    """The same calls have the same outcomes and leave the same log, revisions aside."""
    calls: dict[str, Callable[[UpdateLog, int, int], object]] = {
        "append": lambda log, delay, moved: append(log, delay, (1 << 30) + (moved << LOGICAL_BITS)),
        "again": lambda log, back, _: log.append(VersionedUpdate(max(1, log.recover().version - back), 0, ()), 1 << 30),
        "snapshot": lambda log, back, token: cut(log, log.recover().version - back, token),
        "claim": lambda log, token, _: log.claim(token),
    }
    with EtcdStore(etcd_store.members) as store:
        logs: list[UpdateLog] = [MemoryUpdateLog(), store.open()]
        for what, first, second in steps:
            outcomes = [calls[what](log, first, second) for log in logs]
            assert outcomes[0] == outcomes[1], what
        memory, etcd = ([(event.event, event.timestamp) for event in log.recover().events] for log in logs)
        assert memory == etcd
