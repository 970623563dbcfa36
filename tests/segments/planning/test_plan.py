"""The planner's rules, one by one (docs/design/segment-planning.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compaction.segments.errors import InvalidGroupError, SourcesChangedError
from compaction.segments.format.segment_file import LogWriter, encode_records
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES, segment_name
from compaction.segments.planning.plan import GroupCheck, LeftAloneReason, LogPlan, group_ranges, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits, dead_segments
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.rules import CompactionFacts, Due, DueRules, due, seconds_left
from support.segments.segment_logs import VARIED_LIMITS, varied_log


def n(name: str) -> int:
    return int(name[:16])


def groups(plan: LogPlan) -> list[list[int]]:
    return [[n(s) for s in group.sources] for group in plan.groups]


def reasons(plan: LogPlan) -> dict[int, str]:
    return {n(left.name): left.reason.value for left in plan.left_alone}


def write(directory: Path, entries: list[tuple[int, int, int]], *, max_count: int = 10) -> Path:
    """(index, term, size) in write order."""
    with LogWriter(directory, max_count=max_count, sync=False) as writer:
        for index, term, size in entries:
            writer.append(index, term, b"x" * size)
    return directory


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Six segments of ten entries of 100 bytes: 1-10, 11-20, ... 51-60."""
    return write(tmp_path / "log", [(i, 1, 100) for i in range(1, 61)])


def plan(
    directory: Path,
    live: str,
    *,
    snapshot: int | None = 50,
    limits: SegmentLimits | None = None,
    quarantined: frozenset[str] = frozenset(),
    awaiting_deletion: frozenset[str] = frozenset(),
) -> LogPlan:
    state = open_log(directory, snapshot_index=snapshot, live=None if snapshot is None else LiveSet.parse(live))
    return plan_log(state, limits or SegmentLimits(), quarantined=quarantined, awaiting_deletion=awaiting_deletion)


def test_no_snapshot_means_nothing_may_go(log: Path) -> None:
    result = plan(log, "", snapshot=None)
    assert not result.groups
    assert not result.unreferenced
    assert set(reasons(result).values()) == {"NoSnapshot"}
    assert result.debt_bytes == 0


def test_nothing_live_deletes_all_but_the_newest(log: Path) -> None:
    result = plan(log, "", snapshot=60)
    assert [n(u.name) for u in result.unreferenced] == [1, 2, 3, 4, 5]
    assert {u.reason.value for u in result.unreferenced} == {"NoLiveIndex"}
    assert reasons(result) == {6: "NewestSegment"}
    assert result.debt_segments == 5
    assert result.debt_bytes == sum(u.bytes for u in result.unreferenced)


def test_a_segment_that_straddles_the_snapshot_is_left_alone(log: Path) -> None:
    result = plan(log, "1,11,21,31,41", snapshot=45)
    assert groups(result) == [[1, 2, 3, 4]]
    assert reasons(result) == {5: "AboveSnapshot", 6: "NewestSegment"}


def test_exactly_half_live_is_dense_and_one_less_is_not(log: Path) -> None:
    assert reasons(plan(log, "1-5,11-14,21,31,41"))[1] == "DenseEnough"
    assert groups(plan(log, "1-4,11-14,21,31,41")) == [[1, 2, 3, 4, 5]]


def test_a_dense_segment_ends_a_group(log: Path) -> None:
    result = plan(log, "1,11,21-30,31,41")
    assert groups(result) == [[1, 2], [4, 5]]
    assert reasons(result)[3] == "DenseEnough"


def test_few_bytes_qualify_even_if_most_entries_are_live(tmp_path: Path) -> None:
    sizes = [(i, 1, 10 if i % 10 else 1000) for i in range(1, 31)]
    result = plan(write(tmp_path / "log", sizes), "1-9,11-19", snapshot=20)
    assert groups(result) == [[1, 2]]


def test_equal_numbers_fit_and_one_more_does_not(log: Path) -> None:
    live = "1-3,11-13,21-23,31-33,41-43"
    assert groups(plan(log, live, limits=SegmentLimits(max_entries=9))) == [[1, 2, 3], [4, 5]]
    assert groups(plan(log, live, limits=SegmentLimits(max_bytes=900))) == [[1, 2, 3], [4, 5]]
    assert groups(plan(log, live, limits=SegmentLimits(max_bytes=899))) == [[1, 2], [3, 4], [5]]
    assert groups(plan(log, live, limits=SegmentLimits(max_sources=2))) == [[1, 2], [3, 4], [5]]


def test_a_segment_that_exceeds_the_limits_alone_is_skipped(log: Path) -> None:
    result = plan(log, "1,11-14,21,31,41", limits=SegmentLimits(max_entries=3))
    assert groups(result) == [[1], [3, 4, 5]]
    assert reasons(result)[2] == "AloneTooLarge"


