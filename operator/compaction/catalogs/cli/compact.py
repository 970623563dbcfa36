"""`compactor catalogs plan` and `compact`: a round by hand, without Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import click

from compaction.api.catalog.reasons import UNDEFINED, Finding, Outcome
from compaction.catalogs.cli.participants import Asking, asking_options
from compaction.catalogs.cli.place import LogPlace, followed_log_options, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.compaction.deciding import compacting, cut, unusable
from compaction.catalogs.compaction.round import ParticipantAnswer, Pin, Round, history_of, required
from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.clock import HybridClock
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option

# `compactor catalogs plan` and `compact`: a round by hand, without Kubernetes.

_COLUMNS = (
    OutputColumn("name", "Name"),
    OutputColumn("minimum", "Required from"),
    OutputColumn("cause", "Cause"),
    OutputColumn("subject", "Subject"),
    OutputColumn("partitions", "Partitions", right=True),
    OutputColumn("indexBuilds", "Index builds", right=True),
    OutputColumn("rebalances", "Rebalances", right=True),
    OutputColumn("answer", "Answer"),
)

TRIM_OPTION: Final = click.option(
    "--trim",
    is_flag=True,
    help="Drop column sets that no retained version uses; kept while a participant may read rows of older ones.",
)


@click.command("plan")
@asking_options
@followed_log_options
@TRIM_OPTION
@output_option()
@click.pass_context
def plan_command(
    context: click.Context, *, asking: Asking, place: LogPlace | None, trim: bool, output: OutputFormat
) -> None:
    """Show what each participant needs of the catalog, from which time on it is needed, and who pins it. With --etcd
    and --prefix also which versions `compact` would cut, or why it would cut none.

    Changes nothing. The exit code is 1 when a participant has no answer that counts, or when the participants or the
    log do not allow the decision.

    Example: compactor catalogs plan --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    if trim and place is None:
        raise click.UsageError("--trim needs the update log: give --etcd and --prefix too")
    clock = HybridClock()
    found = asking.round(clock)
    # Answers come first: they are shown even where the log then allows no decision.
    missing = unusable(found)
    done = missing is None and not found.unanswered
    compaction: dict[str, Any] | None = None
    if place is not None:
        with place.opened() as log:
            compaction, possible = _compacted(log, replace(found, dry_run=True, trim=trim), clock, 0)
        done = done and possible
    required_time = _pin(required(found)) if missing is None else _finding(missing)
    _show_plan(_participants(found), required_time, compaction, output)
    if not done:
        context.exit(EXIT_DATA_ERROR)


def _participants(found: Round) -> list[dict[str, Any]]:
    """A row for each participant: its report, or why it has none."""
    rows = [_report(item) for item in found.by_name.values()]
    empty = dict.fromkeys(("minimum", "cause", "subject", "partitions", "indexBuilds", "rebalances"), "-")
    return rows + [
        {"name": item.name, **empty, "answer": f"{item.reason}: {item.message}"} for item in found.unanswered
    ]


def _show_plan(
    participants: list[dict[str, Any]],
    required_time: dict[str, Any],
    compaction: dict[str, Any] | None,
    output: OutputFormat,
) -> None:
    if output is not OutputFormat.TABLE:
        emit({"participants": participants, "requiredTime": required_time, "compaction": compaction}, output)
        return
    emit(participants, output, columns=_COLUMNS)
    click.echo()
    emit(required_time, output)
    if compaction is not None and compaction != required_time:
        click.echo()
        # Who pins the catalog stands above.
        emit({key: value for key, value in compaction.items() if key not in required_time}, output)


@click.command("compact")
@asking_options
@log_options
@TRIM_OPTION
@click.option(
    "--token",
    type=click.IntRange(1, 2**53 - 1),
    required=True,
    help="Fencing token to cut with, larger than any before.",
)
@output_option()
@click.pass_context
def compact_command(
    context: click.Context, *, asking: Asking, place: LogPlace, trim: bool, token: int, output: OutputFormat
) -> None:
    """Cut the versions of a catalog that none of its participants needs, and not one more.

    Every participant has to be named: a version that one of them needs is lost otherwise. The exit code is 1 when
    the participants or the log do not allow the decision; `plan` shows it beforehand.

    Example: compactor catalogs compact --token 7 --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    clock = HybridClock()
    # Asked before the log is opened: an answer stays valid, because a required time only moves forward.
    found = replace(asking.round(clock), dry_run=False, trim=trim)
    with place.opened() as log:
        row, done = _compacted(log, found, clock, token)
    emit(row, output)
    if not done:
        context.exit(EXIT_DATA_ERROR)


def _compacted(log: UpdateLog, found: Round, clock: HybridClock, token: int) -> tuple[dict[str, Any], bool]:
    """Return the row to show, and whether the decision was possible and the log took it."""
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


def _report(answer: ParticipantAnswer) -> dict[str, Any]:
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
