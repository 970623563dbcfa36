"""When an owner compacts its own log, from plain numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.system.rules import CompactionFacts, Due, DueRules, due, seconds_left
from support.stores.segment_logs import VARIED_LIMITS, varied_log

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
