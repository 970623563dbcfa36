"""One reconcile of a catalog: results of work are taken in, triggers begin rounds, the status says what is known
(docs/design/catalog-compaction.md#rounds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from compaction.api.catalog.processes import Processes, Stage, Trigger
from compaction.api.catalog.reasons import Ended, Outcome, Process, Reason
from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.catalog.standing import CatalogReason, standing_of
from compaction.api.catalog.status import CatalogCompactionStatus, ProcessStatus
from compaction.api.conditions import reason_since
from compaction.api.policy.standing import conditions_for
from compaction.catalogs.compaction.actions import Ask, CatalogDecision, Task, WriteCatalogStatus
from compaction.catalogs.compaction.fencing import least_token
from compaction.catalogs.compaction.memory import CatalogMemory
from compaction.catalogs.compaction.observations import CatalogSnapshot
from compaction.catalogs.compaction.steps import step
from compaction.catalogs.compaction.summary import after_step, hybrid_time, next_run, with_round
from compaction.catalogs.compaction.triggers import next_in, triggered
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.status.announcing import of_standing

Outcoming: TypeAlias = tuple[str, str, bool]
"""Reason and message that a round ended with, and whether they have stood since before it."""


def reconcile(snapshot: CatalogSnapshot) -> CatalogDecision:
    """What to do now for one catalog."""
    catalog = snapshot.catalog
    if catalog is None:
        return CatalogDecision(CatalogMemory(), forget=True)
    memory = _recalled(snapshot.memory, catalog)
    status = memory.status or catalog.status
    tasks: list[Task] = []
    ended: list[Ended] = []
    seconds: list[float] = []
    concluded: Outcoming | None = None
    for result in snapshot.results:
        found = step(memory, result, catalog.spec, status.fencing_token, status.latest_version or 0)
        status = after_step(status, found, snapshot.now)
        memory = found.memory
        tasks += found.tasks
        ended += found.ended
        if found.ended and memory.processes.stage is not Stage.ACTING:
            seconds.append(snapshot.now.monotonic - memory.begun_at)
            memory = replace(memory, ended_at=snapshot.now.monotonic)
            begun = None if status.round is None else status.round.started_at
            concluded = _outcome(status, begun)
            if memory.processes.stage is Stage.ASKING:  # a remembered trigger begins the next round
                memory, status = _begin(memory, status, catalog, snapshot, tasks)
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
    tasks.append(
        Ask(catalog.spec, least_token(snapshot.transitions, status.fencing_token), bool(status.latest_version))
    )
    status = with_round(status, memory.processes, begun=True, now=snapshot.now)
    return replace(memory, round=None, begun_at=snapshot.now.monotonic), status


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
        events = tuple(of_standing(catalog.status.conditions, status.conditions)) + _cuts(ended)
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
    }
)
"""What is known before a process has ended is written with its end: else each step of a round would cost a write."""


def _worth_writing(written: CatalogCompactionStatus, status: CatalogCompactionStatus, ended: Sequence[Ended]) -> bool:
    """Whether a process has ended, conditions have changed, or an earlier write was not made."""
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
        reason, message, lasts = _suspended(memory)
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


def _suspended(memory: CatalogMemory) -> tuple[str, str, bool]:
    if memory.processes.stage is Stage.IDLE:
        return CatalogReason.SUSPENDED.value, "spec.suspend is true: no round begins", False
    return CatalogReason.SUSPENDING.value, "the round that runs is the last one until spec.suspend is false", False


def _outcome(status: CatalogCompactionStatus, begun: datetime | None) -> Outcoming:
    """What a round that began then has ended with. What fails goes before what waits: a cut that is kept by a
    transaction says nothing about a minimum that no participant takes.
    """
    shown, propagation = status.compaction, status.propagation
    if propagation is not None and _fails(propagation) and (shown is None or not _fails(shown)):
        shown = propagation
    if shown is None:
        return CatalogReason.STARTING.value, "the first round runs", False
    return shown.reason, shown.message, begun is not None and shown.since is not None and shown.since < begun


def _fails(process: ProcessStatus) -> bool:
    return process.outcome in (Outcome.FAILED, Outcome.ABORTED)


def _cuts(ended: Sequence[Ended]) -> tuple[Announce, ...]:
    return tuple(
        Announce(one.finding.reason.value, one.finding.message)
        for one in ended
        if one.process is Process.COMPACTION and one.finding.reason is Reason.COMPACTED
    )