def test_a_dead_segment_between_sources_is_carried_along(log: Path) -> None:
    """It does not count as a source, and one behind the last source is not carried."""
    result = plan(log, "1,31", limits=SegmentLimits(max_sources=2))
    assert groups(result) == [[1, 4]]
    assert [n(name) for name in result.groups[0].carried] == [2, 3]
    assert [n(u.name) for u in result.unreferenced] == [5]
    assert result.debt_segments == 5
    state = open_log(log, snapshot_index=50, live=LiveSet.parse("1,31"))
    assert result.groups[0].source_bytes == sum(s.identity.size for s in state.segments[:4])
    assert result.debt_bytes == sum(s.identity.size for s in state.segments[:5]) - (8 + 2 * 32 + 200)


def test_quarantine_ends_a_group_and_still_allows_deletion(log: Path) -> None:
    held = frozenset({"0000000000000002.segment", "0000000000000005.segment"})
    result = plan(log, "1,11,21,31", quarantined=held)
    assert groups(result) == [[1], [3, 4]]
    assert reasons(result)[2] == "Quarantined"
    assert [n(u.name) for u in result.unreferenced] == [5]


def test_what_waits_for_its_deletion_is_no_debt(log: Path) -> None:
    result = plan(log, "11-20,21-30,31-40,41-50", awaiting_deletion=frozenset({"0000000000000001.segment"}))
    assert result.debt_segments == 0
    assert reasons(result)[1] == "AwaitingDeletion"


def test_limited_refs_copy_only_what_is_current(tmp_path: Path) -> None:
    """16..20 of segment 2 are superseded by segment 3; their old records must not count as live."""
    first = [(i, 1, 100) for i in range(1, 21)]
    second = [(i, 2, 100) for i in range(16, 46)]
    directory = write(tmp_path / "log", first + second)
    live = LiveSet.parse("1,11,16,17,18,26")
    state = open_log(directory, snapshot_index=40, live=live)
    result = plan_log(state, SegmentLimits())
    assert groups(result) == [[1, 2, 3, 4]]
    assert result.groups[0].live_entries == 6
    assert group_ranges(state, result.groups[0].sources, live).spans == ((1, 10), (11, 15), (16, 25), (26, 35))


def test_fully_overwritten_and_empty_segments_are_deleted_below_the_snapshot(tmp_path: Path) -> None:
    directory = write(tmp_path / "log", [(i, 1, 100) for i in range(1, 31)])
    write(directory, [(i, 2, 100) for i in range(5, 61)])
    live = "1-60"
    result = plan(directory, live, snapshot=44)
    assert {n(u.name): u.reason.value for u in result.unreferenced} == {2: "Overwritten", 3: "Overwritten"}
    result = plan(directory, live, snapshot=13)
    assert not result.unreferenced
    assert reasons(result)[2] == reasons(result)[3] == "AboveSnapshot"


def test_a_header_only_newest_file_protects_itself_and_the_newest_entries(log: Path) -> None:
    (log / "0000000000000007.segment").write_bytes(b"RASG\x00\x02\x00\x0a")
    result = plan(log, "", snapshot=60)
    assert [n(u.name) for u in result.unreferenced] == [1, 2, 3, 4, 5]
    assert reasons(result) == {6: "NewestSegment", 7: "NewestSegment"}


@pytest.mark.parametrize("limits", [{"max_entries": 65536}, {"max_entries": 0}, {"max_bytes": 0}, {"max_sources": 9}])
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidGroupError):
        SegmentLimits(**limits)


def test_groups_that_no_longer_hold_are_refused(log: Path) -> None:
    live = LiveSet.parse("1,11,21-30,31")
    state = open_log(log, snapshot_index=50, live=live)
    one, two, three, five, six = (f"{i:016d}.segment" for i in (1, 2, 3, 5, 6))
    assert group_ranges(state, [one, two], live).spans == ((1, 10), (11, 20))
    for sources, words in [
        ([one, three], "lies between"),
        ([five, six], "must not be compacted"),
        ([one, "0000000000000099.segment"], "not a segment of its own"),
    ]:
        with pytest.raises(SourcesChangedError, match=words):
            group_ranges(state, sources, live)


# When an owner compacts its own log, from plain numbers.

NOW = 1000.0
HALF = CompactionFacts(live_entries=50, entries=100, live_bytes=700, bytes=1000, debt_bytes=300, debt_segments=3)


