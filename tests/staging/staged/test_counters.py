"""Counters of tokens: several writers, restarts, stores that are away, tokens that were never counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import frame_value
from compaction.staging.kv.port import Pair
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.staged import counters as module
from compaction.staging.staged.counters import PARTITION, Counts, SensorNudge, TokenCounters
from compaction.staging.staged.rows import StagedTokens
from compaction.storage.errors import DatabaseUnavailableError
from support.clocks import PATIENCE_SECONDS
from support.staging.staging_repos import rows_of


@pytest.fixture
def counters(kv: SqlKeyValueStore) -> Iterator[TokenCounters]:
    """Written when a test says so."""
    writer = quiet(kv)
    yield writer
    writer.close()


def quiet(kv: SqlKeyValueStore) -> TokenCounters:
    return TokenCounters(kv, flush_writes=10**9, flush_seconds=10**6)


def eventually(counters: TokenCounters, token: str, expected: Counts) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while counters.read([token]).get(token) != expected:
        assert time.monotonic() < until, counters.read([token])
        time.sleep(0.01)


def test_counts_of_several_writers_add_up(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    other = quiet(kv)
    for _ in range(3):
        counters.count("r-a:1", writes=2, tombstones=1, nbytes=100)
        other.count("r-a:1", writes=1, nbytes=7)
    other.count("r-b:2", writes=1, tombstones=1, nbytes=5)
    assert counters.read(["r-a:1"]) == {}
    counters.flush()
    assert other.read(["r-a:1", "r-b:2"]) == {"r-a:1": Counts(6, 3, 300)}
    other.close()
    other.count("r-b:2", writes=100)
    assert counters.read(["r-a:1", "r-b:2", "r-c:3"]) == {"r-a:1": Counts(9, 3, 321), "r-b:2": Counts(1, 1, 5)}
    assert len(rows_of(kv, PARTITION)) == 3


def test_a_writer_that_starts_again_adds_to_what_it_had(kv: SqlKeyValueStore) -> None:
    for number in range(1, 4):
        writer = quiet(kv)
        writer.count("t", writes=1, nbytes=10)
        writer.close()
        writer.close()
        assert writer.read(["t"]) == {"t": Counts(number, 0, 10 * number)}


def test_rows_are_written_after_many_writes_and_after_a_while(kv: SqlKeyValueStore) -> None:
    by_number, by_time = TokenCounters(kv, flush_seconds=10**6), TokenCounters(kv, flush_seconds=0.05)
    by_number.count("n", writes=255)
    by_time.count("t", writes=1)
    eventually(by_time, "t", Counts(1))
    by_time.count("t", writes=1)
    eventually(by_time, "t", Counts(2))
    assert by_number.read(["n"]) == {}
    by_number.count("n", writes=1)
    eventually(by_number, "n", Counts(256))
    by_number.close()
    by_time.close()


def test_many_threads_count(kv: SqlKeyValueStore) -> None:
    writers = [TokenCounters(kv) for _ in range(2)]

    def count(number: int) -> None:
        for place in range(500):
            writers[number % 2].count(f"t{place % 3}", writes=1, tombstones=place % 2, nbytes=3)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.close()
    found = writers[0].read(f"t{place}" for place in range(3))
    assert sum(found.values(), start=Counts()) == Counts(3000, 1500, 9000)


def test_many_tokens_are_read_at_once(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    """Names in which bytes and characters are ordered differently, prefixes of each other, and others between."""
    names = [f"r-{number:03d}:x" for number in range(40)] + ["r", "r-", "\udcff", "\U0001f600", "\uffee"]
    for number, name in enumerate(names):
        counters.count(name, writes=number + 1)
    counters.flush()
    assert counters.read(names) == {name: Counts(number + 1) for number, name in enumerate(names)}
    assert counters.read(names[:20]) == {name: Counts(number + 1) for number, name in enumerate(names[:20])}
    for name in names:
        assert list(counters.read([name])) == [name]
    assert counters.read([]) == {}


def test_a_token_that_is_forgotten(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    other = quiet(kv)
    for writer in (counters, other):
        writer.count("t", writes=1)
        writer.count("t2", writes=1)
        writer.flush()
        writer.count("t", writes=1)
    counters.forget("t")
    counters.forget("t")
    assert counters.read(["t", "t2"]) == {"t2": Counts(2)}
    counters.flush()
    assert counters.read(["t"]) == {}
    counters.count("t", writes=5)
    counters.flush()
    assert counters.read(["t"]) == {"t": Counts(5)}
    other.close()


def test_a_writer_does_not_remember_tokens_for_ever(
    kv: SqlKeyValueStore, counters: TokenCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    for _ in range(2):
        for number in range(9):
            counters.count(f"t{number}", writes=1)
            counters.flush()
    assert counters.read(f"t{number}" for number in range(9)) == {f"t{number}": Counts(2) for number in range(9)}
    assert len(counters._totals) == 2


def test_a_token_that_was_never_counted(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    value = frame_value(b"id", b"data")
    rows = [(b"a", b""), (b"b", value), (b"c", b"")]
    StagedTokens(kv).set_many("t", RecordColumns.of(rows))
    expected = Counts(3, 2, 3 + len(value))
    assert counters.prime("t") == expected
    assert counters.read(["t"]) == {"t": expected}
    StagedTokens(kv).set("t", b"d", value)
    counters.count("t", writes=1, nbytes=9)
    counters.flush()
    assert counters.prime("t") == expected + Counts(1, 0, 9)
    assert counters.prime("empty") == Counts()
    assert counters.read(["empty"]) == {}
    counters.forget("t")
    assert rows_of(kv, PARTITION) == []


def test_two_who_prime_at_once_count_once(
    kv: SqlKeyValueStore, counters: TokenCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have scanned the rows before either writes down what it has counted."""
    StagedTokens(kv).set("t", b"k", b"")
    changes, others = StagedTokens.changes, [TokenCounters(kv)]

    def scanned_by_both(self: StagedTokens, token: str) -> Iterator[RecordColumns]:
        yield from changes(self, token)
        if others:
            assert others.pop().prime(token) == Counts(1, 1, 1)

    monkeypatch.setattr(StagedTokens, "changes", scanned_by_both)
    assert counters.prime("t") == Counts(1, 1, 1)
    assert counters.read(["t"]) == {"t": Counts(1, 1, 1)}


