"""Properties of the log: values round-trip, numbers compare as bytes, a watch shows the log, memory and etcd agree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogLogRewoundError, CorruptCatalogLogError
from compaction.catalogs.log.layout import Keys, Stored, last, number, pack, short_name, unpack
from compaction.catalogs.log.port import LogEvent, UpdateLog
from compaction.catalogs.model.descriptors import LOGICAL_BITS
from compaction.catalogs.model.entries import AdvanceIdsEntry, Event, Snapshot, VersionedUpdate
from support.catalogs.etcd_members import EtcdStore
from support.catalogs.events import events
from support.catalogs.memory_log import MemoryUpdateLog
from support.depth import examples

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
