"""A writer tells the sensor when a token has another threshold of tombstones: the reference system's cases."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing

import pytest

from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.staged.counters import Counts, SensorNudge, TokenCounters

THRESHOLD = 10


class Told:
    """The nudges of one writer, by token."""

    def __init__(self, kv: SqlKeyValueStore) -> None:
        self.tokens: Counter[str] = Counter()
        self.writer = TokenCounters(
            kv, flush_writes=10**9, flush_seconds=10**6, nudge=SensorNudge(THRESHOLD, self.note)
        )

    def note(self, token: str, counts: Counts) -> None:
        assert counts.tombstones >= THRESHOLD
        self.tokens[token] += 1

    def deleted(self, *, flush_each: bool = False, **tombstones: int) -> Told:
        for token, amount in tombstones.items():
            for _ in range(amount):
                self.writer.count(token, writes=1, tombstones=1, nbytes=3)
                if flush_each:
                    self.writer.flush()
        self.writer.flush()
        return self


@pytest.mark.parametrize("flush_each", [False, True])
@pytest.mark.parametrize(
    ("deleted", "told"),
    [
        ([{"a": 2, "b": 10}], {"b": 1}),
        ([{"a": 10, "b": 11}], {"a": 1, "b": 1}),
        ([{"a": 20}], {"a": 2}),
        ([{"a": 19}], {"a": 1}),
        ([{"r1_main": 9, "r2_main": 9, "r3_main": 9}], {}),
        ([{"r1_main": 8, "r2_main": 8, "r3_main": 8}, {"r2_main": 8}], {"r2_main": 1}),
        ([{"t1": 8, "t2": 8, "t3": 8}, {"t3": 8}], {"t3": 1}),
        ([{"t1": 8, "t2": 8, "t3": 8, "t4": 8}], {}),
    ],
    ids=["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"],
)
def test_once_for_each_threshold(
    kv: SqlKeyValueStore, deleted: list[dict[str, int]], told: dict[str, int], flush_each: bool
) -> None:
    found = Told(kv)
    with closing(found.writer):
        for step in deleted:
            found.deleted(flush_each=flush_each, **step)
        assert found.tokens == told


def test_writes_that_are_no_deletions_tell_nothing(kv: SqlKeyValueStore) -> None:
    found = Told(kv)
    with closing(found.writer):
        found.writer.count("a", writes=100, nbytes=1)
        found.writer.flush()
        assert found.tokens == {}


def test_nothing_is_counted_after_close_which_may_be_repeated(kv: SqlKeyValueStore) -> None:
    """S9, S10, S11; what was counted before is written, and told."""
    found = Told(kv)
    for _ in range(THRESHOLD):
        found.writer.count("a", writes=1, tombstones=1)
    found.writer.close()
    found.writer.close()
    assert found.tokens == {"a": 1}
    found.deleted(a=100)
    assert found.tokens == {"a": 1}


def test_a_slow_sensor_never_blocks_a_writer(kv: SqlKeyValueStore) -> None:
    """S12: the call waits until every write is counted."""
    called, go_on = threading.Event(), threading.Event()

    def slow(token: str, counts: Counts) -> None:
        called.set()
        assert go_on.wait(60)

    writer = TokenCounters(kv, flush_writes=THRESHOLD, flush_seconds=10**6, nudge=SensorNudge(THRESHOLD, slow))
    for _ in range(THRESHOLD):
        writer.count("a", writes=1, tombstones=1)
    assert called.wait(60)
    for _ in range(100 * THRESHOLD):
        writer.count("a", writes=1, tombstones=1)
    go_on.set()
    writer.close()
    assert TokenCounters(kv).read(["a"]) == {"a": Counts(101 * THRESHOLD, 101 * THRESHOLD, 0)}


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="give a threshold from 1 on"):
        SensorNudge(0, lambda token, counts: None)
