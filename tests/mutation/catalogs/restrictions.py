"""Defects of the decision to cut a catalog: the required time, the version, and what is checked of it."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_DECISION: Final = "design/catalog-compaction.md#decision"
_REQUIRED: Final = "design/catalog-compaction.md#required-time"
_VERSION: Final = "design/catalog-compaction.md#version"
_CHECKS: Final = "design/catalog-compaction.md#checks"
_MINIMUM: Final = "catalogs/compaction/round.py"
_HISTORY: Final = "catalogs/compaction/round.py"
_CHECKING: Final = "catalogs/compaction/deciding.py"
_DECIDING: Final = "catalogs/compaction/deciding.py"
_RUNNER: Final = "catalogs/compaction/test_runner.py"
_BEFORE_ACTIVE: Final = "history.find(active.version - 1)\n"
_TEST_MINIMUM: Final = ("catalogs/compaction/test_decision.py",)
_TEST_VERSION: Final = ("catalogs/compaction/test_decision.py",)
_PARTITIONS: Final = (
    f"{_RUNNER}::test_a_missing_partition_keeps_the_history_until_it_is_back",
    f"{_RUNNER}::test_an_assigned_participant_that_was_not_found_is_named",
)
_BOTH: Final = "status in _CONSTRUCTION and _under_construction(attempt.following.indexes.get(index.id)):\n"

RESTRICTION_DEFECTS: Final = (
    Defect(
        name="catalog restrictions: an active transaction does not keep its version",
        promise=_DECISION,
        file=_MINIMUM,
        old="    yield Pin(report.transactions, Reason.TRANSACTION, report.name, subject, report.oldest_transaction)\n",
        new="",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: a replay does not keep the version it would begin with",
        promise=_DECISION,
        file=_MINIMUM,
        old="        yield Pin(first.minimum, Reason.REPLAY, report.name, place, report.checkpoint)\n",
        new="        yield Pin(report.clock, Reason.REPLAY, report.name, place, report.checkpoint)\n",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: only the first partition of a participant keeps the version of its replay",
        promise=_DECISION,
        file=_MINIMUM,
        old="        first = min(report.partitions, key=_PLACE)\n",
        new="        first = report.partitions[0]\n",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: an index build that a participant reports does not keep the history",
        promise=_CHECKS,
        file=_CHECKING,
        old="        if index.id in built_by:\n",
        new="        if index.id in built_by and index.status in _CONSTRUCTION:\n",
        killers=(f"{_RUNNER}::test_a_participant_that_builds_keeps_the_history_whatever_the_status_says",),
    ),
    Defect(
        name="catalog restrictions: an index under construction in both versions does not keep the history",
        promise=_CHECKS,
        file=_CHECKING,
        old=_BOTH,
        new="status is IndexStatus.BUILDING and not _under_construction(index):\n",
        killers=(f"{_RUNNER}::test_an_index_under_construction_keeps_the_history",),
    ),
    Defect(
        name="catalog restrictions: an index whose construction has ended keeps the history for ever",
        promise=_CHECKS,
        file=_CHECKING,
        old=_BOTH,
        new="status in _CONSTRUCTION:\n",
        killers=(f"{_RUNNER}::test_an_index_that_became_available_with_the_last_version_needs_no_further_one",),
    ),
    Defect(
        name="catalog restrictions: a rebalance does not keep what it needs",
        promise=_DECISION,
        file=_MINIMUM,
        old='        yield Pin(move.minimum, Reason.REBALANCE, report.name, f"zone {move.zone_id}", move.since)\n',
        new='        yield Pin(report.clock, Reason.REBALANCE, report.name, f"zone {move.zone_id}", move.since)\n',
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: readers of a participant are overlooked",
        promise=_REQUIRED,
        file=_MINIMUM,
        old="    yield Pin(report.low_watermark, Reason.LOW_WATERMARK, report.name)\n",
        new="",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: the minimum that a participant has computed is overlooked",
        promise=_REQUIRED,
        file=_MINIMUM,
        old="        yield Pin(report.minimum, _REASON_OF[report.cause], report.name, report.subject)\n",
        new="        pass\n",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog restrictions: the watermark of the coordinator is overlooked",
        promise=_REQUIRED,
        file=_MINIMUM,
        old="    pins = [Pin(round.low_watermark, Reason.LOW_WATERMARK)]\n",
        new="    pins: list[Pin] = []\n",
        killers=_TEST_MINIMUM,
    ),
    Defect(
        name="catalog version: the version active at the required time becomes the snapshot",
        promise=_VERSION,
        file=_HISTORY,
        old=_BEFORE_ACTIVE,
        new="history.find(active.version)\n",
        killers=_TEST_VERSION,
    ),
    Defect(
        name="catalog version: one version more than needed is kept",
        promise=_VERSION,
        file=_HISTORY,
        old=_BEFORE_ACTIVE,
        new="history.find(active.version - 2)\n",
        killers=_TEST_VERSION,
    ),
    Defect(
        name="catalog version: the latest version becomes the snapshot",
        promise=_VERSION,
        file=_HISTORY,
        old=_BEFORE_ACTIVE,
        new="history.find(active.version - (active is not history.latest))\n",
        killers=_TEST_VERSION,
    ),
    Defect(
        name="catalog version: the earliest version becomes a snapshot that cuts nothing",
        promise=_VERSION,
        file=_HISTORY,
        old="candidate.version > history.earliest.version else None",
        new="candidate.version >= history.earliest.version else None",
        killers=_TEST_VERSION,
    ),
    Defect(
        name="catalog version: a version is active one tick late",
        promise=_VERSION,
        file="catalogs/manager/history.py",
        old="bisect_right(self._catalogs, at, 0, self._end, key=_ACTIVATION)\n",
        new="bisect_right(self._catalogs, at - 1, 0, self._end, key=_ACTIVATION)\n",
        killers=_TEST_VERSION,
    ),
    Defect(
        name="catalog checks: a partition that an assigned participant does not report",
        promise=_CHECKS,
        file=_CHECKING,
        old="    for name in sorted(names - holders):\n",
        new="    for name in sorted(names - holders - round.by_name.keys()):\n",
        killers=_PARTITIONS,
    ),
    Defect(
        name="catalog checks: an assigned participant that was not found",
        promise=_CHECKS,
        file=_CHECKING,
        old="    for name in sorted(names - holders):\n",
        new="    for name in sorted((names & round.by_name.keys()) - holders):\n",
        killers=_PARTITIONS,
    ),
    Defect(
        name="catalog checks: a partition that is assigned to no participant",
        promise=_CHECKS,
        file=_CHECKING,
        old="    if names is None:\n        message",
        new="    if names is None:\n        return None\n        message",
        killers=(f"{_RUNNER}::test_a_partition_without_an_assignment_is_named",),
    ),
    Defect(
        name="catalog checks: one replica is enough without assignments",
        promise=_CHECKS,
        file=_CHECKING,
        old="    if len(holders) >= wanted:\n",
        new="    if holders:\n",
        killers=(
            f"{_RUNNER}::test_without_assignments_a_partition_must_be_on_as_many_participants_as_the_zone_has_replicas",
        ),
    ),
    Defect(
        name="catalog checks: the last partition of a zone",
        promise=_CHECKS,
        file=_CHECKING,
        old="    for partition in range(zone.partitions):\n",
        new="    for partition in range(zone.partitions - 1):\n",
        killers=_PARTITIONS,
    ),
    Defect(
        name="catalog checks: a deleted table that readers at the watermark see",
        promise=_CHECKS,
        file=_CHECKING,
        old="        if watermark is None or table.id in watermark.tables:\n",
        new="        if watermark is None:\n",
        killers=(f"{_RUNNER}::test_a_deleted_table_keeps_the_history_while_readers_at_the_watermark_see_it",),
    ),
    Defect(
        name="catalog checks: a deleted table that readers of a participant behind see",
        promise=_CHECKS,
        file=_CHECKING,
        old="    time, name = attempt.round.lowest_watermark\n",
        new='    time, name = attempt.round.low_watermark, ""\n',
        killers=(f"{_RUNNER}::test_a_deleted_table_keeps_the_history_while_a_participant_behind_sees_it",),
    ),
    Defect(
        name="catalog checks: a zone of the topology that does not exist",
        promise=_CHECKS,
        file=_CHECKING,
        old="CHECKS = (index_construction, zones, partitions, deleted_tables)\n",
        new="CHECKS = (index_construction, partitions, deleted_tables)\n",
        killers=(f"{_RUNNER}::test_a_zone_of_the_topology_that_does_not_exist_is_named",),
    ),
    Defect(
        name="catalog checks: partitions of a deleted table must be held for ever",
        promise=_CHECKS,
        file=_CHECKING,
        old="        if table.id not in attempt.current.tables:\n            continue\n        found = _table",
        new="        found = _table",
        killers=(f"{_RUNNER}::test_a_deleted_table_keeps_the_history_while_readers_at_the_watermark_see_it",),
    ),
    Defect(
        name="catalog checks: the first finding does not end the attempt",
        promise=_CHECKS,
        file=_DECIDING,
        old="        if found is not None:\n            return Compaction(found, pin)\n    cut = Cut(",
        new="        del found\n    cut = Cut(",
        killers=(f"{_RUNNER}::test_a_partition_without_an_assignment_is_named",),
    ),
    Defect(
        name="catalog checks: a dry run cuts",
        promise=_DECISION,
        file=_DECIDING,
        old="    if round.dry_run:\n        message",
        new="    if round.dry_run and not round.answers:\n        message",
        killers=(f"{_RUNNER}::test_a_dry_run_says_what_it_would_cut",),
    ),
)
