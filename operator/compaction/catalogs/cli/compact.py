"""`compactor catalogs participants`, `required-time` and `compact`: a round by hand, without Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from compaction.api.catalog.reasons import UNDEFINED, Finding, Outcome
from compaction.catalogs.cli.asking import Asking, asking_options
from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.compaction.cutting import cut
from compaction.catalogs.compaction.deciding import compacting, unusable
from compaction.catalogs.compaction.history import history_of
from compaction.catalogs.compaction.minimum import Pin, required
from compaction.catalogs.compaction.round import Answer, Round
from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.clock import HybridClock
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.output import Column, OutputFormat, emit, output_option

_COLUMNS = (
    Column("name", "Name"),
    Column("minimum", "Required from"),
    Column("cause", "Cause"),
    Column("subject", "Subject"),
    Column("partitions", "Partitions", right=True),
    Column("indexBuilds", "Index builds", right=True),
    Column("rebalances", "Rebalances", right=True),
    Column("answer", "Answer"),
)


@click.command("participants")
@asking_options
@output_option()
@click.pass_context
def participants_command(context: click.Context, *, asking: Asking, output: OutputFormat) -> None:
    """Ask each participant what it needs of the catalog. The exit code is 1 when one has no answer that counts.

    Example: compactor catalogs participants --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    found = asking.round(HybridClock())
    rows = [_report(one) for one in found.by_name.values()]
    rows += [{**_nothing(one.name), "answer": f"{one.reason}: {one.message}"} for one in found.unanswered]
    emit(rows, output, columns=_COLUMNS)
    if found.unanswered:
        context.exit(EXIT_DATA_ERROR)


@click.command("required-time")
@asking_options
@output_option()
@click.pass_context
def required_time_command(context: click.Context, *, asking: Asking, output: OutputFormat) -> None:
    """Show from which time on the catalog is needed, and who pins it. The exit code is 1 when that is not known.

    Example: compactor catalogs required-time --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    found = asking.round(HybridClock())
    missing = unusable(found)
    if missing is not None:
        emit(_finding(missing), output)
        context.exit(EXIT_DATA_ERROR)
    emit(_pin(required(found)), output)


@click.command("compact")
@asking_options
@log_options
@click.option(
    "--trim",
    is_flag=True,
    help="Drop column sets that no retained version uses; kept while a participant may read rows of older ones.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be cut, and cut nothing.")
@click.option(
    "--token",
    type=click.IntRange(1, 2**53 - 1),
    help="Fencing token to cut with, larger than any before; not with --dry-run.",
)
@output_option()
@click.pass_context
def compact_command(
    context: click.Context,
    *,
    asking: Asking,
    place: LogPlace,
    trim: bool,
    dry_run: bool,
    token: int | None,
    output: OutputFormat,
) -> None:
    """Cut the versions of a catalog that none of its participants needs, and not one more.

    Every participant has to be named: a version that one of them needs is lost otherwise. The exit code is 1 when
    the participants or the log do not allow the decision.

    Example: compactor catalogs compact --dry-run --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    if dry_run == (token is not None):
        raise click.UsageError("name either --dry-run or the --token to cut with")
    clock = HybridClock()
    found = replace(asking.round(clock), dry_run=dry_run, trim=trim)
    with place.opened() as log:
        row, done = _compacted(log, found, clock, token or 0)
    emit(row, output)
    if not done:
        context.exit(EXIT_DATA_ERROR)


def _compacted(log: UpdateLog, found: Round, clock: HybridClock, token: int) -> tuple[dict[str, Any], bool]:
    """What to show, and whether the decision was possible and the log took it."""
    now, kept = clock.now(), log.recover()
    decided = compacting(found, history_of(kept.events), now)
    pinned = {} if decided.pin is None else _pin(decided.pin)
    if isinstance(decided.step, Finding):
        return {**_finding(decided.step), **pinned}, decided.step.outcome is Outcome.SKIPPED
    largest = kept.token
    if token > largest and (claimed := log.claim(token)) > token:
        largest = claimed  # another process has claimed it since
    if token <= largest:
        message = f"the log has seen token {largest}: nothing is cut; name a larger one, such as --token {largest + 1}"
        return {"outcome": SnapshotOutcome.FENCED.value, "message": message, **pinned}, False
    outcome, _ = cut(log, decided.step.candidate, token, trim=decided.step.trim)
    row = {
        "outcome": outcome.value,
        "earliest": decided.step.candidate.version,
        "versions": decided.step.versions,
        "trimmed": decided.step.trim,
    }
    return {**row, **pinned}, outcome is not SnapshotOutcome.FENCED


def _finding(found: Finding) -> dict[str, Any]:
    return {"outcome": found.reason.value, "message": found.message}


def _pin(pin: Pin) -> dict[str, Any]:
    since = None if pin.since == UNDEFINED else moment(pin.since)
    return {
        "requiredTime": moment(pin.time),
        "pinnedBy": pin.participant or "coordinator",
        "reason": pin.reason.value,
        "subject": pin.subject or None,
        "since": since,
    }


def _report(answer: Answer) -> dict[str, Any]:
    report = answer.report
    return {
        "name": report.name,
        "minimum": moment(report.minimum),
        "cause": report.cause.value,
        "subject": report.subject or "-",
        "partitions": len(report.partitions),
        "indexBuilds": len(report.index_builds),
        "rebalances": len(report.rebalances),
        "answer": "Received",
    }


def _nothing(name: str) -> dict[str, Any]:
    empty = dict.fromkeys(("minimum", "cause", "subject", "partitions", "indexBuilds", "rebalances"), "-")
    return {"name": name, **empty}
