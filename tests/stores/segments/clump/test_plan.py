"""Which runs are re-written, in what portions, and that every other one has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.segments.clump.clump_plan import ClumpOptions, ClumpPlan, StaysReason, mean_run, plan_clump
from compaction.segments.errors import ClumpRefusedError, InvalidGroupError, LiveSetUnknownError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.depth import examples
from support.stores.log_systems import write_wal

REQUEST = ClumpOptions(shorter_than=3, min_ranges=1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes 1..100 in segments of 10, 10 bytes each but for 55 with 500; the snapshot is at 85."""
    directory = tmp_path_factory.mktemp("plan") / "log"
    with LogWriter(directory, max_count=10, sync=False) as writer:
        for index in range(1, 101):
            writer.append(index, 1 + index // 50, b"x" * (500 if index == 55 else 10))
    return directory


def _plan(
    directory: Path, live: str, request: ClumpOptions = REQUEST, limits: SegmentLimits | None = None
) -> ClumpPlan:
    write_snapshot(directory, index=85, term=2, live=LiveSet.parse(live), sync=False)
    return plan_clump(open_log(directory), request, limits or SegmentLimits())


def _moved(plan: ClumpPlan) -> str:
    return str(LiveSet.from_indexes(index for part in plan.rounds for index in part.old))


def test_short_runs_are_moved_behind_the_head_and_long_ones_stay(log: Path) -> None:
    plan = _plan(log, "1,5-6,20,31-33")
    assert _moved(plan) == "1,5-6,20"
    assert [(part.first, part.last, part.bytes) for part in plan.rounds] == [(101, 104, 40)]
    assert (plan.head.newest, plan.head.last, plan.head.term) == ("0000000000000010.segment", 100, 3)
    assert (plan.ranges_before, plan.ranges_after) == (4, 2)
    assert [(runs.reason, runs.runs, runs.entries, runs.first) for runs in plan.left_out] == [
        (StaysReason.LONG_ENOUGH, 1, 3, 31)
    ]
    assert plan.freed_segments == 2


@pytest.mark.parametrize(
    ("live", "request_", "limits", "reason", "stays"),
    [
        ("1,79,84", REQUEST, None, StaysReason.SEGMENT_STAYS, 84),
        ("1,55,57", REQUEST, SegmentLimits(max_bytes=499), StaysReason.TOO_LARGE, 55),
        ("1,3,5,7", ClumpOptions(3, 1, max_bytes=29), None, StaysReason.OVER_BUDGET, 5),
        ("1,3,5", ClumpOptions(3, min_ranges=3), None, StaysReason.TOO_LITTLE_GAIN, 1),
        ("0,2,4", REQUEST, None, StaysReason.NOT_READABLE, 0),
    ],
    ids=lambda value: value if isinstance(value, StaysReason) else "",
)
def test_each_reason_to_stay(
    log: Path, live: str, request_: ClumpOptions, limits: SegmentLimits | None, reason: StaysReason, stays: int
) -> None:
    if reason is StaysReason.NOT_READABLE:
        # Else it would be missing, and nothing of the log re-written.
        write_wal(log.parent, 1, [(log.name.encode(), LogEntry(stays, 1, b"waits"))])
    plan = _plan(log, live, request_, limits)
    (left,) = plan.left_out
    assert (left.reason, left.first) == (reason, stays)
    assert left.detail
    assert str(stays) not in _moved(plan).split(",")


def test_budget_and_gain_count_what_is_equal_as_enough(log: Path) -> None:
    assert _moved(_plan(log, "1,3,5,7", ClumpOptions(3, 1, max_bytes=30))) == "1,3,5"
    assert _moved(_plan(log, "1,3,5", ClumpOptions(3, min_ranges=2))) == "1,3,5"
    assert _moved(_plan(log, "1,55,57", limits=SegmentLimits(max_bytes=500))) == "1,55,57"


def test_rounds_fill_one_segment_each(log: Path) -> None:
    live = ",".join(str(index) for index in range(1, 40, 3))
    plan = _plan(log, live, limits=SegmentLimits(max_entries=5))
    assert [(part.first, part.last) for part in plan.rounds] == [(101, 105), (106, 110), (111, 113)]
    plan = _plan(log, live, limits=SegmentLimits(max_bytes=40))
    assert [part.bytes for part in plan.rounds] == [40, 40, 40, 10]
    assert _moved(plan) == live


def test_nothing_live_is_nothing_to_do(log: Path) -> None:
    plan = _plan(log, "")
    assert (plan.rounds, plan.left_out, plan.ranges_before, plan.ranges_after) == ((), (), 0, 0)


def test_a_snapshot_above_all_segments_is_the_head(tmp_path: Path) -> None:
    with LogWriter(tmp_path, max_count=4, sync=False) as writer:
        for index in range(1, 11):
            writer.append(index, 1, b"abc")
    write_snapshot(tmp_path, index=50, term=7, live=LiveSet.parse("1,3,5"), sync=False)
    plan = plan_clump(open_log(tmp_path), REQUEST, SegmentLimits())
    assert (plan.rounds[0].first, plan.head.term) == (51, 7)


def test_an_unknown_live_set_or_no_snapshot_is_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path, sync=False) as writer:
        writer.append(1, 1, b"abc")
    with pytest.raises(ClumpRefusedError, match="no valid snapshot"):
        plan_clump(open_log(tmp_path), REQUEST, SegmentLimits())
    write_snapshot(tmp_path, index=1, term=1, live=None, sync=False)
    with pytest.raises(LiveSetUnknownError):
        plan_clump(open_log(tmp_path), REQUEST, SegmentLimits())


def test_requests_out_of_range_are_refused() -> None:
    for wrong in ({"shorter_than": 1}, {"min_ranges": 0}, {"max_bytes": 0}):
        with pytest.raises(InvalidGroupError):
            ClumpOptions(**wrong)


def test_mean_run() -> None:
    assert mean_run(LiveSet.parse("1,5-6,10-12")) == 2.0
    assert mean_run(LiveSet.empty()) == 0.0


@settings(max_examples=examples(60))
@given(
    live=st.sets(st.integers(0, 85)),
    request_=st.builds(ClumpOptions, st.integers(2, 5), st.integers(1, 6), st.integers(1, 900)),
    limits=st.builds(SegmentLimits, st.integers(1, 12), st.integers(5, 200)),
)
def test_every_run_is_moved_or_has_a_reason(
    log: Path, live: set[int], request_: ClumpOptions, limits: SegmentLimits
) -> None:
    members = LiveSet.from_indexes(live)
    plan = _plan(log, str(members), request_, limits)
    moved = LiveSet.from_indexes(index for part in plan.rounds for index in part.old)
    for low, high in members.ranges:
        assert moved.count_in(low, high) in (0, high - low + 1), "a run is moved as a whole"
    for low, high in moved.ranges:
        assert high - low + 1 < request_.shorter_than
        assert 1 <= low <= high <= 80, "readable, and below what reaches above the snapshot"
    assert plan.bytes <= request_.max_bytes
    runs_moved = sum(1 for low, _ in members.ranges if low in moved)
    assert runs_moved + sum(left.runs for left in plan.left_out) == len(members.ranges)
    copies = LiveSet.from_ranges([(part.first, part.last) for part in plan.rounds])
    assert len(copies) == len(moved)
    assert plan.ranges_after == len(members.without(moved).ranges) + len(copies.ranges)
    assert not moved or plan.ranges_before - plan.ranges_after >= request_.min_ranges
    for part in plan.rounds:
        assert len(part.old) <= limits.max_entries
        assert part.bytes <= limits.max_bytes
