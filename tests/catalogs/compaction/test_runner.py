"""Runs of the reference's compaction, each as a round here: three participants, 25 partitions, catalogs c1, c2, c3."""

from __future__ import annotations

import random

import pytest

from compaction.api.catalog.reasons import UNDEFINED, Outcome, Reason
from compaction.catalogs.commands.schema_commands import (
    CreateIndex,
    CreateSchema,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from compaction.catalogs.commands.table_commands import AddColumns, DropTable
from compaction.catalogs.commands.zone_commands import CreateZone
from compaction.catalogs.compaction.deciding import Compaction, Cut, Propagate, compacting, propagating
from compaction.catalogs.compaction.round import Topology, Unanswered
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MINIMUM, hybrid, later
from compaction.catalogs.participants.reports import Cause, IndexBuild, PartitionReport, Rebalance, Role
from support.catalogs.rounds import (
    NAMES,
    NOW,
    Story,
    all_on,
    column,
    cut_to,
    decided,
    partitions,
    report,
    round_of,
    stopped,
    table,
)


def told() -> tuple[Story, Catalog, Catalog, Catalog]:
    """Version 1 is the beginning, 2 a table, 3 a column; c1, c2, c3 are 4, 5, 6."""
    story = Story()
    story.run(table("T", "V"))
    story.run(AddColumns("PUBLIC", "T", (column("W"),)))
    c1, c2, c3 = (story.run(AddColumns("PUBLIC", "T", (column(name),))) for name in ("X", "Y", "Z"))
    assert [item.version for item in (c1, c2, c3)] == [4, 5, 6]
    return story, c1, c2, c3


def times(one: Catalog, two: Catalog, three: Catalog) -> dict[str, int]:
    return {"node1": one.activation_time, "node2": two.activation_time, "node3": three.activation_time}


def test_the_smallest_time_of_all_decides() -> None:
    """node3 -> c1.time, node2 -> c2.time, node1 -> c3.time: earliest = c1 - 1; the same again changes nothing."""
    story, c1, c2, c3 = told()
    found = decided(story, times(c3, c2, c1))
    assert cut_to(found) == c1.version - 1 == 3
    assert isinstance(found.step, Cut)
    assert found.step.versions == 2
    assert found.pin is not None
    assert (found.pin.time, found.pin.participant) == (c1.activation_time, "node3")
    story.cut(3)
    again = decided(story, times(c3, c2, c1))
    assert stopped(again, Reason.LOW_WATERMARK).outcome is Outcome.SKIPPED


def test_times_at_the_earliest_version_change_nothing() -> None:
    """times = earliest.time: no error, no change; likewise all nodes at earliest.time - 1."""
    story, *_ = told()
    story.cut(3)
    first = story.versions[0].activation_time
    for time in (first, first - 1):
        stopped(decided(story, dict.fromkeys(NAMES, time)), Reason.LOW_WATERMARK)


def test_partitions_tables_and_participants_beyond_what_is_needed_are_ignored() -> None:
    """Extra partitions on node2 (26..35); an unknown table (id + 10,000,000); a fourth node without assignments."""
    story, c1, c2, c3 = told()
    held = partitions(story.latest, NOW)
    id = held[0].table_id
    extra = [PartitionReport(id, item, Role.REPLICA, NOW) for item in range(26, 36)]
    unknown = [PartitionReport(id + 10_000_000, 0, Role.REPLICA, NOW)]
    reports = [
        report("node1", c3.activation_time, held),
        report("node2", c2.activation_time, [*held, *extra]),
        report("node3", c1.activation_time, [*held, *unknown]),
        report("node4", c3.activation_time),
    ]
    topology = Topology(frozenset((*NAMES, "node4")), assignments=all_on(story.latest))
    assert cut_to(compacting(round_of(reports, topology=topology), story.history, NOW)) == 3


@pytest.mark.parametrize("name", NAMES)
def test_one_participant_at_the_minimum_keeps_everything(name: str) -> None:
    """A peer answers time 1: nothing; local time 1 likewise. What is to be propagated is sent all the same."""
    story, _, _, c3 = told()
    wanted = dict.fromkeys(NAMES, c3.activation_time) | {name: MINIMUM}
    found = stopped(decided(story, wanted), Reason.LOW_WATERMARK)
    assert found.participant == name
    reports = [report(item, time, partitions(story.latest, NOW)) for item, time in wanted.items()]
    assert isinstance(propagating(round_of(reports)), Propagate)


def test_an_index_under_construction_keeps_the_history() -> None:
    """StartBuilding and time going on: earliest unchanged. MakeAvailable: cut, without one more version."""
    story, *_ = told()
    story.run(CreateIndex("PUBLIC", "I", "T", ("V",)))
    index = story.world.index("I")
    assert index is not None
    story.run(StartBuildingIndex(index.id))
    story.cut(story.latest.version - 2)
    story.run(CreateSchema("LATER"))
    every = dict.fromkeys(NAMES, NOW)
    found = stopped(decided(story, every), Reason.INDEX_CONSTRUCTION)
    assert found.outcome is Outcome.ABORTED
    assert (found.subject, f"table {index.table_id}" in found.message) == (f"index {index.id}", True)
    available = story.run(MakeIndexAvailable(index.id))
    story.run(CreateSchema("DUMMY"))
    assert cut_to(decided(story, every)) == story.latest.version - 1 == available.version


def test_an_index_that_became_available_with_the_last_version_needs_no_further_one() -> None:
    """The reference aborts here until one more change: the candidate still has the index as building."""
    story, *_ = told()
    story.run(CreateIndex("PUBLIC", "I", "T", ("V",)))
    index = story.world.index("I")
    assert index is not None
    building = story.run(StartBuildingIndex(index.id))
    available = story.run(MakeIndexAvailable(index.id))
    every = dict.fromkeys(NAMES, NOW)
    assert cut_to(decided(story, every)) == building.version
    # As long as the available version is not the one that is needed, the index may still be built.
    before = dict.fromkeys(NAMES, available.activation_time - 1)
    stopped(decided(story, before), Reason.INDEX_CONSTRUCTION)


def test_a_participant_that_builds_keeps_the_history_whatever_the_status_says() -> None:
    story, *_ = told()
    story.run(CreateIndex("PUBLIC", "I", "T", ("V",)))
    index = story.world.index("I")
    assert index is not None
    for command in (StartBuildingIndex(index.id), MakeIndexAvailable(index.id), CreateSchema("LATER")):
        story.run(command)
    held = partitions(story.latest, NOW)
    build = IndexBuild(index.id, hybrid(77))
    reports = [report(name, NOW, held, builds=(build,) if name != "node1" else ()) for name in NAMES]
    topology = Topology(frozenset(NAMES), assignments=all_on(story.latest))
    found = stopped(compacting(round_of(reports, topology=topology), story.history, NOW), Reason.INDEX_CONSTRUCTION)
    assert (found.participant, found.subject, found.since) == ("node2", f"index {index.id}", hybrid(77))
    # An index that came after the version to cut to has all its versions.
    early = dict.fromkeys(NAMES, story.versions[4].activation_time)
    assert cut_to(decided(story, early)) == 4


@pytest.mark.parametrize("missing", [0, 24, *random.Random(0).sample(range(1, 24), 3)])
def test_a_missing_partition_keeps_the_history_until_it_is_back(missing: int) -> None:
    """One random partition (0..24) is missing on node2: nothing; restored: earliest = c1 - 1."""
    story, c1, c2, c3 = told()
    id = story.world.table("T").id
    topology = Topology(frozenset(NAMES), assignments=all_on(story.latest))

    def run(without: list[tuple[int, int]]) -> Compaction:
        reports = [
            report(name, time, partitions(story.latest, NOW, without=without if name == "node2" else ()))
            for name, time in times(c3, c2, c1).items()
        ]
        return compacting(round_of(reports, topology=topology), story.history, NOW)

    found = stopped(run([(id, missing)]), Reason.MISSING_PARTITION)
    assert (found.participant, found.subject) == ("node2", f"table {id} partition {missing}")
    assert f"partition {missing} of table {id} (T) in zone {story.zone().id} (Default)" in found.message
    stopped(run([(id, item) for item in range(25)]), Reason.MISSING_PARTITION)
    assert cut_to(run([])) == c1.version - 1


def test_an_assigned_participant_that_was_not_found_is_named() -> None:
    """node3 is assigned and not in the topology: earliest stays; in the topology from the start: compaction."""
    story, _, _, c3 = told()
    two = dict.fromkeys(NAMES[:2], c3.activation_time)
    found = stopped(decided(story, two), Reason.MISSING_PARTICIPANT)
    assert found.participant == "node3"
    assert cut_to(decided(story, dict.fromkeys(NAMES, c3.activation_time))) == 5


def test_an_assigned_participant_that_joins_meanwhile_is_missing_still() -> None:
    """node3 joins while requests are in flight: it was not asked, and nothing is cut in this round."""
    story, _, _, c3 = told()
    reports = [report(name, c3.activation_time, partitions(story.latest, NOW)) for name in NAMES[:2]]
    topology = Topology(frozenset(NAMES[:2]), frozenset(NAMES), 1, all_on(story.latest))
    round = round_of(reports, topology=topology)
    assert stopped(compacting(round, story.history, NOW), Reason.MISSING_PARTICIPANT).participant == "node3"
    assert isinstance(propagating(round), Propagate), "a participant that does not run has no transactions"


@pytest.mark.parametrize("reason", [Reason.NO_ANSWER, Reason.ANSWER_LATE, Reason.ANSWER_REFUSED])
def test_a_participant_without_an_answer_ends_both_processes(reason: Reason) -> None:
    """A peer throws: the run fails with its exception, and nothing is propagated."""
    story, _, _, c3 = told()
    reports = [report(name, c3.activation_time, partitions(story.latest, NOW)) for name in NAMES[:2]]
    round = round_of(reports, unanswered=(Unanswered("node3", reason, "connection refused"),))
    found = stopped(compacting(round, story.history, NOW), reason)
    assert (found.participant, found.outcome) == ("node3", Outcome.ABORTED)
    assert "node3: connection refused" in found.message
    assert propagating(round) == found


def test_a_partition_without_an_assignment_is_named() -> None:
    """25 assignments that are null: IllegalStateException."""
    story, _, _, c3 = told()
    zone = story.zone()
    reports = [report(name, c3.activation_time, partitions(story.latest, NOW)) for name in NAMES]
    for assignments in ({zone.id: (None,) * 25}, {zone.id: ()}):
        topology = Topology(frozenset(NAMES), assignments=assignments)
        found = compacting(round_of(reports, topology=topology), story.history, NOW)
        assert f"zone {zone.id}" in stopped(found, Reason.MISSING_ASSIGNMENT).message


def test_a_zone_of_the_topology_that_does_not_exist_is_named() -> None:
    """Its partitions would be counted, not expected where they must be: nothing is cut by less than was declared."""
    story, _, _, c3 = told()
    reports = [report(name, c3.activation_time, partitions(story.latest, NOW)) for name in NAMES]
    topology = Topology(frozenset(NAMES), assignments=all_on(story.latest), unknown_zones=("Defualt", "Other"))
    found = stopped(compacting(round_of(reports, topology=topology), story.history, NOW), Reason.MISSING_ZONE)
    assert (found.subject, found.outcome) == ("zone Defualt", Outcome.ABORTED)
    assert "correct the name in topology.assignments, or take the entry out" in found.message


def test_without_assignments_a_partition_must_be_on_as_many_participants_as_the_zone_has_replicas() -> None:
    story = Story()
    story.run(CreateZone("Z", ("default",), partitions=4, replicas=2))
    story.run(table("T", "V", zone="Z"))
    for name in ("A", "B"):
        story.run(CreateSchema(name))
    id = story.world.table("T").id
    held = partitions(story.latest, NOW)
    reports = [report(name, NOW, held) for name in NAMES[:2]] + [report("node3", NOW)]
    assert cut_to(compacting(round_of(reports), story.history, NOW)) == story.latest.version - 1
    reports[1] = report("node2", NOW, partitions(story.latest, NOW, without=[(id, 3)]))
    found = stopped(compacting(round_of(reports), story.history, NOW), Reason.MISSING_PARTITION)
    assert f"partition 3 of table {id} (T)" in found.message
    assert "1 participants, 2 replicas are expected" in found.message
    one = round_of([report("node1", NOW, held)])
    assert cut_to(compacting(one, story.history, NOW)) == story.latest.version - 1, "one participant cannot have two"


def test_a_rebalance_keeps_what_it_needs() -> None:
    """The rebalance provider returns 1: earliest stays; returns now: compaction."""
    story, *_ = told()
    held = partitions(story.latest, NOW)
    topology = Topology(frozenset(NAMES), assignments=all_on(story.latest))
    for minimum, expected in ((MINIMUM, None), (NOW, story.latest.version - 1)):
        move = Rebalance(7, minimum, hybrid(5))
        reports = [report(name, NOW, held, moves=(move,) if name == "node2" else ()) for name in NAMES]
        found = compacting(round_of(reports, topology=topology), story.history, NOW)
        if expected is None:
            assert stopped(found, Reason.REBALANCE).message.startswith("participant node2: zone 7 is rebalanced")
            assert found.pin is not None
            assert found.pin.since == hybrid(5)
        else:
            assert cut_to(found) == expected


def test_a_deleted_table_keeps_the_history_while_readers_at_the_watermark_see_it() -> None:
    """Its partitions are not required; it must not be readable at the low watermark."""
    story, *_ = told()
    id = story.world.table("T").id
    dropped = story.run(DropTable("PUBLIC", "T"))
    for name in ("A", "B"):
        story.run(CreateSchema(name))
    reports = [report(name, dropped.activation_time, low_watermark=NOW) for name in NAMES]
    for watermark, reason in ((dropped.activation_time - 1, Reason.DELETED_TABLE_READABLE), (NOW, None)):
        round = round_of(reports, watermark=NOW)
        attempt = compacting(round, story.history, NOW)
        if reason is None:
            assert cut_to(attempt) == dropped.version - 1
        else:
            early = round_of([report(name, NOW) for name in NAMES], watermark=watermark)
            found = stopped(compacting(early, story.history, NOW), reason)
            assert found.subject == f"table {id}"


def test_a_deleted_table_keeps_the_history_while_a_participant_behind_sees_it() -> None:
    """The coordinator's watermark, and those of the others, have passed the deletion."""
    story, *_ = told()
    id = story.world.table("T").id
    dropped = story.run(DropTable("PUBLIC", "T"))
    for name in ("A", "B"):
        story.run(CreateSchema(name))
    behind = dropped.activation_time - 1
    reports = [report(name, NOW) for name in NAMES[:2]] + [report("node3", behind)]
    found = stopped(compacting(round_of(reports), story.history, NOW), Reason.DELETED_TABLE_READABLE)
    assert (found.participant, found.subject) == ("node3", f"table {id}")
    assert "at the low watermark of participant node3" in found.message


def test_nothing_is_left_to_cut() -> None:
    story, *_ = told()
    story.cut(5)
    found = decided(story, dict.fromkeys(NAMES, NOW))
    assert stopped(found, Reason.NOTHING_TO_COMPACT).outcome is Outcome.SKIPPED
    assert found.pin is not None


def test_a_dry_run_says_what_it_would_cut() -> None:
    story, *_ = told()
    reports = [report(name, NOW, partitions(story.latest, NOW)) for name in NAMES]
    found = stopped(compacting(round_of(reports, dry_run=True), story.history, NOW), Reason.DRY_RUN)
    assert "versions 1 to 4 would be cut" in found.message


def test_a_transaction_is_named_before_a_replay_at_the_same_time() -> None:
    """The global minimum of read-write transactions is what partitions publish: who holds it is who a user can end."""
    story, c1, *_ = told()
    held = partitions(story.latest, c1.activation_time)
    story.cut(3)
    begun = later(c1.activation_time, 3)
    reports = [report(name, c1.activation_time, held, cause=Cause.PARTITION, low_watermark=NOW) for name in NAMES]
    found = compacting(round_of(reports), story.history, NOW)
    assert stopped(found, Reason.REPLAY).message.startswith("participant node1: ")
    reports[2] = report(
        "node3", c1.activation_time, held, cause=Cause.PARTITION, low_watermark=NOW,
        transactions=c1.activation_time, oldest_transaction=begun,
    )  # fmt: skip
    found = compacting(round_of(reports), story.history, NOW)
    assert stopped(found, Reason.TRANSACTION).participant == "node3"
    assert found.pin is not None
    assert (found.pin.since, found.pin.subject) == (begun, f"transaction {begun}")


def test_the_minimum_to_propagate_is_the_smallest_and_never_past_what_may_begin() -> None:
    """c1, then c2, then c3 time, then between the clocks; a participant that joins begins after the horizon."""
    _, c1, c2, c3 = told()
    for oldest in (c1, c2, c3):
        reports = [report(name, NOW, transactions=NOW) for name in NAMES]
        reports[1] = report(
            "node2", NOW, transactions=oldest.activation_time, oldest_transaction=oldest.activation_time
        )
        assert propagating(round_of(reports)) == Propagate(oldest.activation_time)
    idle = round_of([report(name, NOW, transactions=NOW) for name in NAMES])
    assert propagating(idle) == Propagate(later(NOW, -500))


def test_a_participant_that_is_not_ready_stops_the_cut_and_not_the_propagation() -> None:
    """One freshly started participant blocks the cut until it has a watermark and every partition a minimum."""
    story, _, _, c3 = told()
    held = partitions(story.latest, NOW)
    ready = [report(name, c3.activation_time, held) for name in NAMES[:2]]
    for third, reason in (
        (report("node3", MINIMUM, cause=Cause.NOT_READY, low_watermark=UNDEFINED), Reason.NO_WATERMARK),
        (report("node3", MINIMUM, partitions(story.latest, UNDEFINED), low_watermark=NOW), Reason.UNDEFINED_PARTITION),
        (report("node3", MINIMUM, cause=Cause.NOT_READY, low_watermark=NOW), Reason.NOT_READY),
    ):
        round = round_of([*ready, third])
        assert stopped(compacting(round, story.history, NOW), reason).participant == "node3"
        assert isinstance(propagating(round), Propagate)
