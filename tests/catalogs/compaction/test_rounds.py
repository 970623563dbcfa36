"""Rounds of a catalog: triggers, the two processes ending apart, what the status says of each."""

from __future__ import annotations

import pytest

from compaction.api.catalog.catalog_spec import PartitionAssignment, TopologySpec
from compaction.api.catalog.reasons import Finding, Outcome, Reason, Stage, Trigger
from compaction.catalogs.commands.zone_commands import AlterZone, CreateZone, DropZone, RenameZone
from compaction.catalogs.compaction.observations import (
    Ask,
    Broken,
    CatalogMemory,
    CatalogSnapshot,
    Delivered,
    LogRead,
    RoundWork,
    Saved,
    SaveSnapshot,
    SendMinimum,
)
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.compaction.round import Unanswered, topology_of, with_assignments
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import START as NO_VERSIONS
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reports import Cause
from compaction.core.reconcile.observations import Moment
from support.catalogs.rounds import Story, report
from support.cluster.catalog_coordinator import HISTORY, START, CatalogCoordinator, kinds


def test_a_new_term_begins_a_round_at_once() -> None:
    """Becoming the coordinator triggers; the token is larger than the number of terms."""
    one = CatalogCoordinator()
    decision = one.run()
    assert kinds(decision) == ["Ask"]
    assert one.memory.processes.trigger is Trigger.NEW_TERM
    assert one.ready == ("Unknown", "Starting")
    assert one.present == {"Reconciling"}
    assert (one.status.coordinator, one.least) == ("operator-0", 4)
    assert kinds(one.run()) == [], "a round that runs is not begun again"


def test_a_round_cuts_and_propagates() -> None:
    one = CatalogCoordinator()
    one.run()
    decision = one.run(one.heard(one.idle()))
    assert sorted(kinds(decision)) == ["ReadLog", "SendMinimum"]
    decision = one.run(LogRead(HISTORY, one.now))
    (save,) = decision.tasks
    assert isinstance(save, SaveSnapshot)
    assert (save.candidate.version, save.token, save.earliest) == (5, 4, 1)
    one.run(Saved(SnapshotOutcome.SAVED, 5, 700))
    assert one.status.compaction is not None
    assert one.status.compaction.outcome is Outcome.SUCCEEDED
    assert one.status.propagation is None, "it has not ended yet"
    assert one.status.round is not None
    assert one.status.round.stage is Stage.ACTING
    assert (one.status.versions_cut, one.status.bytes_cut, one.status.earliest_version) == (4, 700, 5)
    decision = one.run(Delivered(one.now))
    assert one.status.propagation is not None
    assert one.status.propagation.reason == Reason.PROPAGATED
    assert one.status.round.stage is Stage.IDLE
    assert one.ready == ("True", "Compacted")
    assert one.events == ["Compacted"]
    assert decision.requeue_after == pytest.approx(60.0)
    assert one.status.next_run_time is not None


def test_propagation_goes_on_when_the_cut_is_refused() -> None:
    """Both sub-processes fail: each has its own outcome, and the failure of one is not the other's."""
    one = CatalogCoordinator()
    one.run()
    one.run(one.heard(one.idle()))
    one.run(LogRead(HISTORY, one.now))
    one.run(Saved(SnapshotOutcome.FENCED, 5))
    assert one.status.compaction is not None
    assert (one.status.compaction.outcome, one.status.compaction.reason) == (Outcome.FAILED, "Fenced")
    one.run(Delivered(one.now, (("a", "connection refused"),)))
    assert one.status.propagation is not None
    assert one.status.propagation.reason == "NotDelivered"
    assert "participant a did not take the minimum: connection refused" in one.status.propagation.message
    assert one.status.propagated_minimum is None
    assert one.ready == ("Unknown", "Fenced")
    assert one.status.versions_cut == 0


def test_a_log_that_does_not_answer_does_not_stop_the_propagation() -> None:
    one = CatalogCoordinator()
    one.run()
    one.run(one.heard(one.idle()))
    one.run(Broken(RoundWork.READ, Reason.LOG_UNAVAILABLE, "etcd does not answer"))
    one.run(Delivered(one.now))
    assert one.status.compaction is not None
    assert one.status.compaction.reason == "LogUnavailable"
    assert one.status.propagated_minimum is not None
    assert one.status.propagated_minimum.value == one.now


