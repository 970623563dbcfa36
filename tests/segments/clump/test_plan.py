"""Which runs are re-written, in what portions, and that every other one has a reason."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.segments.clump.clump_plan import ClumpOptions, ClumpPlan, StaysReason, mean_run, plan_clump
from compaction.segments.clump.moves import (
    MoveReceipt,
    Moves,
    decode_moves,
    encode_moves,
    load_moves,
    read_moves,
    resolve,
)
from compaction.segments.errors import ClumpRefusedError, CorruptMovesError, InvalidGroupError, LiveSetUnknownError
from compaction.segments.format.names import moves_name, parse_moves
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.segments.segment_logs import write_wal
from support.timing import examples

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
    requests: tuple[dict[str, Any], ...] = ({"shorter_than": 1}, {"min_ranges": 0}, {"max_bytes": 0})
    for wrong in requests:
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


# The map for a log's owner: what is written is read, and whatever is damaged is refused by name.

RECEIPT = MoveReceipt(
    job="by-hand",
    token=3,
    holder="worker",
    snapshot_index=90,
    snapshot_term=2,
    first=101,
    last=105,
    term=4,
    entries=5,
    payload_bytes=50,
    ranges_before=9,
    ranges_after=5,
    fingerprint="ab",
    seconds=0.5,
    committed_at=1000.0,
)
OLD = LiveSet.parse("1,5-6,20,90")
GOLDEN = b"""[1,1,101]
[5,6,102]
[20,20,104]
[90,90,105]
{"crc32": "%s"}
"""


def _with_lines(lines: list[str]) -> bytes:
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + b'{"crc32": "%08x"}\n' % zlib.crc32(body)


def test_the_format_is_the_documented_one() -> None:
    data = encode_moves(Moves.contiguous(RECEIPT, OLD))
    head, _, rest = data.partition(b"\n")
    assert rest == GOLDEN % f"{zlib.crc32(data[: data.rindex(b'{')]):08x}".encode()
    header = json.loads(head)
    assert (header["format"], header["version"]) == ("compaction.moves", 1)
    assert header["receipt"]["first"] == 101


def test_every_index_is_resolved_and_no_other() -> None:
    moves = decode_moves(encode_moves(Moves.contiguous(RECEIPT, OLD)), file="x")
    assert {old: moves.resolve(old) for old in OLD} == dict(zip(OLD, range(101, 106), strict=True))
    assert [index for index in range(120) if moves.resolve(index) is not None] == list(OLD)
    assert (moves.old_set, str(moves.new_set), len(moves)) == (OLD, "101-105", 5)


def test_maps_apply_one_after_the_other() -> None:
    later = replace(RECEIPT, snapshot_index=150, first=201, last=202, entries=2)
    maps = [Moves.contiguous(RECEIPT, OLD), Moves.contiguous(later, LiveSet.parse("7,102"))]
    assert [resolve(maps, index) for index in (5, 7, 6, 8)] == [201 + 1, 201, 103, 8]


def test_moves_with_gaps_between_the_copies() -> None:
    """As a running owner appends them, with other entries in between."""
    new = np.array([101, 102, 104, 110, 111], dtype=np.uint64)
    receipt = replace(RECEIPT, last=111)
    moves = Moves.of_pairs(receipt, np.fromiter(OLD, dtype=np.uint64), new)
    again = decode_moves(encode_moves(moves), file="x")
    assert [again.resolve(old) for old in OLD] == new.tolist()
    assert again.new_set.ranges == ((101, 102), (104, 104), (110, 111))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head, runs: (head, runs[:-1]), "do not hold 5 entries"),
        (lambda head, runs: (head, []), "do not hold 5 entries"),
        (lambda head, runs: (head, [*runs[:-1], "[20,20,105]"]), "not ascending"),
        (lambda head, runs: (head, [*runs[:-1], "[90,90,104]"]), "not ascending"),
        (lambda head, runs: (head, ["[1,1,0]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, ["[2,1,101]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, [f"[1,1,{2**64}]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, ["[1,1]", *runs[1:]]), "Field required|tuple"),
        (lambda head, runs: (head, ["nonsense", *runs[1:]]), "Invalid JSON"),
        (lambda head, runs: (head | {"version": 2}, runs), "version 2"),
        (lambda head, runs: (head | {"format": "other"}, runs), "'other' is not known"),
        (lambda head, runs: ({"format": "compaction.moves"}, runs), "Field required"),
        (lambda head, runs: (_receipt(head, snapshot_index=89), runs), "below snapshot 89"),
        (lambda head, runs: (_receipt(head, snapshot_index=101), runs), "below snapshot 101"),
        (lambda head, runs: (_receipt(head, first=100), runs), "begin at 100"),
        (lambda head, runs: (_receipt(head, last=106), runs), "end at 106"),
        (lambda head, runs: (_receipt(head, output="../../etc/passwd"), runs), "not the name of a segment"),
        (lambda head, runs: (_receipt(head, token=0), runs), "token or a time"),
        (lambda head, runs: (_receipt(head, committed_at=1e30), runs), "token or a time"),
    ],
)
def test_what_no_commit_can_have_written_is_refused(change: Any, says: str) -> None:
    head, *runs = encode_moves(Moves.contiguous(RECEIPT, OLD)).decode().splitlines()[:-1]
    header, lines = change(json.loads(head), runs)
    with pytest.raises(CorruptMovesError, match=says):
        decode_moves(_with_lines([json.dumps(header), *lines]), file="x.moves")


def _receipt(head: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return head | {"receipt": head["receipt"] | fields}


@given(st.data())
def test_any_change_of_the_bytes_is_noticed(data: st.DataObject) -> None:
    good = encode_moves(Moves.contiguous(RECEIPT, OLD))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(st.sampled_from([good[:at], good[:at] + bytes((good[at] ^ 0x20,)) + good[at + 1 :]]))
    with pytest.raises(CorruptMovesError):
        decode_moves(bad, file="x.moves")


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_named_error(data: bytes) -> None:
    with pytest.raises(CorruptMovesError, match=r"x\.moves"):
        decode_moves(data, file="x.moves")


@given(st.sets(st.integers(0, 2**40), min_size=1, max_size=40), st.integers(2**40 + 1, 2**63))
def test_round_trip(olds: set[int], first: int) -> None:
    old = LiveSet.from_indexes(olds)
    last = first + len(old) - 1
    receipt = replace(RECEIPT, snapshot_index=2**40, first=first, last=last, entries=len(old))
    moves = decode_moves(encode_moves(Moves.contiguous(receipt, old)), file="x")
    assert moves.receipt == receipt
    assert moves.old_set == old
    assert [moves.resolve(index) for index in old] == list(range(first, last + 1))


def test_files_are_found_in_the_order_they_were_made(tmp_path: Path) -> None:
    for first in (101, 20_000, 3_000):
        receipt = replace(RECEIPT, first=first, last=first + 4)
        (tmp_path / moves_name(first)).write_bytes(encode_moves(Moves.contiguous(receipt, OLD)))
    (tmp_path / "notes.moves").write_text("not ours")
    assert [moves.receipt.first for moves in read_moves(tmp_path)] == [101, 3_000, 20_000]
    assert (parse_moves("notes.moves"), parse_moves(moves_name(7))) == (None, 7)


def test_a_map_under_a_foreign_name_or_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / moves_name(102)
    path.write_bytes(encode_moves(Moves.contiguous(RECEIPT, OLD)))
    with pytest.raises(CorruptMovesError, match="from index 101 on"):
        load_moves(path)
    link = tmp_path / moves_name(101)
    link.symlink_to(path)
    with pytest.raises(Exception, match=link.name):
        load_moves(link)
    link.unlink()
    link.mkdir()
    with pytest.raises(CorruptMovesError, match="not a regular file"):
        load_moves(link)
