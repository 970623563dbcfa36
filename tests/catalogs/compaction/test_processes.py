"""Triggers, the two processes side by side, the coordinator's watermark and token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED, Process, Processes, Stage, Trigger
from compaction.catalogs.compaction.reconcile import least_token
from compaction.catalogs.compaction.round import WatermarkRule, due_in, moved
from compaction.catalogs.model.descriptors import hybrid

RULE = WatermarkRule(update_interval=300_000, data_availability=600_000, max_skew=500)


def acting() -> Processes:
    return Processes().triggered(Trigger.NEW_TERM).answered()


@pytest.mark.parametrize("first", Process)
def test_the_processes_end_apart(first: Process) -> None:
    second = next(item for item in Process if item is not first)
    round = acting()
    assert all(round.runs(process) for process in Process)
    half = round.ended(first)
    assert (half.stage, half.runs(first), half.runs(second)) == (Stage.ACTING, False, True)
    assert half.ended(second) == Processes()


def test_a_trigger_during_a_run_is_remembered() -> None:
    """The reference drops it: what moved meanwhile would wait for the next watermark."""
    asking = Processes().triggered(Trigger.WATERMARK)
    assert (asking.stage, asking.trigger) == (Stage.ASKING, Trigger.WATERMARK)
    again = asking.triggered(Trigger.INTERVAL).triggered(Trigger.NEW_TERM).triggered(Trigger.WATERMARK)
    assert (again.stage, again.remembered) == (Stage.ASKING, Trigger.NEW_TERM)
    done = again.answered().ended(Process.COMPACTION).ended(Process.PROPAGATION)
    assert (done.stage, done.trigger, done.remembered) == (Stage.ASKING, Trigger.NEW_TERM, None)


def test_what_does_not_run_does_not_end() -> None:
    with pytest.raises(ValueError, match="does not run"):
        Processes().ended(Process.COMPACTION)
    with pytest.raises(ValueError, match="Idle"):
        Processes().answered()
    with pytest.raises(ValueError, match="does not run"):
        acting().ended(Process.COMPACTION).ended(Process.COMPACTION)


@given(st.lists(st.one_of(st.sampled_from(Trigger), st.sampled_from(Process), st.just("answered"))))
def test_every_trigger_leads_to_a_round_that_begins_after_it(steps: list[Trigger | Process | str]) -> None:
    state, owed = Processes(), 0
    for step in steps:
        before = state
        match step:
            case Trigger():
                state, owed = state.triggered(step), 1
            case Process() if state.runs(step):
                state = state.ended(step)
            case "answered" if state.stage is Stage.ASKING:
                state = state.answered()
            case _:
                continue
        if state.stage is Stage.ASKING and before.stage is not Stage.ASKING:
            owed = 0
        assert owed == (state.remembered is not None)
        assert bool(state.running) == (state.stage is Stage.ACTING)
        assert (state.trigger is None) == (state.stage is Stage.IDLE)


def test_the_watermark_stays_behind_and_only_grows() -> None:
    now = 10_000_000
    mark = moved(UNDEFINED, RULE, now)
    assert mark == hybrid(now - 600_500)
    assert moved(mark, RULE, now - 5_000_000) == mark
    assert due_in(UNDEFINED, RULE, now) == 0
    assert due_in(mark, RULE, now) == 300_000
    assert due_in(mark, RULE, now + 299_999) == 1
    assert due_in(mark, RULE, now + 400_000) == 0
    assert moved(UNDEFINED, RULE, 1_000) == 1


def test_a_later_term_has_a_larger_token() -> None:
    first = least_token(3, 0)
    assert first == 4
    assert least_token(4, 0) > first, "the status was lost"
    assert least_token(4, first) > first
    assert least_token(0, first) > first, "the Lease was deleted and counts from 0 again"
