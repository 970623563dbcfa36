"""The version to cut to, as a table: the one before the version that is active at the required time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import (
    OUTCOMES,
    UNDEFINED,
    Finding,
    Outcome,
    Process,
    Processes,
    Reason,
    Stage,
    Trigger,
    standing,
)
from compaction.catalogs.commands.schema_commands import CreateSchema
from compaction.catalogs.compaction.deciding import Cut, absent, compacting, propagating, unready
from compaction.catalogs.compaction.reconcile import least_token
from compaction.catalogs.compaction.round import (
    Round,
    Topology,
    Unanswered,
    WatermarkRule,
    due_in,
    history_of,
    is_shortest,
    moved,
    required,
    snapshot_candidate,
)
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import START, CatalogHistory
from compaction.catalogs.model.catalog import EMPTY
from compaction.catalogs.model.descriptors import MINIMUM, hybrid, later
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.participants.reports import Cause, PartitionReport, Rebalance, Report, Role
from support.catalogs.rounds import NAMES, NOW, Story, report, round_of, stopped, table, timeline

WHOLE = timeline(10, 20, 30, 40)
AFTER_2 = CatalogHistory(list(WHOLE)[1:])
AFTER_3 = CatalogHistory(list(WHOLE)[2:])


@pytest.mark.parametrize(
    ("history", "required", "candidate"),
    [
        # No snapshot yet: the one to version 1 would cut nothing.
        (WHOLE, 1, None), (WHOLE, 9, None), (WHOLE, 10, None), (WHOLE, 19, None), (WHOLE, 20, None), (WHOLE, 29, None),
        (WHOLE, 30, 2), (WHOLE, 39, 2), (WHOLE, 40, 3), (WHOLE, 10**9, 3),
        # The snapshot is version 2.
        (AFTER_2, 1, None), (AFTER_2, 19, None), (AFTER_2, 20, None), (AFTER_2, 29, None), (AFTER_2, 30, None),
        (AFTER_2, 39, None), (AFTER_2, 40, 3), (AFTER_2, 10**9, 3),
        # As short as it gets.
        (AFTER_3, 10**9, None), (START, 10**9, None),
    ],
)  # fmt: skip
def test_the_version_before_the_active_one_is_the_candidate(
    history: CatalogHistory, required: int, candidate: int | None
) -> None:
    found = snapshot_candidate(history, required)
    assert (None if found is None else found.version) == candidate


def test_a_history_knows_its_ends() -> None:
    assert (WHOLE.earliest.version, WHOLE.latest.version, is_shortest(WHOLE)) == (1, 4, False)
    assert (AFTER_3.earliest.version, AFTER_3.latest.version, is_shortest(AFTER_3)) == (3, 4, True)
    assert (START.earliest.version, START.latest.version, is_shortest(START)) == (0, 0, True)
    assert [WHOLE.find_active(at) for at in (1, 9)] == [None, None]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30, unique=True).map(sorted), st.integers(0, 1100))
def test_what_is_active_from_the_required_time_on_stays(times: list[int], required: int) -> None:
    """Never the latest, never the active version: also the version before that one is kept, as the snapshot."""
    history = timeline(*times)
    found = snapshot_candidate(history, required)
    if found is None:
        return
    active = history.find_active(required)
    assert active is not None
    assert found.version == active.version - 1 < history.latest.version
    assert found.activation_time < active.activation_time <= required
    kept = CatalogHistory(list(history)[found.version - 1 :])
    assert kept.earliest is found
    for at in range(required, 1101, 7):
        assert kept.find_active(at) is history.find_active(at)


def test_versions_come_from_the_log_and_go_on_from_a_snapshot() -> None:
    story = Story()
    for name in ("A", "B", "C"):
        story.run(CreateSchema(name))
    snapshot = story.versions[1].snapshot()
    updates = [
        LogEvent(VersionedUpdate(1, 5, ()), 100, 1),
        LogEvent(snapshot, snapshot.activation_time, 2),
        LogEvent(VersionedUpdate(3, 5, ()), snapshot.activation_time + 1, 3),
    ]
    history = history_of(updates)
    assert [item.version for item in history] == [2, 3]
    assert history.earliest.schema("A") is not None
    assert history_of(updates[:1]).earliest.version == EMPTY.version + 1


# Each thing that a participant reports holds the required time by itself, whatever it has computed from the others.

OLD = hybrid(5_000)
EARLY = later(OLD, 100)
IDLE = report("a", NOW, [PartitionReport(9, 0, Role.PRIMARY, NOW), PartitionReport(9, 1, Role.REPLICA, NOW)])
PARTITIONS = (PartitionReport(9, 0, Role.PRIMARY, NOW), PartitionReport(9, 1, Role.REPLICA, OLD))

PINNED: tuple[tuple[str, Report, Reason, str], ...] = (
    (
        "a transaction",
        replace(IDLE, transactions=OLD, oldest_transaction=EARLY),
        Reason.TRANSACTION,
        f"transaction {EARLY}",
    ),
    ("a replay", replace(IDLE, partitions=PARTITIONS), Reason.REPLAY, "partition 1 of table 9"),
    ("a rebalance", replace(IDLE, rebalances=(Rebalance(7, OLD, EARLY),)), Reason.REBALANCE, "zone 7"),
    ("readers", replace(IDLE, low_watermark=OLD), Reason.LOW_WATERMARK, ""),
    ("its own minimum", replace(IDLE, minimum=OLD, cause=Cause.PARTITION, subject="p"), Reason.REPLAY, "p"),
    ("its own watermark", replace(IDLE, minimum=OLD), Reason.LOW_WATERMARK, ""),
    ("its own rebalance", replace(IDLE, minimum=OLD, cause=Cause.REBALANCE, subject="z"), Reason.REBALANCE, "z"),
)


def beside_others(one: Report, others: Iterable[str] = ("0", "b", "c")) -> Round:
    return round_of([*(replace(IDLE, name=name) for name in others), one])


@pytest.mark.parametrize(("report", "reason", "subject"), [row[1:] for row in PINNED], ids=[row[0] for row in PINNED])
def test_each_restriction_holds_the_required_time_by_itself(report: Report, reason: Reason, subject: str) -> None:
    pin = required(beside_others(report))
    assert (pin.time, pin.reason, pin.participant, pin.subject) == (OLD, reason, "a", subject)


def test_the_watermark_of_the_coordinator_holds_it_when_no_participant_does() -> None:
    pin = required(replace(beside_others(IDLE), low_watermark=OLD))
    assert (pin.time, pin.reason, pin.participant) == (OLD, Reason.LOW_WATERMARK, "")


def test_the_earliest_of_several_decides() -> None:
    rows = [replace(row[1], name=f"p{place}") for place, row in enumerate(PINNED)]
    earliest = later(OLD, -1)
    rows[2] = replace(rows[2], rebalances=(Rebalance(8, NOW, NOW), Rebalance(7, earliest, EARLY)))
    pin = required(round_of(rows))
    assert (pin.time, pin.participant, pin.subject) == (earliest, "p2", "zone 7")


def test_since_when_is_what_the_participant_reports() -> None:
    transaction, _, rebalance = (required(beside_others(row[1])) for row in PINNED[:3])
    assert (transaction.since, rebalance.since) == (EARLY, EARLY)
    checkpointed = required(beside_others(replace(PINNED[1][1], checkpoint=EARLY)))
    assert checkpointed.since == EARLY


# Which answers count, and how a wait keeps the time since when it stands.

HOUR = 3_600_000
HISTORY = timeline(10, 20, 30, 40)


@pytest.mark.parametrize(("offset", "direction"), [(HOUR, "ahead of"), (-HOUR, "behind")])
def test_a_clock_that_is_off_is_named_and_its_answer_does_not_count(offset: int, direction: str) -> None:
    reports = [report(name, NOW) for name in NAMES[:2]] + [report("node3", NOW, clock=later(NOW, offset))]
    round = round_of(reports)
    found = stopped(compacting(round, HISTORY, NOW), Reason.CLOCK_OFF)
    assert f"node3: its clock is {HOUR} ms {direction} the coordinator's, 500 ms are allowed" in found.message
    assert propagating(round) == found


@pytest.mark.parametrize("offset", [-500, 0, 500])
def test_a_clock_may_differ_by_the_allowed_skew(offset: int) -> None:
    reports = [report(name, NOW, clock=later(NOW, offset)) for name in NAMES]
    assert compacting(round_of(reports), HISTORY, NOW).pin is not None


def test_the_time_of_a_slow_answer_is_no_skew() -> None:
    """The report was written at any moment between the question and the answer."""
    round = round_of([report("node1", NOW, clock=later(NOW, -5_000))])
    slow = replace(round, answers=(replace(round.answers[0], asked_at=later(NOW, -6_000)),))
    assert compacting(slow, HISTORY, NOW).pin is not None
    stopped(compacting(round, HISTORY, NOW), Reason.CLOCK_OFF)


def test_a_participant_that_was_asked_and_is_not_heard_of_has_no_answer() -> None:
    round = round_of([report("node1", NOW)], topology=Topology(frozenset(NAMES[:2])))
    assert stopped(compacting(round, HISTORY, NOW), Reason.NO_ANSWER).participant == "node2"


def test_two_participants_of_one_name_are_refused() -> None:
    round = round_of([report("node1", NOW), report("node1", NOW)])
    found = stopped(compacting(round, HISTORY, NOW), Reason.ANSWER_REFUSED)
    assert found.message.startswith("2 participants answer as node1")
    assert propagating(round) == found


def test_too_few_participants_keep_the_history() -> None:
    """A selector that matches nothing must not look like a catalog without users."""
    story = Story()
    round = round_of([], topology=Topology(frozenset()))
    assert "at least 1" in stopped(compacting(round, story.history, NOW), Reason.NO_PARTICIPANTS).message
    found = propagating(round)
    assert isinstance(found, Finding)
    assert found.reason is Reason.NO_PARTICIPANTS
    two = round_of([report(name, NOW) for name in NAMES[:2]], topology=Topology(frozenset(NAMES[:2]), least=3))
    few = stopped(compacting(two, HISTORY, NOW), Reason.NO_PARTICIPANTS)
    assert few.message.startswith("2 participants were found, at least 3 are expected")


def test_a_catalog_without_participants_is_cut_by_the_watermark_alone() -> None:
    """Its tables have no holders, and nothing is propagated."""
    story = Story()
    for name in ("A", "B", "C"):
        story.run(table(name))
    alone = replace(round_of([], topology=Topology(frozenset(), least=0)), low_watermark=NOW, trim=True)
    step = compacting(alone, story.history, NOW).step
    assert isinstance(step, Cut)
    assert (step.candidate.version, step.trim) == (story.latest.version - 1, True)
    found = propagating(alone)
    assert isinstance(found, Finding)
    assert (found.reason, found.outcome) == (Reason.NOTHING_TO_PROPAGATE, Outcome.SKIPPED)
    expected = replace(alone, topology=Topology(frozenset(), frozenset({"a"}), least=0))
    stopped(compacting(expected, story.history, NOW), Reason.MISSING_PARTICIPANT)


@pytest.mark.parametrize(
    ("asked_for", "old_rows", "trim"),
    [(True, (), True), (False, (), False), (True, ("node2",), False), (True, NAMES, False)],
)
def test_column_sets_go_only_when_no_participant_may_read_old_rows(
    asked_for: bool, old_rows: tuple[str, ...], trim: bool
) -> None:
    story = Story()
    for name in ("A", "B"):
        story.run(CreateSchema(name))
    reports = [replace(report(name, NOW), reads_old_rows=name in old_rows) for name in NAMES]
    round = replace(round_of(reports), trim=asked_for)
    step = compacting(round, story.history, NOW).step
    assert isinstance(step, Cut)
    assert step.trim is trim
    assert round.old_rows_read_by == (old_rows[0] if old_rows else "")


def test_the_first_participant_by_name_is_reported_and_the_others_are_counted() -> None:
    failed = tuple(Unanswered(name, Reason.NO_ANSWER, "refused") for name in ("b", "a", "c"))
    found = stopped(compacting(round_of([], unanswered=failed), HISTORY, NOW), Reason.NO_ANSWER)
    assert found.participant == "a"
    assert found.message == "participant a: refused (3 participants have no answer)"


def test_every_reason_has_one_outcome() -> None:
    assert set(OUTCOMES) == set(Reason)
    assert OUTCOMES[Reason.COMPACTED] is OUTCOMES[Reason.PROPAGATED] is Outcome.SUCCEEDED
    assert OUTCOMES[Reason.MISSING_PARTICIPANT] is Outcome.ABORTED
    assert OUTCOMES[Reason.FENCED] is Outcome.FAILED


def test_a_wait_keeps_its_beginning_while_it_is_about_the_same() -> None:
    first = standing(Finding(Reason.NO_ANSWER, "refused", "a"), None, 10)
    assert first.since == 10
    assert standing(Finding(Reason.NO_ANSWER, "timed out", "a"), first, 20) == Finding(
        Reason.NO_ANSWER, "timed out", "a", "", 10
    )
    assert standing(Finding(Reason.NO_ANSWER, "refused", "b"), first, 20).since == 20
    assert standing(Finding(Reason.ANSWER_LATE, "late", "a"), first, 20).since == 20
    assert standing(Finding(Reason.NO_ANSWER, "refused", "a", "", 5), first, 20).since == 5


@pytest.mark.parametrize("held", [0, 3])
def test_each_thing_that_is_not_known_yet_stops_the_cut_by_itself(held: int) -> None:
    """A participant that has said all the rest is not ready either: one partition of many, a watermark alone."""
    rows = [PartitionReport(9, partition, Role.REPLICA, NOW) for partition in range(held)]
    ready = report("a", NOW, rows)
    without = replace(ready, low_watermark=UNDEFINED, minimum=MINIMUM, cause=Cause.NOT_READY)
    partly = replace(ready, partitions=(*rows, PartitionReport(9, 7, Role.REPLICA, UNDEFINED)))
    starting = replace(ready, minimum=MINIMUM, cause=Cause.NOT_READY)
    for item, reason in (
        (without, Reason.NO_WATERMARK),
        (partly, Reason.UNDEFINED_PARTITION),
        (starting, Reason.NOT_READY),
        (replace(starting, subject="the first checkpoint"), Reason.NOT_READY),
    ):
        found = unready(round_of([report("b", NOW, rows), item]))
        assert found is not None
        assert (found.reason, found.participant) == (reason, "a")
    assert unready(round_of([ready])) is None


def test_an_expected_participant_that_was_not_found_is_named() -> None:
    topology = Topology(frozenset({"a", "b"}), expected=frozenset({"b", "c"}))
    found = absent(round_of([report("a", NOW), report("b", NOW)], topology=topology))
    assert found is not None
    assert (found.reason, found.participant) == (Reason.MISSING_PARTICIPANT, "c")
    there = replace(topology, expected=frozenset("ab"))
    assert absent(round_of([report("a", NOW), report("b", NOW)], topology=there)) is None


def test_without_participants_there_is_nothing_to_propagate_whatever_is_expected() -> None:
    for least, reason in ((0, Reason.NOTHING_TO_PROPAGATE), (1, Reason.NO_PARTICIPANTS)):
        found = propagating(round_of([], topology=Topology(frozenset(), least=least)))
        assert isinstance(found, Finding)
        assert found.reason is reason


# Triggers, the two processes side by side, the coordinator's watermark and token.

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
