"""The reference participant: its report after each event that a coordinator may meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import MinimumAheadError, ParticipantStateError
from compaction.catalogs.model.descriptors import MINIMUM, hybrid, later
from compaction.catalogs.participants.reference import PartitionKey, ReferenceParticipant, system_clock
from compaction.catalogs.participants.reports import Cause, IndexBuild, Role, contradictions
from compaction.catalogs.participants.watermark import WatermarkFile
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
