"""Which answers count, and how a wait keeps the time since when it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.api.catalog.reasons import OUTCOMES, UNDEFINED, Finding, Outcome, Reason, standing
from compaction.catalogs.commands.schema_commands import CreateSchema
from compaction.catalogs.compaction.deciding import Cut, absent, compacting, propagating, unready
from compaction.catalogs.compaction.round import Topology, Unanswered
from compaction.catalogs.model.descriptors import MINIMUM, later
from compaction.catalogs.participants.reports import Cause, PartitionReport, Role
from support.catalogs.rounds import NAMES, NOW, Story, report, round_of, stopped, timeline
from support.catalogs.worlds import table

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
