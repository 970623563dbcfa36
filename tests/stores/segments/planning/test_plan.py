"""The planner's rules, one by one (docs/design/segment-planning.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.segments.errors import InvalidGroupError, SourcesChangedError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import LogPlan, group_ranges, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet


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
    **more: frozenset[str],
) -> LogPlan:
    state = open_log(directory, snapshot_index=snapshot, live=None if snapshot is None else LiveSet.parse(live))
    return plan_log(state, limits or SegmentLimits(), **more)


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
