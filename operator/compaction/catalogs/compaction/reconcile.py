"""One reconcile of a catalog: takes in results of work, begins rounds, and says in the status what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from compaction.api.base import timestamp_from_epoch
from compaction.api.catalog.catalog import (
    MAX_ROUNDS,
    CatalogCompaction,
    CatalogCompactionStatus,
    CatalogReason,
    ProcessStatus,
    RoundRecord,
    standing_of,
)
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import (
    Ended,
    Outcome,
    Process,
    Processes,
    Reason,
    Stage,
    Trigger,
)
from compaction.api.conditions import reason_since
from compaction.api.names import ANNOTATION_RUN_NOW, ANNOTATION_SCAN
from compaction.api.policy.store import conditions_for
from compaction.api.requests import RequestStatus, answered_with, unhandled
from compaction.api.text.printing import mark_of
from compaction.catalogs.compaction.observations import (
    Ask,
    CatalogDecision,
    CatalogMemory,
    CatalogSnapshot,
    Task,
    WriteCatalogStatus,
)
from compaction.catalogs.compaction.preview import is_preview, look_ahead
from compaction.catalogs.compaction.round import due_in
from compaction.catalogs.compaction.round_status import (
    after_step,
    hybrid_time,
    next_run,
    rule_of,
    watermark_at,
    with_round,
)
from compaction.catalogs.compaction.steps import round_milliseconds, step
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.observations import Hold, Moment
from compaction.core.reconcile.status.announcing import of_requests, of_standing

# The fencing token of a round (docs/design/catalog-compaction.md#fencing).


def least_token(transitions: int, written: int) -> int:
    """The least token of a round that begins. The round claims it from the log, which makes it larger than any that the
    log has seen: so it grows also when Lease and status are lost.

    Args:
        transitions: leaseTransitions of the coordinator's Lease, which count its terms.
        written: the last token in the status, 0 when there is none. A Lease that was deleted counts from 0 again: the
            status keeps the token growing where the log does not answer.
    """
    return max(transitions, written) + 1


# Triggers of a round (docs/design/catalog-compaction.md#processes).


def triggered(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> CatalogMemory:
    """The memory with every trigger that has come; none while the catalog is suspended."""
    assert snapshot.catalog is not None, "only an existing catalog has triggers"
    generation = snapshot.catalog.metadata.generation
    if spec.suspend:
        return memory
    found: list[Trigger] = []
    if memory.transitions != snapshot.transitions:
        found.append(Trigger.NEW_TERM)
    elif memory.generation != generation:
        found.append(Trigger.SPEC_CHANGED)
    watermark = watermark_at(memory.watermark, spec, snapshot.now)
    if watermark != memory.watermark:
        found.append(Trigger.WATERMARK)
        memory = replace(memory, watermark=watermark)
    if not found and _interval_left(memory, snapshot, spec) == 0.0:
        found.append(Trigger.INTERVAL)
    asked = requested(snapshot.catalog, memory.status or snapshot.catalog.status)
    if any(value and value != before for value, before in zip(asked, memory.requests, strict=True)):
        found.append(Trigger.REQUESTED)
    memory = replace(memory, requests=asked)
    processes = memory.processes
    for item in found:
        processes = processes.triggered(item)
    if memory.processes.stage is Stage.IDLE and found:
        # Several at once are one: nothing has begun before the last of them.
        processes = memory.processes.triggered(min(found, key=tuple(Trigger).index))
    return replace(memory, processes=processes, transitions=snapshot.transitions, generation=generation)


# Requests of a user: to run now, which is a round, and to scan, which is a round that cuts nothing.


def requested(catalog: CatalogCompaction, status: CatalogCompactionStatus) -> tuple[str, str]:
    """The values of the requests that have no answer yet: to run now, to scan."""
    annotations = catalog.metadata.annotations
    return (
        unhandled(annotations, ANNOTATION_RUN_NOW, status.last_handled_run_now),
        unhandled(annotations, ANNOTATION_SCAN, status.last_handled_scan),
    )


def answered(
    status: CatalogCompactionStatus, values: tuple[str, str], now: Moment, *, reason: str, message: str, accepted: bool
) -> CatalogCompactionStatus:
    """The status with the same answer to each of these requests."""
    run, scan = values
    answer = answered_with(RequestStatus, now.time, reason, message, accepted=accepted)
    changes: dict[str, Any] = {"last_handled_run_now": mark_of(run), "run_now": answer} if run else {}
    changes |= {"last_handled_scan": mark_of(scan), "scan": answer} if scan else {}
    return status.model_copy(update=changes) if changes else status


def _interval_left(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> float | None:
    """Seconds until the interval has passed; None while a round runs, and before the first one."""
    if memory.processes.stage is not Stage.IDLE or memory.ended_at is None:
        return None
    return max(0.0, memory.ended_at + spec.interval - snapshot.now.monotonic)


def next_in(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> float | None:
    """Seconds until time alone begins a round; None while it does not."""
    if spec.suspend:
        return None
    watermark = due_in(memory.watermark, rule_of(spec), round_milliseconds(snapshot.now.wall)) / 1000
    interval = _interval_left(memory, snapshot, spec)
    return watermark if interval is None else min(watermark, interval)


# One reconcile of a catalog: results of work are taken in, triggers begin rounds, the status says what is known
# (docs/design/catalog-compaction.md#rounds).

Outcoming: TypeAlias = tuple[str, str, bool]
"""Reason and message that a round ended with, and whether they have stood since before it."""


def reconcile(snapshot: CatalogSnapshot) -> CatalogDecision:
    """Decide what to do now for one catalog."""
    catalog = snapshot.catalog
    if catalog is None:
        return CatalogDecision(CatalogMemory(), forget=True)
    if snapshot.hold is not None:
        # On hold every catalog is as if it were suspended; the words for it are others.
        catalog = catalog.model_copy(update={"spec": catalog.spec.model_copy(update={"suspend": True})})
    memory = _recalled(snapshot.memory, catalog)
    status = memory.status or catalog.status
    tasks: list[Task] = []
    ended: list[Ended] = []
    seconds: list[float] = []
    concluded: Outcoming | None = None
    for result in snapshot.results:
        # Not of the round that runs: a failure of a preview ends no process of it.
        if is_preview(result):
            continue
        found = step(memory, result, _spec_of_round(catalog, memory), status.fencing_token, status.latest_version or 0)
        status = after_step(status, found, snapshot.now)
        memory = found.memory
        tasks += found.tasks
        ended += found.ended
        if found.ended and memory.processes.stage is not Stage.ACTING:
            seconds.append(snapshot.now.monotonic - memory.begun_at)
            memory = replace(memory, ended_at=snapshot.now.monotonic)
            begun = None if status.round is None else status.round.started_at
            concluded = _outcome(status, begun)
            status = _with_record(status, memory, snapshot.now)
            fails = _shown(status) is None or _fails(_shown(status))
            reason, message, _ = concluded
            status = answered(
                status, memory.answering, snapshot.now, reason=reason, message=message, accepted=not fails
            )
            if memory.processes.stage is Stage.ASKING:  # a remembered trigger begins the next round
                memory, status = _begin(memory, status, catalog, snapshot, tasks)
    if catalog.spec.suspend:
        reason, message, _ = _suspended(memory, snapshot.hold)
        refused = requested(catalog, status)
        if memory.processes.stage is not Stage.IDLE:
            # The round that runs still answers what it was begun for.
            pairs = zip(refused, memory.answering, strict=True)
            refused = cast("tuple[str, str]", tuple("" if value == held else value for value, held in pairs))
        status = answered(status, refused, snapshot.now, reason=reason, message=message, accepted=False)
    previews, memory, status = look_ahead(snapshot, memory, status)
    tasks += previews
    idle, new_term = memory.processes.stage is Stage.IDLE, memory.transitions != snapshot.transitions
    memory = triggered(memory, snapshot, catalog.spec)
    if new_term and not catalog.spec.suspend:
        status = status.model_copy(update={"coordinator": snapshot.identity})
    if idle and memory.processes.stage is Stage.ASKING:
        memory, status = _begin(memory, status, catalog, snapshot, tasks)
    decision = _decided(snapshot, catalog, memory, status, tasks, ended, concluded)
    return replace(decision, round_seconds=tuple(seconds))


def _recalled(memory: CatalogMemory, catalog: CatalogCompaction) -> CatalogMemory:
    """The watermark goes on from what a coordinator before this one wrote."""
    written = catalog.status.low_watermark
    if written is None or written.value <= memory.watermark:
        return memory
    return replace(memory, watermark=written.value)


def _begin(
    memory: CatalogMemory,
    status: CatalogCompactionStatus,
    catalog: CatalogCompaction,
    snapshot: CatalogSnapshot,
    tasks: list[Task],
) -> tuple[CatalogMemory, CatalogCompactionStatus]:
    if catalog.spec.suspend:
        # What was remembered before the suspension comes back as the trigger of a changed spec.
        return replace(memory, processes=Processes(), ended_at=snapshot.now.monotonic), status
    same_log = memory.reference == catalog.spec.catalog
    if memory.processes.trigger is Trigger.SPEC_CHANGED and not same_log:
        # What another log had says nothing about this one.
        status = status.model_copy(update={"earliest_version": None, "latest_version": None})
    memory = replace(memory, reference=catalog.spec.catalog)
    asked = requested(catalog, status)
    figures_only = memory.processes.trigger is Trigger.REQUESTED and not asked[0]
    cut = (status.versions_cut, status.bytes_cut)
    memory = replace(memory, answering=asked, figures_only=figures_only, cut_before=cut)
    token = least_token(snapshot.transitions, status.fencing_token)
    tasks.append(Ask(_spec_of_round(catalog, memory), token, bool(status.latest_version)))
    status = with_round(status, memory.processes, begun=True, now=snapshot.now)
    return replace(memory, round=None, begun_at=snapshot.now.monotonic), status


def _with_record(status: CatalogCompactionStatus, memory: CatalogMemory, now: Moment) -> CatalogCompactionStatus:
    """The status with the round that has just ended in its history, when there is something to remember of it: rounds
    come every minute, and most of them end as the one before.
    """
    if status.round is None:
        return status
    reasons = [process.reason if process is not None else "" for process in (status.compaction, status.propagation)]
    record = RoundRecord(
        trigger=status.round.trigger,
        started_at=status.round.started_at,
        ended_at=timestamp_from_epoch(now.wall),
        compaction=reasons[0],
        propagation=reasons[1],
        versions_cut=max(0, status.versions_cut - memory.cut_before[0]),
        bytes_cut=max(0, status.bytes_cut - memory.cut_before[1]),
    )
    last = status.history[-1] if status.history else None
    same = last is not None and (last.compaction, last.propagation) == (record.compaction, record.propagation)
    # A user who has asked for a round looks for it here, whatever came of it.
    if same and not record.versions_cut and record.trigger is not Trigger.REQUESTED:
        return status
    return status.model_copy(update={"history": (*status.history, record)[-MAX_ROUNDS:]})


def _spec_of_round(catalog: CatalogCompaction, memory: CatalogMemory) -> CatalogCompactionSpec:
    """The spec that the round goes by: one that a scan has asked for is a dry run."""
    if not memory.figures_only:
        return catalog.spec
    return catalog.spec.model_copy(update={"dry_run": True})


def _decided(
    snapshot: CatalogSnapshot,
    catalog: CatalogCompaction,
    memory: CatalogMemory,
    status: CatalogCompactionStatus,
    tasks: list[Task],
    ended: list[Ended],
    concluded: Outcoming | None,
) -> CatalogDecision:
    left = next_in(memory, snapshot, catalog.spec)
    status = with_round(status, memory.processes, begun=False, now=snapshot.now)
    status = _standing(snapshot, catalog, memory, status, concluded)
    if ended:
        watermark = hybrid_time(memory.watermark) if memory.watermark else None
        run = next_run(catalog.spec, memory.processes, left, snapshot.now)
        status = status.model_copy(update={"low_watermark": watermark, "next_run_time": run})
    about = snapshot.about
    assert about is not None, "an existing catalog has an identity"
    write = None
    if _worth_writing(catalog.status, status, ended):
        events = (
            *of_standing(catalog.status.conditions, status.conditions),
            *of_requests(catalog.status, status),
            *_cuts(ended),
        )
        write = WriteCatalogStatus(about, status, events)
    memory = replace(memory, status=status)
    idle = memory.processes.stage is Stage.IDLE
    return CatalogDecision(memory, tuple(tasks), write, left if idle else None, ended=tuple(ended))


_WITH_THE_END: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "round": None,
        "fencing_token": 0,
        "coordinator": "",
        "participants": (),
        "required_time": None,
        "earliest_version": None,
        "latest_version": None,
        "events": None,
    }
)
"""What is known before a process has ended is written with its end: else each step of a round would cost a write. And
events for the sink, which are added where a write is made."""


def _worth_writing(written: CatalogCompactionStatus, status: CatalogCompactionStatus, ended: Sequence[Ended]) -> bool:
    """Return whether a process has ended, conditions have changed, or an earlier write was not made."""
    return bool(ended) or written.model_copy(update=_WITH_THE_END) != status.model_copy(update=_WITH_THE_END)


def _standing(
    snapshot: CatalogSnapshot,
    catalog: CatalogCompaction,
    memory: CatalogMemory,
    status: CatalogCompactionStatus,
    concluded: Outcoming | None,
) -> CatalogCompactionStatus:
    """The conditions: of the suspension, of a spec whose first round has not ended, else of the round that ended now.
    While one of its processes runs, what is known of the other one is from the round before.
    """
    generation = catalog.metadata.generation
    stale = status.observed_generation != generation
    if catalog.spec.suspend:
        reason, message, lasts = _suspended(memory, snapshot.hold)
    elif concluded is None and not stale and status.conditions:
        return status
    elif concluded is None or Trigger.SPEC_CHANGED in (memory.processes.trigger, memory.processes.remembered):
        reason, message, lasts = CatalogReason.STARTING.value, "the first round with this spec has begun", False
    else:
        reason, message, lasts = concluded
    conditions = conditions_for(
        status.conditions,
        reason=reason,
        message=message,
        observed_generation=generation,
        now=snapshot.now.time,
        standing=standing_of(reason, lasts=lasts),
    )
    since = reason_since(status.conditions, conditions, known=status.reason_since, now=snapshot.now.time)
    changes = {"conditions": conditions, "reason_since": since, "observed_generation": generation}
    return status.model_copy(update=changes)


def _suspended(memory: CatalogMemory, hold: Hold | None) -> tuple[str, str, bool]:
    if hold is not None:
        return CatalogReason.HELD.value, f"{hold.said}; no round begins", False
    if memory.processes.stage is Stage.IDLE:
        return CatalogReason.SUSPENDED.value, "spec.suspend is true: no round begins", False
    return CatalogReason.SUSPENDING.value, "the round that runs is the last one until spec.suspend is false", False


def _outcome(status: CatalogCompactionStatus, begun: datetime | None) -> Outcoming:
    """Return the outcome of the round that began at `begun`. What fails goes before what waits: a cut that is kept by a
    transaction says nothing about a minimum that no participant takes.
    """
    shown = _shown(status)
    if shown is None:
        return CatalogReason.STARTING.value, "the first round runs", False
    return shown.reason, shown.message, begun is not None and shown.since is not None and shown.since < begun


def _shown(status: CatalogCompactionStatus) -> ProcessStatus | None:
    """Return the process that a round is judged by."""
    shown, propagation = status.compaction, status.propagation
    if propagation is not None and _fails(propagation) and not _fails(shown):
        return propagation
    return shown


def _fails(process: ProcessStatus | None) -> bool:
    return process is not None and process.outcome in (Outcome.FAILED, Outcome.ABORTED)


def _cuts(ended: Sequence[Ended]) -> tuple[Announce, ...]:
    return tuple(
        Announce(item.finding.reason.value, item.finding.message)
        for item in ended
        if item.process is Process.COMPACTION and item.finding.reason is Reason.COMPACTED
    )