def test_a_token_that_its_writer_counted_is_not_counted_again(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    StagedTokens(kv).set("t", b"k", b"")
    counters.count("t", writes=1, tombstones=1, nbytes=1)
    counters.flush()
    assert counters.prime("t") == counters.read(["t"])["t"] == Counts(1, 1, 1)


def test_counting_goes_on_while_the_store_is_away(kv: SqlKeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    set_many = kv.set_many
    failed = threading.Event()

    def away(partition: str, rows: Sequence[Pair]) -> None:
        failed.set()
        raise DatabaseUnavailableError("the store", "did not answer")

    monkeypatch.setattr(kv, "set_many", away)
    counters = TokenCounters(kv, flush_writes=4, flush_seconds=0.02)
    for _ in range(20):
        counters.count("t", writes=1)
    assert failed.wait(PATIENCE_SECONDS)
    with pytest.raises(DatabaseUnavailableError):
        counters.flush()
    monkeypatch.setattr(kv, "set_many", set_many)
    eventually(counters, "t", Counts(20))
    monkeypatch.setattr(kv, "set_many", away)
    counters.count("t", writes=1)
    with pytest.raises(DatabaseUnavailableError):
        counters.close()
    monkeypatch.setattr(kv, "set_many", set_many)
    counters.close()
    assert counters.read(["t"]) == {"t": Counts(21)}


def test_what_cannot_be_counted(kv: SqlKeyValueStore, counters: TokenCounters) -> None:
    for token in ("", "t" * 3000):
        with pytest.raises(KeyValueArgumentError):
            counters.count(token, writes=1)
    kv.set(PARTITION, b"t\0writer", b"\xff")
    with pytest.raises(CorruptMessageError, match=r"staging-counters: row 't\\x00writer': not a staging counters"):
        counters.read(["t"])


# A writer tells the sensor when a token has another threshold of tombstones: the reference system's cases.

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
        assert go_on.wait(PATIENCE_SECONDS)

    writer = TokenCounters(kv, flush_writes=THRESHOLD, flush_seconds=10**6, nudge=SensorNudge(THRESHOLD, slow))
    for _ in range(THRESHOLD):
        writer.count("a", writes=1, tombstones=1)
    assert called.wait(PATIENCE_SECONDS)
    for _ in range(100 * THRESHOLD):
        writer.count("a", writes=1, tombstones=1)
    go_on.set()
    writer.close()
    assert TokenCounters(kv).read(["a"]) == {"a": Counts(101 * THRESHOLD, 101 * THRESHOLD, 0)}


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="give a threshold from 1 on"):
        SensorNudge(0, lambda token, counts: None)
