"""Which writes the write-ahead log takes, and that a log whose writes get lost converges to all of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.wal.codec import Standing, WriterState, WriteVerdict, judge

GAP = WriterState(5, Standing.OUT_OF_SEQUENCE)


@pytest.mark.parametrize(
    ("writer", "index", "previous", "smallest_live", "verdict", "after"),
    [
        (None, 7, 6, 0, WriteVerdict.WRITE, WriterState(7)),
        (None, 7, None, 0, WriteVerdict.WRITE, WriterState(7)),
        (WriterState(5), 6, 5, 0, WriteVerdict.WRITE, WriterState(6)),
        (WriterState(5), 3, 2, 0, WriteVerdict.WRITE, WriterState(3)),
        (WriterState(5), 9, 5, 0, WriteVerdict.WRITE, WriterState(9)),
        (WriterState(5), 7, 6, 0, WriteVerdict.REQUEST_RESEND, GAP),
        (GAP, 8, 7, 0, WriteVerdict.REFUSE, GAP),
        (GAP, 6, 5, 0, WriteVerdict.WRITE, WriterState(6)),
        (WriterState(5), 9, 8, 9, WriteVerdict.WRITE_TRUNCATING, WriterState(9)),
        (GAP, 9, 8, 9, WriteVerdict.WRITE_TRUNCATING, WriterState(9)),
        (WriterState(5), 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (None, 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (GAP, 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (WriterState(5), 9, None, 0, WriteVerdict.WRITE, WriterState(9)),
    ],
)
def test_each_write_has_one_verdict(
    writer: WriterState | None,
    index: int,
    previous: int | None,
    smallest_live: int,
    verdict: WriteVerdict,
    after: WriterState,
) -> None:
    assert judge(writer, index=index, previous=previous, smallest_live=smallest_live) == (verdict, after)


@given(st.lists(st.booleans(), max_size=60))
def test_a_log_whose_writes_get_lost_is_asked_once_for_each_gap(arrives: list[bool]) -> None:
    """What is written never has a gap, whatever gets lost; once nothing does, everything is written."""
    state: WriterState | None = WriterState(0)
    written: list[int] = []
    requests = 0
    for index, arrived in enumerate([*arrives, True], start=1):
        queue = [index] if arrived else []
        while queue:
            one = queue.pop(0)
            before = state
            verdict, state = judge(state, index=one, previous=one - 1, smallest_live=0)
            assert state is not None
            if verdict is WriteVerdict.WRITE:
                written.append(one)
            elif verdict is WriteVerdict.REQUEST_RESEND:
                assert before is not None
                assert before.standing is Standing.IN_SEQUENCE
                requests += 1
                queue = [*range(state.last + 1, index + 1)]
            else:
                assert verdict is WriteVerdict.REFUSE
    assert written == list(range(1, len(arrives) + 2))
    following = [*arrives, True]
    assert requests == sum(not a and b for a, b in pairwise(following))