def test_a_log_that_has_lost_versions_is_no_new_catalog() -> None:
    """A process that starts takes an empty prefix for a new log; the status knows what was there. Another prefix is
    another log.
    """
    one = CatalogCoordinator()
    one.run()
    one.whole_round()
    assert one.status.latest_version == 6
    one.seconds += 61
    one.run()
    decision = one.run(one.heard(one.idle()))
    assert "ReadLog" in kinds(decision)
    one.run(LogRead(NO_VERSIONS, one.now), Delivered(1))
    assert one.ready[1] == "LogCorrupt"
    assert one.status.compaction is not None
    assert "ends at version 0, and it had version 6: its keys were deleted" in one.status.compaction.message
    assert one.status.latest_version == 6
    for spec, reason in (
        ({"interval": "2m"}, "LogCorrupt"),
        ({"catalog": {"endpoints": ["http://127.0.0.1:2379"], "prefix": "/other"}}, "NothingToCompact"),
    ):
        one.spec, one.generation = spec, one.generation + 1
        one.seconds += 200
        asked = one.run().tasks
        assert [task.known for task in asked if isinstance(task, Ask)] == [reason == "LogCorrupt"]
        one.run(one.heard(one.idle()))
        one.run(LogRead(NO_VERSIONS, one.now), Delivered(1))
        assert one.status.compaction.reason == reason


def test_a_participant_without_an_answer_is_named_and_its_age_grows() -> None:
    """Nothing is cut, nothing propagated; after a second round of it a user has to act."""
    one = CatalogCoordinator()
    one.run()
    silent = (Unanswered("b", Reason.NO_ANSWER, "connection refused"),)
    decision = one.run(one.heard(one.idle(), unanswered=silent))
    assert kinds(decision) == ["ReadLog"], "the status says how long the history is all the same"
    one.run(LogRead(HISTORY, one.now))
    assert one.status.compaction is not None
    assert one.status.propagation is not None
    assert one.status.compaction.participant == one.status.propagation.participant == "b"
    assert one.status.compaction.outcome is Outcome.ABORTED
    assert (one.status.earliest_version, one.status.latest_version) == (1, 6)
    assert one.status.required_time is None
    assert [row.reason for row in one.status.participants] == ["NoAnswer", "Answered"]
    assert (one.ready, one.present) == (("Unknown", "NoAnswer"), {"Reconciling"})
    since = one.status.compaction.since
    one.seconds += 61
    assert kinds(one.run()) == ["Ask"]
    one.run(one.heard(one.idle(), unanswered=silent))
    one.run(LogRead(HISTORY, one.now))
    assert one.status.compaction.since == since
    assert (one.ready, one.present) == (("False", "NoAnswer"), {"Stalled"})
    assert one.events == ["NoAnswer"]
    one.seconds += 61
    one.run()
    one.whole_round()
    assert one.ready == ("True", "Compacted")
    assert one.events == ["NoAnswer", "Recovered", "Compacted"]


def test_who_pins_the_history_since_when() -> None:
    one = CatalogCoordinator()
    one.run()
    begun = hybrid(int(START * 1000) - 9_000_000)
    old = HISTORY.catalog(2).activation_time
    pinned = report("b", old, cause=Cause.PARTITION, transactions=old, oldest_transaction=begun, clock=one.now)
    one.run(one.heard(one.idle(), pinned))
    one.run(LogRead(HISTORY, one.now), Delivered(old))
    required = one.status.required_time
    assert required is not None
    assert (required.participant, required.reason, required.value) == ("b", "Transaction", old)
    assert required.since is not None
    assert required.since.timestamp() == pytest.approx(START - 9_000, abs=1)
    assert one.ready == ("True", "Transaction")
    assert one.status.propagated_minimum is not None
    assert one.status.debt_versions == 4