@pytest.mark.parametrize(
    ("rules", "compacted_at", "expected"),
    [
        (DueRules(), 0.0, None),
        (DueRules(live_share=0.5), 0.0, None),
        (DueRules(live_share=0.51), 0.0, Due.SPARSE),
        (DueRules(debt_bytes=301), 0.0, None),
        (DueRules(debt_bytes=300), 0.0, Due.LARGE),
        (DueRules(every=100), 900.5, None),
        (DueRules(every=100), 900.0, Due.TIMER),
        (DueRules(live_share=0.6, debt_bytes=1, every=1), 0.0, Due.SPARSE),
        (DueRules(debt_bytes=1, every=1), 0.0, Due.LARGE),
    ],
)
def test_the_first_reason_that_holds(rules: DueRules, compacted_at: float, expected: Due | None) -> None:
    assert due(HALF, rules, compacted_at=compacted_at, now=NOW) is expected
    # Nothing to gain is no reason, whatever the clock says.
    assert due(CompactionFacts(), rules, compacted_at=compacted_at, now=NOW) is None


def test_the_smaller_share_decides() -> None:
    assert HALF.live_share == 0.5
    assert CompactionFacts(live_entries=90, entries=100, live_bytes=100, bytes=1000).live_share == 0.1
    assert CompactionFacts().live_share == 1.0


def test_a_clock_that_was_set_back_restarts_the_timer() -> None:
    rules = DueRules(every=60)
    assert seconds_left(DueRules(), compacted_at=0, now=NOW) is None
    assert seconds_left(rules, compacted_at=NOW - 20, now=NOW) == 40
    assert seconds_left(rules, compacted_at=NOW - 90, now=NOW) == 0
    assert seconds_left(rules, compacted_at=NOW + 9000, now=NOW) == 60


def test_facts_are_of_what_may_be_compacted(tmp_path: Path) -> None:
    varied_log(tmp_path / "log")
    log = open_log(tmp_path / "log")
    plan = plan_log(log, VARIED_LIMITS)
    facts = CompactionFacts.of(log, plan)
    assert (facts.debt_bytes, facts.debt_segments) == (plan.debt_bytes, plan.debt_segments)
    assert (facts.live_entries, facts.live_bytes) == (plan.live_entries, plan.live_bytes)
    assert 0 < facts.live_entries < facts.entries < sum(segment.count for segment in log.segments)
    assert due(facts, DueRules(live_share=0.5), compacted_at=0, now=0) is Due.SPARSE
    assert plan_log(log, SegmentLimits(max_entries=1)).debt_segments < plan.debt_segments


# A machine lost its power during a flush: half an index slot in the newest segment names an index far below its own.
#
# Until the owner has cleared it, it hides from every reader what lies above that index. Nothing may be given up, and
# nothing rewritten, by what such a log seems to be.

LIVE = LiveSet.parse("2,11,19")


@pytest.fixture
def torn_log(tmp_path: Path) -> Path:
    """Segments of 16 entries; snapshot 24 lies in the middle of segment 2, so 25 to 32 are needed, whatever is live."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=16) as writer:
        for index in range(1, 37):
            writer.append(index, 1, b"entry %d" % index * 9)
    write_snapshot(directory, index=24, term=1, live=LIVE)
    return directory


def tear(directory: Path, index: int) -> None:
    """A slot behind the last one, of which only a part has reached the disk."""
    segment = open_log(directory).segments[-1]
    half = {"term": 0, "offset": 0, "length": 70, "crc": 7}
    slot = encode_records(
        idx=np.array([index], np.uint64),
        term=np.array([half["term"]], np.uint64),
        offset=np.array([half["offset"]], np.uint64),
        length=np.array([half["length"]], np.uint32),
        crc=np.array([half["crc"]], np.uint32),
    )
    with segment.path.open("r+b") as file:
        file.seek(HEADER_BYTES + segment.count * SLOT_BYTES[2])
        file.write(slot)


@pytest.mark.parametrize("index", [0, 5, 20])
def test_nothing_is_planned_by_a_log_that_its_owner_has_to_repair(torn_log: Path, index: int) -> None:
    whole = {entry.index for entry in iter_entries(open_log(torn_log))}
    assert plan_log(open_log(torn_log), SegmentLimits()).debt_segments == 1
    tear(torn_log, index)
    state = open_log(torn_log)
    assert max(ref.first for ref in state.refs) == index, "the slot hides what lies above it"
    plan = plan_log(state, SegmentLimits())
    assert (plan.groups, plan.unreferenced, dead_segments(torn_log)) == ((), (), {})
    reasons = {item.reason for item in plan.left_alone}
    assert reasons <= {LeftAloneReason.NEWEST_TORN, LeftAloneReason.STRANDED_ENTRIES}
    assert LeftAloneReason.NEWEST_TORN in reasons
    for sources in ((segment_name(1),), (segment_name(2),)):
        with pytest.raises(SourcesChangedError):
            GroupCheck(state, LIVE).ranges(sources)
    # The owner clears the slot; nothing else was lost.
    segment = state.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(HEADER_BYTES + (segment.count - 1) * SLOT_BYTES[2])
        file.write(bytes(SLOT_BYTES[2]))
    assert {entry.index for entry in iter_entries(open_log(torn_log))} == whole
