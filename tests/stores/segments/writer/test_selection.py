"""Which entries of a rolled file reach segments: Ra's cases, and the rule against a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.memtable import Seq
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.rules import LogRow, select

NO_SNAPSHOT = LogRow()


def row(index: int, live: str) -> LogRow:
    return LogRow(index, 1, LiveSet.parse(live))


def seq(text: str) -> Seq:
    return Seq(LiveSet.parse(text).ranges)


@pytest.mark.parametrize(
    ("written", "state", "kept"),
    [
        (["1-5"], NO_SNAPSHOT, ["1-5"]),
        # Live 2 and 4 at a snapshot of 4: 3 is not written.
        (["1-5"], row(4, "2,4"), ["2,4,5"]),
        (["1-100"], row(80, "10-20,50"), ["10-20,50,81-100"]),
        (["1-10"], row(10, ""), [""]),
        (["1-10"], row(4, ""), ["5-10"]),
        (["1-10"], row(40, "2"), ["2"]),
        (["1-3,100,200-203"], row(201, "2,150,200"), ["2,200,202-203"]),
        (["1-10", "5-7"], NO_SNAPSHOT, ["1-4", "5-7"]),
        (["1-10", "5-7", "6-9"], NO_SNAPSHOT, ["1-4", "5", "6-9"]),
        (["5-10", "3-4", "5-6"], NO_SNAPSHOT, ["", "3-4", "5-6"]),
        (["1-10", "0-2"], NO_SNAPSHOT, ["", "0-2"]),
        (["1-10", "5-12"], row(8, "3,7"), ["3", "7,9-12"]),
        (["1-10", "", "5"], NO_SNAPSHOT, ["1-4", "", "5"]),
        # What is live is unknown: everything is kept.
        (["1-10"], LogRow(8, 1, None), ["1-10"]),
    ],
)
def test_each_case(written: list[str], state: LogRow, kept: list[str]) -> None:
    assert select([seq(text) for text in written], state) == [seq(text) for text in kept]


@pytest.mark.parametrize(
    ("written", "state", "stored", "kept"),
    [
        # 18 went back behind 19 and 20, which are stored, and is dead: without it they would be there again.
        (["18"], row(18, ""), 20, ["18"]),
        (["16-18"], row(18, ""), 20, ["18"]),
        (["16-18"], row(18, ""), 18, [""]),
        (["16-18"], row(18, ""), None, [""]),
        # Another entry goes back as far.
        (["16-18"], row(18, "17"), 20, ["17"]),
        (["16-19"], row(18, ""), 20, ["19"]),
        # It leaves a gap in which something is stored.
        (["16-18,22"], row(18, ""), 20, ["18,22"]),
        (["16,22"], row(18, ""), 20, ["16,22"]),
        # What is stored lies at or below the snapshot, where only live entries count.
        (["14"], row(18, "3"), 17, [""]),
        (["19-20"], row(18, ""), 25, ["19-20"]),
    ],
)
def test_what_was_overwritten_stays_so(written: list[str], state: LogRow, stored: int | None, kept: list[str]) -> None:
    assert select([seq(text) for text in written], state, stored) == [seq(text) for text in kept]


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20), min_size=1), st.integers(0, 20), st.data())
def test_segments_hold_what_the_tables_said(
    stored: set[int], table: set[int], snapshot: int, data: st.DataObject
) -> None:
    """Whatever stood in segments before: above the snapshot only what was not overwritten."""
    held = {index for index in stored if index < min(table)} | table
    live = data.draw(st.sets(st.sampled_from(sorted(held)))) & set(range(snapshot + 1))
    state = LogRow(snapshot, 1, LiveSet.from_indexes(live))
    (kept,) = select([Seq.from_indexes(table)], state, max(stored, default=None))
    after = set(stored)
    for index in kept:
        after = {item for item in after if item < index} | {index}
    assert {index for index in after if state.needs(index)} == {index for index in held if state.needs(index)}


TABLES = st.lists(st.sets(st.integers(0, 30), max_size=12), max_size=4)


@given(TABLES, st.integers(0, 30), st.sets(st.integers(0, 30)))
def test_the_rule_entry_by_entry(tables: list[set[int]], snapshot: int, live: set[int]) -> None:
    below = LiveSet.from_indexes(index for index in live if index <= snapshot)
    state = LogRow(snapshot, 1, below)
    kept = select([Seq.from_indexes(table) for table in tables], state)
    for number, table in enumerate(tables):
        later = [min(newer) for newer in tables[number + 1 :] if newer]
        assert set(kept[number]) == {
            index for index in table if all(index < first for first in later) and (index > snapshot or index in below)
        }
    assert all(index >= state.smallest_live for seq in kept for index in seq)