def test_a_trigger_during_a_round_begins_the_next_one() -> None:
    one = CatalogCoordinator()
    one.run()
    one.seconds += 301
    assert kinds(one.run()) == [], "the watermark has moved; the round still runs"
    decision = one.whole_round()
    assert kinds(decision) == ["Ask"]
    assert one.memory.processes.trigger is Trigger.WATERMARK
    assert one.status.round is not None


def test_the_token_of_a_round_is_what_the_log_gave() -> None:
    """The log knows larger ones when Lease and status are lost: of a cluster that was restored."""
    one = CatalogCoordinator(transitions=0)
    one.run()
    decision = one.run(one.heard(one.idle(), token=90))
    (send,) = (task for task in decision.tasks if isinstance(task, SendMinimum))
    decision = one.run(LogRead(HISTORY, one.now))
    (save,) = (task for task in decision.tasks if isinstance(task, SaveSnapshot))
    assert (send.token, save.token) == (90, 90)
    one.run(Saved(SnapshotOutcome.SAVED, 5, 700), Delivered(send.minimum))
    assert one.status.fencing_token == 90
    one.seconds += 61
    one.run()
    assert one.least == 91, "the next round begins above it"


def test_without_a_token_minimums_are_propagated_and_nothing_is_cut() -> None:
    one = CatalogCoordinator()
    one.run()
    refused = Finding(Reason.LOG_UNAVAILABLE, "etcd: no endpoint answered")
    decision = one.run(one.heard(one.idle(), unclaimed=refused))
    assert kinds(decision) == ["ReadLog", "SendMinimum"]
    assert kinds(one.run(LogRead(HISTORY, one.now), Delivered(1))) == []
    assert one.status.compaction is not None
    assert (one.status.compaction.reason, one.status.compaction.message) == (refused.reason, refused.message)
    assert one.status.propagation is not None
    assert one.status.propagation.outcome is Outcome.SUCCEEDED


def test_a_fenced_round_says_what_to_do_and_the_next_claims_again() -> None:
    one = CatalogCoordinator()
    one.run()
    one.run(one.heard(one.idle()))
    one.run(LogRead(HISTORY, one.now))
    one.run(Saved(SnapshotOutcome.FENCED, 5), Delivered(1))
    assert one.status.compaction is not None
    assert one.status.compaction.reason == Reason.FENCED
    assert "delete its CatalogCompaction" in one.status.compaction.message
    one.seconds += 61
    assert kinds(one.run()) == ["Ask"]
    assert one.least > one.status.fencing_token


def test_the_watermark_only_grows_and_survives_the_coordinator() -> None:
    one = CatalogCoordinator()
    one.run()
    one.whole_round()
    assert one.status.low_watermark is not None
    first = one.status.low_watermark.value
    assert first == hybrid(int(START * 1000) - 600_500)
    other = CatalogCoordinator(status=one.status, identity="operator-1", transitions=4, seconds=-3600)
    other.run()
    assert other.memory.watermark == first
    other.whole_round()
    assert other.status.low_watermark is not None
    assert other.status.low_watermark.value == first
    assert other.status.fencing_token > one.status.fencing_token


def test_the_interval_begins_a_round_after_the_end_of_the_last() -> None:
    one = CatalogCoordinator(spec={"interval": "30s"})
    one.run()
    one.seconds += 20
    decision = one.whole_round()
    assert decision.requeue_after == pytest.approx(30.0)
    one.seconds += 29
    assert kinds(one.run()) == []
    one.seconds += 1
    assert kinds(one.run()) == ["Ask"]
    assert one.memory.processes.trigger is Trigger.INTERVAL


def test_a_changed_spec_is_carried_out_at_once() -> None:
    one = CatalogCoordinator()
    one.run()
    one.whole_round()
    one.generation, one.spec = 2, {"interval": "2m"}
    assert kinds(one.run()) == ["Ask"]
    assert one.memory.processes.trigger is Trigger.SPEC_CHANGED
    assert (one.ready, one.status.observed_generation) == (("Unknown", "Starting"), 2)
    one.whole_round()
    assert one.ready[0] == "True"


