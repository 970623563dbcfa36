"""The status of a catalog from what the steps of a round found, and its times: watermark, next round."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from compaction.api.base import timestamp_from_epoch
from compaction.api.catalog.catalog import (
    ANSWERED,
    MAX_PARTICIPANTS,
    CatalogCompactionStatus,
    HybridTime,
    ParticipantStatus,
    ProcessStatus,
    RequiredTime,
    RoundStatus,
)
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import UNDEFINED, Ended, Finding, Process, Processes, Reason, Stage, standing
from compaction.catalogs.compaction.round import ParticipantAnswer, Pin, Round, Unanswered, WatermarkRule, due_in, moved
from compaction.catalogs.compaction.steps import RoundStep, round_milliseconds
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.model.descriptors import MINIMUM, hybrid, physical
from compaction.core.reconcile.observations import Moment


def rule_of(spec: CatalogCompactionSpec) -> WatermarkRule:
    """The watermark's rule in milliseconds."""
    return WatermarkRule(
        round_milliseconds(spec.low_watermark.update_interval),
        round_milliseconds(spec.low_watermark.data_availability),
        round_milliseconds(spec.max_clock_skew),
    )


def watermark_at(before: int, spec: CatalogCompactionSpec, now: Moment) -> int:
    """The watermark of a round that begins now: as before until it is due."""
    rule, milliseconds = rule_of(spec), round_milliseconds(now.wall)
    return moved(before, rule, milliseconds) if due_in(before, rule, milliseconds) == 0 else before


# The status of a catalog, from what the last steps found.


def after_step(before: CatalogCompactionStatus, found: RoundStep, now: Moment) -> CatalogCompactionStatus:
    """The status with what a step found; the same status when that is nothing."""
    changes: dict[str, Any] = {}
    if found.heard is not None:
        changes |= {"participants": _participants(found.heard)}
        if before.round is not None:
            asked = len(found.heard.topology.asked)
            numbers = {"participants": asked, "answered": len(found.heard.answers)}
            changes["round"] = before.round.model_copy(update=numbers)
    if found.token is not None:
        changes["fencing_token"] = found.token
    if found.history is not None:
        retained = found.history
        changes |= {"earliest_version": retained.earliest.version, "latest_version": retained.latest.version}
    if found.decided is not None:
        changes["required_time"] = required_time(found.decided.pin)
    if found.sent is not None and not found.sent.refused:
        changes["propagated_minimum"] = hybrid_time(found.sent.minimum)
    if found.saved is not None and found.saved.outcome is SnapshotOutcome.SAVED:
        changes |= {
            "earliest_version": found.saved.version,
            "last_compacted_version": found.saved.version,
            "last_compaction_time": timestamp_from_epoch(now.wall),
            "versions_cut": before.versions_cut + found.saved.version - found.memory.earliest,
            "bytes_cut": before.bytes_cut + max(0, found.saved.bytes_cut),
        }
    for ended in found.ended:
        changes[ended.process.value.lower()] = _process(before, ended, now)
    return before.model_copy(update=changes) if changes else before


def with_round(
    before: CatalogCompactionStatus, processes: Processes, *, begun: bool, now: Moment
) -> CatalogCompactionStatus:
    """The status with the stage of the round. `begun`: another one than in the status."""
    if begun and processes.trigger is not None:
        started = timestamp_from_epoch(now.wall)
        return before.model_copy(
            update={"round": RoundStatus(stage=processes.stage, trigger=processes.trigger, started_at=started)}
        )
    if before.round is None or before.round.stage is processes.stage:
        return before
    return before.model_copy(update={"round": before.round.model_copy(update={"stage": processes.stage})})


def next_run(spec: CatalogCompactionSpec, processes: Processes, left: float | None, now: Moment) -> datetime | None:
    """Time of the next round, to the second; None while one runs, and while the catalog is suspended."""
    if spec.suspend or left is None or processes.stage is not Stage.IDLE:
        return None
    return timestamp_from_epoch(now.wall + left)


def hybrid_time(value: int) -> HybridTime:
    """A hybrid timestamp beside the time that it means."""
    return HybridTime(value=value, time=_time(value))


def _time(value: int) -> datetime:
    return timestamp_from_epoch(physical(value) / 1000)


def _known(value: int) -> datetime | None:
    return None if value in (UNDEFINED, MINIMUM) else _time(value)


def required_time(pin: Pin | None) -> RequiredTime | None:
    if pin is None:
        return None
    return RequiredTime(
        value=pin.time,
        time=_time(pin.time),
        reason=pin.reason,
        participant=pin.participant,
        subject=pin.subject,
        since=_known(pin.since),
    )


def _process(before: CatalogCompactionStatus, ended: Ended, now: Moment) -> ProcessStatus:
    old = before.compaction if ended.process is Process.COMPACTION else before.propagation
    found = standing(ended.finding, _finding(old), hybrid(max(1, round_milliseconds(now.wall))))
    return ProcessStatus(
        outcome=found.outcome,
        reason=found.reason,
        message=found.message,
        participant=found.participant,
        subject=found.subject,
        since=_known(found.since),
        finished_at=timestamp_from_epoch(now.wall),
    )


def _finding(old: ProcessStatus | None) -> Finding | None:
    """The finding that a status was written from; None for one that another version of the operator wrote."""
    if old is None or old.since is None or old.reason not in set(Reason):
        return None
    since = hybrid(max(1, round_milliseconds(old.since.timestamp())))
    return Finding(Reason(old.reason), old.message, old.participant, old.subject, since)


def _participants(round: Round) -> tuple[ParticipantStatus, ...]:
    """Those without an answer first, then by what they need: the list is cut at the end."""
    silent = sorted(round.unanswered, key=lambda item: item.name)
    answers = sorted(round.answers, key=lambda answer: (answer.report.minimum, answer.name))
    rows = (*map(_silent, silent), *map(_answered, answers))
    return rows[:MAX_PARTICIPANTS]


def _silent(unanswered: Unanswered) -> ParticipantStatus:
    return ParticipantStatus(name=unanswered.name, reason=unanswered.reason, message=unanswered.message)


def _answered(answer: ParticipantAnswer) -> ParticipantStatus:
    report = answer.report
    return ParticipantStatus(
        name=report.name,
        reason=ANSWERED,
        minimum=_known(report.minimum),
        cause=report.cause,
        subject=report.subject,
        low_watermark=_known(report.low_watermark),
        oldest_transaction=_known(report.oldest_transaction),
        checkpoint=_known(report.checkpoint),
        partitions=len(report.partitions),
        undefined_partitions=sum(1 for partition in report.partitions if partition.minimum == UNDEFINED),
        index_builds=len(report.index_builds),
        rebalances=len(report.rebalances),
        clock_skew_milliseconds=physical(report.clock) - physical(answer.received_at),
    )
