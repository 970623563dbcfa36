"""The step that follows from the end of work: the next work of the process, or its end
(docs/design/catalog-compaction.md#decision).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Ended, Finding, Process, Reason, Stage
from compaction.catalogs.compaction.deciding import Compaction, Cut, Propagate, compacting, propagating
from compaction.catalogs.compaction.observations import (
    Broken,
    CatalogMemory,
    Delivered,
    Heard,
    LogRead,
    ReadLog,
    Result,
    RoundWork,
    Saved,
    SaveSnapshot,
    SendMinimum,
    Task,
)
from compaction.catalogs.compaction.round import Round, topology_of, with_assignments
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import CatalogHistory


@dataclass(frozen=True, slots=True)
class RoundStep:
    """The consequence of one result. `token`: of the round whose answers came; `history`, `decided`: of the log that
    was read; `saved`, `sent`: what was carried out.
    """

    memory: CatalogMemory
    tasks: tuple[Task, ...] = ()
    ended: tuple[Ended, ...] = ()
    heard: Round | None = None
    token: int | None = None
    history: CatalogHistory | None = None
    decided: Compaction | None = None
    saved: Saved | None = None
    sent: Delivered | None = None


def step(memory: CatalogMemory, result: Result, spec: CatalogCompactionSpec, token: int, latest: int = 0) -> RoundStep:
    """Results of a round that is forgotten lead to nothing. `token`: of the round whose answers came last. `latest`:
    the last version that the same log had before, 0 when that is not known.
    """
    match result:
        case Heard() if memory.processes.stage is Stage.ASKING:
            return _heard(memory, result, spec)
        case LogRead() if memory.processes.runs(Process.COMPACTION) and memory.round is not None:
            return _log_read(memory, memory.round, result, spec, token, latest)
        case Saved() if memory.processes.runs(Process.COMPACTION):
            return _end(replace(RoundStep(memory), saved=result), Process.COMPACTION, _saved(result, memory))
        case Delivered() if memory.processes.runs(Process.PROPAGATION):
            return _end(replace(RoundStep(memory), sent=result), Process.PROPAGATION, _delivered(result))
        case Broken():
            return _broken(memory, result)
        case _:
            return RoundStep(memory)


def round_of(spec: CatalogCompactionSpec, watermark: int, heard: Heard, *, dry_run: bool) -> Round:
    """Make a round of that spec, with that watermark of the coordinator's, of what was heard."""
    return Round(
        heard.started_at,
        watermark,
        topology_of(spec.topology, heard.asked),
        heard.answers,
        heard.unanswered,
        round_milliseconds(spec.max_clock_skew),
        dry_run,
        heard.unclaimed,
        spec.trim,
    )


def _heard(memory: CatalogMemory, heard: Heard, spec: CatalogCompactionSpec) -> RoundStep:
    """Both processes begin. The log is read whatever the answers are: the status says how long the history is."""
    round = round_of(spec, memory.watermark, heard, dry_run=spec.dry_run)
    memory = replace(memory, processes=memory.processes.answered(), round=round)
    begun = RoundStep(memory, (ReadLog(spec),), heard=round, token=heard.token)
    propagation = propagating(round)
    if isinstance(propagation, Propagate) and not spec.dry_run:
        return replace(begun, tasks=(*begun.tasks, SendMinimum(spec, propagation.minimum, heard.token)))
    if isinstance(propagation, Propagate):
        propagation = Finding(Reason.DRY_RUN, "dryRun propagates nothing")
    return _end(begun, Process.PROPAGATION, propagation)


def _log_read(
    memory: CatalogMemory, round: Round, read: LogRead, spec: CatalogCompactionSpec, token: int, latest: int
) -> RoundStep:
    # An empty prefix is a new log to a process that starts. Here it is known what was there.
    if read.history.latest.version < latest:
        message = (
            f"the log ends at version {read.history.latest.version}, and it had version {latest}: its keys were "
            "deleted, or etcd was restored from an older copy. Restore them; where the catalog begins again on "
            "purpose, delete this object and create it again"
        )
        return _end(RoundStep(memory), Process.COMPACTION, Finding(Reason.LOG_CORRUPT, message))
    round = replace(round, topology=with_assignments(round.topology, spec.topology, read.history))
    decided = compacting(round, read.history, read.read_at)
    memory = replace(memory, round=round, earliest=read.history.earliest.version)
    found = RoundStep(memory, history=read.history, decided=decided)
    if isinstance(decided.step, Cut):
        save = SaveSnapshot(spec, decided.step.candidate, memory.earliest, token, decided.step.trim)
        return replace(found, tasks=(save,))
    return _end(found, Process.COMPACTION, decided.step)


LARGE_CUT: Final = 16 << 20
"""Bytes. etcd's own default for all of its data is 2 GiB."""


def _saved(saved: Saved, memory: CatalogMemory) -> Finding:
    match saved.outcome:
        case SnapshotOutcome.SAVED:
            cut = f"versions {memory.earliest} to {saved.version - 1} are cut; version {saved.version} is the earliest"
            keeper = "" if memory.round is None or not memory.round.trim else memory.round.old_rows_read_by
            kept = f"; all column sets are kept, participant {keeper} may read old rows" if keeper else ""
            space = (
                "; etcd keeps their space until its history is compacted and each member is defragmented (etcdctl "
                "compact, etcdctl defrag)"
                if saved.bytes_cut >= LARGE_CUT
                else ""
            )
            return Finding(Reason.COMPACTED, cut + kept + space)
        case SnapshotOutcome.NOT_NEWER:
            return Finding(Reason.NOT_NEWER, f"the log has a snapshot of version {saved.version} or later already")
        case SnapshotOutcome.FENCED:
            message = (
                "the log has seen a larger fencing token than that of this round: another coordinator or a command has "
                "claimed it. The next round claims it again; when that is refused too, find the other operator that "
                "compacts this catalog, and delete its CatalogCompaction"
            )
            return Finding(Reason.FENCED, message)


def _delivered(sent: Delivered) -> Finding:
    if not sent.refused:
        return Finding(Reason.PROPAGATED, "every participant has the minimum; partitions publish it after a checkpoint")
    name, why = min(sent.refused)
    more = f" ({len(sent.refused)} participants do not have it)" if len(sent.refused) > 1 else ""
    return Finding(Reason.NOT_DELIVERED, f"participant {name} did not take the minimum: {why}{more}", name)


def _broken(memory: CatalogMemory, broken: Broken) -> RoundStep:
    finding = Finding(broken.reason, broken.message)
    found = RoundStep(memory)
    if broken.work is RoundWork.ASK and memory.processes.stage is Stage.ASKING:
        found = RoundStep(replace(memory, processes=memory.processes.answered()))
        return _end(_end(found, Process.PROPAGATION, finding), Process.COMPACTION, finding)
    process = Process.PROPAGATION if broken.work is RoundWork.SEND else Process.COMPACTION
    return _end(found, process, finding) if memory.processes.runs(process) else found


def _end(found: RoundStep, process: Process, finding: Finding) -> RoundStep:
    memory = replace(found.memory, processes=found.memory.processes.ended(process))
    return replace(found, memory=memory, ended=(*found.ended, Ended(process, finding)))


def round_milliseconds(seconds: float) -> int:
    """Whole milliseconds, as hybrid timestamps count them."""
    return round(seconds * 1000)