def test_a_suspended_catalog_finishes_its_round_and_begins_none() -> None:
    one = CatalogCoordinator()
    one.run()
    one.spec, one.generation = {"suspend": True}, 2
    one.seconds += 301
    one.run()
    assert one.ready == ("Unknown", "Suspending")
    decision = one.whole_round()
    assert (one.ready, kinds(decision), decision.requeue_after) == (("True", "Suspended"), [], None)
    one.seconds += 10_000
    assert kinds(one.run()) == []
    one.spec, one.generation = {}, 3
    assert kinds(one.run()) == ["Ask"]


def test_what_was_remembered_before_a_suspension_begins_no_round_until_its_end() -> None:
    one = CatalogCoordinator()
    one.run()
    one.seconds += 301
    assert kinds(one.run()) == [], "the watermark has moved, and is remembered"
    one.spec, one.generation = {"suspend": True}, 2
    one.run()
    assert kinds(one.whole_round()) == []
    assert one.ready == ("True", "Suspended")
    one.spec, one.generation = {}, 3
    assert kinds(one.run()) == ["Ask"]


def test_a_dry_run_decides_and_does_nothing() -> None:
    one = CatalogCoordinator(spec={"dryRun": True})
    one.run()
    decision = one.run(one.heard(one.idle()))
    assert kinds(decision) == ["ReadLog"]
    assert kinds(one.run(LogRead(HISTORY, one.now))) == []
    assert one.status.compaction is not None
    assert one.status.propagation is not None
    assert one.status.compaction.reason == one.status.propagation.reason == "DryRun"
    assert "versions 1 to 4 would be cut" in one.status.compaction.message
    assert (one.ready, one.status.versions_cut) == (("True", "DryRun"), 0)


def test_a_missing_secret_ends_both_processes() -> None:
    one = CatalogCoordinator()
    one.run()
    one.run(Broken(RoundWork.ASK, Reason.SECRET_MISSING, "Secret etcd is not there"))
    assert one.status.compaction is not None
    assert one.status.propagation is not None
    assert one.status.compaction.reason == one.status.propagation.reason == "SecretMissing"
    assert one.memory.processes.stage is Stage.IDLE
    assert (one.ready, one.present) == (("False", "SecretMissing"), {"Stalled"}), "said at once: no round ends it"
    assert one.events == ["SecretMissing"]


@pytest.mark.parametrize("first", ["propagation", "compaction"])
def test_half_a_round_repeats_nothing_of_the_last_one(first: str) -> None:
    """etcd answers again; of the process that still runs only the end before is known."""
    one = CatalogCoordinator()
    one.run()
    one.run(Broken(RoundWork.ASK, Reason.LOG_UNAVAILABLE, "etcd does not answer"))
    one.seconds += 61
    one.run()
    one.events.clear()
    one.run(one.heard(one.idle()))
    if first == "propagation":
        one.run(Delivered(one.now))
    one.run(LogRead(HISTORY, one.now))
    one.run(Saved(SnapshotOutcome.SAVED, 5, 700))
    if first == "compaction":
        assert one.events == ["Compacted"]
        one.run(Delivered(one.now))
    assert (one.ready, one.present) == (("True", "Compacted"), set())
    assert one.events == ["Compacted"]


def test_what_stands_for_one_round_does_not_last_because_the_next_one_has_begun() -> None:
    one = CatalogCoordinator()
    one.run()
    one.seconds += 301
    one.run()
    decision = one.run(Broken(RoundWork.ASK, Reason.PARTICIPANTS_UNKNOWN, "no answer of the API server"))
    assert kinds(decision) == ["Ask"]
    assert (one.ready, one.present) == (("Unknown", "ParticipantsUnknown"), {"Reconciling"})


def test_a_trigger_that_came_while_participants_were_not_found_begins_a_round() -> None:
    """The round that found none has ended; what was remembered meanwhile asks again."""
    one = CatalogCoordinator()
    one.run()
    one.seconds += 301
    assert kinds(one.run()) == [], "the watermark has moved; the round still runs"
    decision = one.run(Broken(RoundWork.ASK, Reason.PARTICIPANTS_UNKNOWN, "no answer of the API server"))
    assert kinds(decision) == ["Ask"]
    assert one.memory.processes.trigger is Trigger.WATERMARK
    assert one.status.round is not None
    assert one.status.round.trigger is Trigger.WATERMARK
    one.whole_round()
    assert one.ready == ("True", "Compacted")


