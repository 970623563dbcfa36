"""The reference participant: its report after each event that a coordinator may meet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import MinimumAheadError, ParticipantStateError, WatermarkFileError
from compaction.catalogs.model.descriptors import MINIMUM, hybrid, later
from compaction.catalogs.participants.reference import PartitionKey, ReferenceParticipant, system_clock
from compaction.catalogs.participants.reports import Cause, IndexBuild, Role, contradictions
from compaction.catalogs.participants.watermark import LowWatermark, WatermarkFile, WatermarkMemory, WatermarkSettings
from support.catalogs.participants import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(hybrid(100_000))


@pytest.fixture
def one(clock: Clock) -> ReferenceParticipant:
    """Ready, with a partition that it leads."""
    found = ReferenceParticipant("node1", clock=clock)
    for version in (1, 2, 3):
        found.versions.add(version, hybrid(version * 1000))
    found.add_partition(5, 0, Role.PRIMARY)
    found.move_watermark(hybrid(50_000))
    found.store_minimum(hybrid(2500))
    checkpoint(found)
    return found


def checkpoint(one: ReferenceParticipant, succeeded: bool = True) -> None:
    one.begin_checkpoint()
    one.finish_checkpoint(succeeded)


def test_a_fresh_one_needs_everything() -> None:
    found = ReferenceParticipant("node1").report()
    assert (found.minimum, found.cause, found.subject) == (MINIMUM, Cause.NOT_READY, "low watermark")
    assert found.transactions == found.clock
    assert abs(found.clock - system_clock()) < hybrid(60_000)
    assert list(contradictions(found)) == []


def test_a_partition_counts_from_its_checkpoint_on(one: ReferenceParticipant) -> None:
    assert one.report().minimum == hybrid(2500)
    assert one.store_minimum(hybrid(3500)) == 1
    assert one.report().minimum == hybrid(2500)
    one.begin_checkpoint()
    one.store_minimum(hybrid(60_000))
    one.finish_checkpoint()
    found = one.report()
    assert (found.minimum, found.cause, found.subject) == (hybrid(3500), Cause.PARTITION, "table 5 partition 0")
    checkpoint(one)
    assert one.report().cause is Cause.LOW_WATERMARK


def test_a_new_partition_makes_it_not_ready(one: ReferenceParticipant) -> None:
    one.add_partition(5, 1, Role.REPLICA)
    assert one.report().subject == "table 5 partition 1"
    assert one.report().minimum == MINIMUM
    one.remove_partition(5, 1)
    assert one.report().minimum == hybrid(2500)


def test_a_replica_gets_the_minimum_by_replication(one: ReferenceParticipant) -> None:
    one.add_partition(5, 1, Role.REPLICA)
    one.replicate(False)
    assert one.store_minimum(hybrid(3500)) == 1, "it leads one"
    checkpoint(one)
    assert one.report().cause is Cause.NOT_READY
    one.replicate(True)
    one.store_minimum(hybrid(3500))
    checkpoint(one)
    assert one.report().minimum == hybrid(3500)


def test_a_transaction_holds_its_version_and_no_report_minimum(one: ReferenceParticipant, clock: Clock) -> None:
    begun = one.begin()
    one.versions.add(4, hybrid(101_000))
    clock.now = hybrid(200_000)
    found = one.report()
    assert (found.transactions, found.oldest_transaction) == (hybrid(3000), begun)
    assert found.minimum == hybrid(2500)
    with pytest.raises(MinimumAheadError, match="later than"):
        one.store_minimum(hybrid(150_000))
    assert one.store_minimum(begun) == 1, "the version active there is the one that it holds"
    one.finish(begun)
    one.store_minimum(hybrid(150_000))
    with pytest.raises(MinimumAheadError):
        one.store_minimum(later(clock.now, 1000))
    with pytest.raises(ParticipantStateError, match="no transaction began"):
        one.finish(begun)


def test_an_index_build_and_a_rebalance_are_reported(one: ReferenceParticipant, clock: Clock) -> None:
    one.start_index_build(9)
    since = clock.now
    clock.now += 1 << 16
    one.start_index_build(9)
    one.start_rebalance(2, hybrid(1500))
    found = one.report()
    assert found.index_builds == (IndexBuild(9, since),)
    assert (found.minimum, found.cause, found.subject) == (hybrid(1500), Cause.REBALANCE, "zone 2")
    one.end_rebalance(2)
    one.end_index_build(9)
    assert one.report().minimum == hybrid(2500)
    assert one.report().index_builds == ()


def test_a_reader_holds_the_watermark(one: ReferenceParticipant) -> None:
    one.begin_read(hybrid(55_000))
    assert one.move_watermark(hybrid(60_000)) == hybrid(50_000)
    for refused in (hybrid(55_000), hybrid(52_000)):
        with pytest.raises(ParticipantStateError, match="no read at"):
            one.begin_read(refused)
    one.finish(hybrid(55_000))
    assert one.report().low_watermark == hybrid(60_000)


def test_a_restart_forgets_what_must_be_forgotten(clock: Clock, tmp_path: Path) -> None:
    one = ReferenceParticipant("node1", clock=clock, store=WatermarkFile(tmp_path / "watermark"))
    one.add_partition(5, 0, Role.PRIMARY)
    one.move_watermark(hybrid(50_000))
    one.store_minimum(hybrid(2500))
    checkpoint(one)
    one.store_minimum(hybrid(3500))
    begun = one.begin()
    one.begin_read(hybrid(51_000))
    one.start_index_build(9)
    one.begin_checkpoint()
    assert one.positions() == {PartitionKey(5, 0): (2, 1)}
    one.restart()
    found = one.report()
    assert (found.minimum, found.cause, found.subject) == (MINIMUM, Cause.NOT_READY, "table 5 partition 0")
    assert (found.oldest_transaction, found.low_watermark) == (UNDEFINED, hybrid(50_000))
    assert found.index_builds, "the build goes on"
    with pytest.raises(ParticipantStateError):
        one.finish(begun)
    with pytest.raises(ParticipantStateError, match="no checkpoint is under way"):
        one.finish_checkpoint()
    assert one.positions() == {PartitionKey(5, 0): (2, 1)}
    checkpoint(one)
    assert one.report().minimum == hybrid(3500), "the command after the checkpoint was replayed"
    assert one.move_watermark(hybrid(60_000)) == hybrid(60_000), "its reader is gone"


def test_commands_that_a_checkpoint_holds_are_not_replayed(one: ReferenceParticipant) -> None:
    one.restart(earliest=hybrid(70_000))
    checkpoint(one)
    found = one.report()
    assert (found.cause, found.low_watermark) == (Cause.NOT_READY, hybrid(70_000))
    one.store_minimum(hybrid(2000))
    checkpoint(one)
    assert one.report().minimum == hybrid(2000)


def test_a_checkpoint_that_fails_keeps_the_command_for_the_next(one: ReferenceParticipant) -> None:
    one.store_minimum(hybrid(3500))
    checkpoint(one, succeeded=False)
    assert one.report().minimum == hybrid(2500)
    one.begin_checkpoint()
    with pytest.raises(ParticipantStateError, match="under way"):
        one.begin_checkpoint()
    one.remove_partition(5, 0)
    one.finish_checkpoint()
    assert one.report().cause is Cause.LOW_WATERMARK


def test_a_clock_that_is_off(one: ReferenceParticipant, clock: Clock) -> None:
    one.set_clock_offset(3_600_000)
    assert one.report().clock >= later(clock.now, 3_600_000)
    assert one.report().transactions == pytest.approx(later(clock.now, 3_600_000), abs=10)


def test_what_is_not_there(one: ReferenceParticipant) -> None:
    for wrong in (
        lambda: one.remove_partition(5, 9),
        lambda: one.end_index_build(1),
        lambda: one.end_rebalance(1),
        lambda: one.versions.add(3, hybrid(9000)),
        lambda: one.versions.add(4, hybrid(3000)),
        lambda: one.versions.active(0),
    ):
        with pytest.raises(ParticipantStateError):
            wrong()


# The low watermark grows only, waits for readers that are older, is saved before it counts, and survives a restart.

SETTINGS = WatermarkSettings(availability=1000, update=500, skew=10)


def started(saved: int = UNDEFINED, earliest: int = 1) -> LowWatermark:
    watermark = LowWatermark(WatermarkMemory(saved), SETTINGS)
    watermark.start(earliest)
    return watermark


def test_the_candidate_is_the_clock_less_availability_and_skew() -> None:
    watermark = started()
    assert watermark.value == UNDEFINED
    assert watermark.update(hybrid(5000, 7)) == hybrid(3990, 7)
    assert watermark.update(hybrid(4999)) == hybrid(3990, 7), "a clock that goes back moves nothing"
    assert watermark.update(hybrid(6000)) == hybrid(4990)


def test_a_clock_younger_than_the_availability_leaves_it_undefined() -> None:
    assert started().update(hybrid(1000)) == UNDEFINED


def test_it_waits_for_readers_that_are_older_and_for_no_others() -> None:
    watermark = started()
    assert watermark.acquire("a", hybrid(100))
    assert watermark.acquire("b", hybrid(3990))
    assert watermark.update(hybrid(5000)) == UNDEFINED
    assert watermark.waiting
    watermark.release("a")
    assert watermark.value == hybrid(3990), "a reader at the watermark reads what is kept"
    assert not watermark.waiting
    assert watermark.update(hybrid(6000)) == hybrid(3990)
    watermark.release("b")
    assert watermark.value == hybrid(4990)


def test_readers_below_it_or_below_where_it_goes_are_refused() -> None:
    watermark = started()
    watermark.acquire("a", hybrid(100))
    watermark.update(hybrid(5000))
    assert not watermark.acquire("late", hybrid(200)), "or it would wait for ever"
    assert watermark.acquire("b", hybrid(4000))
    watermark.release("a")
    watermark.release("never came")
    assert not watermark.acquire("late", hybrid(3989))


def test_listeners_hear_each_value_once_and_in_order() -> None:
    watermark = started()
    heard: list[int] = []

    def further(value: int) -> None:
        heard.append(value)
        if len(heard) < 3:
            watermark.raise_to(value + 1)

    watermark.listen(further)
    watermark.raise_to(10)
    watermark.raise_to(5)
    assert heard == [10, 11, 12]


def test_restart_reads_what_was_saved(tmp_path: Path) -> None:
    file = WatermarkFile(tmp_path / "watermark")
    first = LowWatermark(file, SETTINGS)
    assert first.start(earliest=50) == UNDEFINED, "one that was never set stays undefined"
    first.update(hybrid(5000))
    assert LowWatermark(file, SETTINGS).start(earliest=1) == hybrid(3990)


def test_a_node_that_was_down_during_a_compaction_is_raised_to_the_earliest_version(tmp_path: Path) -> None:
    file = WatermarkFile(tmp_path / "watermark")
    file.save(30)
    assert LowWatermark(file, SETTINGS).start(earliest=70) == 70
    assert file.load() == 70


@pytest.mark.parametrize("content", [b"", b"-5\n", b"12 34", b"0\n", b"9" * 30, b"\xff", b"9223372036854775808\n"])
def test_a_file_with_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "watermark"
    path.write_bytes(content)
    with pytest.raises(WatermarkFileError, match="does not hold a hybrid timestamp"):
        WatermarkFile(path).load()


def test_what_cannot_be_saved_does_not_count(tmp_path: Path) -> None:
    watermark = LowWatermark(WatermarkFile(tmp_path / "missing" / "watermark"), SETTINGS)
    heard: list[int] = []
    watermark.listen(heard.append)
    with pytest.raises(WatermarkFileError, match="No such file"):
        watermark.raise_to(5)
    assert (watermark.value, heard) == (UNDEFINED, [])
    (tmp_path / "missing").mkdir()
    assert watermark.raise_to(4) == 5, "and the next attempt goes where it was to go"
    with pytest.raises(WatermarkFileError):
        WatermarkFile(tmp_path).load()


def test_updates_go_on_until_they_are_stopped() -> None:
    watermark, stop = started(), threading.Event()
    clock = iter(range(hybrid(5000), hybrid(9000)))
    watermark.listen(lambda _: stop.set())
    thread = threading.Thread(target=watermark.keep_updating, args=(lambda: next(clock), stop))
    thread.start()
    thread.join()
    assert watermark.value == hybrid(3990)


STEPS = st.lists(st.tuples(st.sampled_from(["raise", "acquire", "release"]), st.integers(0, 5), st.integers(1, 40)))


@given(STEPS)
def test_no_reader_that_was_let_in_is_ever_overtaken(steps: list[tuple[str, int, int]]) -> None:
    watermark, readers, asked = started(), dict[int, int](), 0
    for kind, reader, timestamp in steps:
        before = watermark.value
        if kind == "raise":
            watermark.raise_to(timestamp)
            asked = max(asked, timestamp)
        elif kind == "acquire" and reader not in readers:
            if watermark.acquire(reader, timestamp):
                readers[reader] = timestamp
            else:
                assert timestamp < asked
        elif kind == "release":
            readers.pop(reader, None)
            watermark.release(reader)
        assert watermark.value >= before
        assert all(watermark.value <= held for held in readers.values())
    for reader in list(readers):
        watermark.release(reader)
    assert not watermark.waiting


def test_threads_move_it_one_at_a_time() -> None:
    watermark, heard = started(), list[int]()
    watermark.listen(heard.append)
    threads = [
        threading.Thread(target=lambda start=start: [watermark.raise_to(n) for n in range(start, 2000, 7)])
        for start in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == sorted(set(heard))
    assert watermark.raise_to(2000) == 2000