def test_what_could_not_be_written_is_written_later() -> None:
    """A write that meets another version loses nothing of what was cut."""
    one = CatalogCoordinator()
    one.run()
    one.run(one.heard(one.idle()))
    one.run(LogRead(HISTORY, one.now))
    one.conflict = True
    one.run(Saved(SnapshotOutcome.SAVED, 5, 700), Delivered(one.now))
    assert one.status.versions_cut == 0
    one.conflict = False
    one.run()
    assert (one.status.versions_cut, one.ready) == (4, ("True", "Compacted"))


def test_late_results_of_a_forgotten_round_change_nothing() -> None:
    """After a restart the first round is a new one."""
    one = CatalogCoordinator()
    one.run()
    one.memory = CatalogMemory()
    late = (one.heard(one.idle()), Saved(SnapshotOutcome.SAVED, 5, 700), Delivered(one.now), LogRead(HISTORY, one.now))
    decision = one.run(*late)
    assert kinds(decision) == ["Ask"]
    assert (one.status.versions_cut, one.status.compaction) == (0, None)


def test_a_round_costs_two_writes_at_most() -> None:
    one = CatalogCoordinator()
    one.run()
    one.whole_round()
    for _ in range(5):
        before = one.writes
        one.seconds += 61
        one.run()
        assert one.writes == before, "that a round has begun is not worth a write"
        one.whole_round()
        assert one.writes <= before + 2


def test_a_deleted_catalog_is_forgotten() -> None:
    snapshot = CatalogSnapshot("ns", "orders", Moment(START, 0.0), None, "operator-0", 3)
    decision = reconcile(snapshot)
    assert (decision.forget, decision.tasks, decision.status) == (True, (), None)


# Declared assignments by zone: names are resolved in the history, ranges and entries add up.


def assigned(zone: str, *names: str, first: int = 0, last: int = 64_999) -> PartitionAssignment:
    return PartitionAssignment(zone=zone, participants=names, first_partition=first, last_partition=last)


def test_entries_of_a_zone_add_up_and_the_rest_is_unassigned() -> None:
    story = Story()
    story.run(CreateZone("Z", ("p",), partitions=4))
    zone = story.latest.zone("Z")
    assert zone is not None
    spec = TopologySpec(
        assignments=(assigned("Z", "a", last=2), assigned("Z", "b", first=1, last=1), assigned("OTHER", "c"))
    )
    found = with_assignments(topology_of(spec, frozenset({"a"})), spec, story.history)
    a, both = frozenset({"a"}), frozenset({"a", "b"})
    assert found.assignments == {zone.id: (a, both, a, None)}
    assert found.unknown_zones == ("OTHER",)


def test_a_zone_that_was_dropped_is_unknown_when_no_version_has_it() -> None:
    story = Story()
    story.run(CreateZone("Z", ("p",), partitions=4))
    story.run(DropZone("Z"))
    spec = TopologySpec(assignments=(assigned("Z", "a"), assigned("Z", "b", first=2)))
    asked = topology_of(spec, frozenset({"a"}))
    assert with_assignments(asked, spec, story.history).unknown_zones == ()
    story.cut(story.latest.version)
    assert with_assignments(asked, spec, story.history).unknown_zones == ("Z",)


def test_a_zone_keeps_its_assignments_over_a_rename() -> None:
    story = Story()
    story.run(CreateZone("OLD", ("p",), partitions=2))
    story.run(RenameZone("OLD", "NEW"))
    zone = story.latest.zone("NEW")
    assert zone is not None
    for name in ("OLD", "NEW"):
        spec = TopologySpec(assignments=(assigned(name, "a"),))
        found = with_assignments(topology_of(spec, frozenset()), spec, story.history)
        assert found.assignments == {zone.id: (frozenset({"a"}),) * 2}
    story.run(AlterZone("NEW", replicas=2))
    spec = TopologySpec(participants=("a", "b"), min_participants=2)
    found = with_assignments(topology_of(spec, frozenset({"a"})), spec, story.history)
    assert (dict(found.assignments), found.expected, found.least) == ({}, frozenset({"a", "b"}), 2)
