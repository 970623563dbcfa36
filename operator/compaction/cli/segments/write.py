"""`compactor segments plan`, `compact` and `recover`: the same library path a worker takes, on one directory.

`compact` claims a token of its own in the log's fence, so it excludes, and is excluded by, workers and other runs like
any other attempt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from compaction.api.policy.segment_logs import Ownership
from compaction.api.text.formatting import format_bytes
from compaction.cli.durations import DurationParameter
from compaction.cli.errors import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, emit, output_option, print_table
from compaction.cli.segments.options import (
    log_options,
    max_bytes_option,
    max_entries_option,
    owner_stopped_option,
    ownership_of,
    require_snapshot_for_live,
)
from compaction.cli.segments.shapes import (
    NAME_COLUMNS,
    PLAN_COLUMNS,
    RECEIPT_COLUMNS,
    compact_object,
    outlook_words,
    plan_object,
    plan_rows,
    recovery_object,
)
from compaction.exceptions import RecoveryBlockedError, RecoveryNeededError, SegmentLogError
from compaction.stores.segments import sweep
from compaction.stores.segments.commit import commit, fence, recovery
from compaction.stores.segments.commit.records import GroupReceipt, SegmentTombstone
from compaction.stores.segments.directory.faults import storage_errors
from compaction.stores.segments.directory.owner import doubt_of, look_for_owner, require_stopped
from compaction.stores.segments.format.names import MAX_SOURCES
from compaction.stores.segments.planning.limits import IndexesMissing, SegmentLimits
from compaction.stores.segments.planning.plan import GroupCheck, LogPlan, plan_log
from compaction.stores.segments.planning.unreferenced import known_live
from compaction.stores.segments.reading.view import LogState, open_log
from compaction.stores.segments.rewrite.compact import compact_groups
from compaction.stores.segments.snapshot.seq import LiveSet

HOLDER = "cli"
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Look:
    """A log as the command sees it: its state, what is live, and the plan."""

    log: LogState
    live: LiveSet
    plan: LogPlan
    limits: SegmentLimits
    policy: IndexesMissing


def planning_options(command: Command) -> Command:
    """The limits of a plan, and what a missing `indexes` file means; passed as the one argument `options`."""
    for option in reversed(
        (
            max_entries_option,
            max_bytes_option,
            click.option(
                "--max-sources",
                type=click.IntRange(1, MAX_SOURCES),
                default=MAX_SOURCES,
                show_default=True,
                help="Maximum number of segments to merge into one.",
            ),
            click.option(
                "--when-indexes-missing",
                type=click.Choice([policy.value for policy in IndexesMissing]),
                default=IndexesMissing.REFUSE.value,
                show_default=True,
                help="What a snapshot without its `indexes` file means: unknown, or nothing is live.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@log_options
@planning_options
@output_option()
def plan(*, directory: Path, snapshot: int | None, live: LiveSet | None, output: OutputFormat, **options: Any) -> None:
    """Say what compacting the log in DIR would do, and for every segment left alone, why. Changes nothing.

    Example: compactor segments plan /data/ra/LOG --snapshot 120 --live 1-5,9
    """
    if recovery.is_needed(directory):
        raise RecoveryNeededError(str(directory), tuple(outlook_words(recovery.outlook(directory))))
    look = _look(directory, snapshot, live, options)
    doubt = doubt_of(look_for_owner(directory))
    if output is not OutputFormat.TABLE:
        emit({**plan_object(look.log, look.plan), "refused": doubt or None}, output)
        return
    print_table(plan_rows(look.plan), PLAN_COLUMNS)
    click.echo(
        f"{look.plan.debt_segments} segments to rewrite or delete, {format_bytes(look.plan.debt_bytes)} of "
        f"{format_bytes(look.plan.total_bytes)} to gain"
    )
    if doubt:
        click.echo(f"but it would be refused now: {doubt}")


@click.command()
@log_options
@planning_options
@click.option("--phase", type=click.Choice(["1", "3"]), help="Only mark dead segments (1), or only rewrite groups (3).")
@click.option("--sweep", "sweeping", is_flag=True, help="Delete replaced data whose grace is over.")
@click.option(
    "--grace",
    type=DurationParameter(),
    default="10m",
    show_default=True,
    help="Grace: how long replaced names stay readable.",
)
@owner_stopped_option
@output_option()
@click.pass_context
def compact(
    context: click.Context,
    /,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    phase: str | None,
    sweeping: bool,
    grace: float,
    owner_stopped: bool,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Compact the log in DIR now: recover, plan, rewrite, verify, commit.

    Replaced segments stay readable under their old names; nothing is deleted without --sweep. A damaged segment is
    named, the other groups are compacted, and the exit code is 1. A log of a Ra system is refused unless its server was
    stopped cleanly.

    Example: compactor segments compact /data/ra/LOG --sweep --grace 0
    """
    ownership = ownership_of(owner_stopped=owner_stopped)
    require_stopped(directory, ownership)
    recovered = recovery.recover(directory, holder=HOLDER, ownership=ownership)
    recovered.require_settled(directory)
    look = _look(directory, snapshot, live, options)
    job = f"{HOLDER}-{secrets.token_hex(5)}"
    token = fence.high_water(directory, job) + 1
    fence.claim(directory, job=job, token=token, holder=HOLDER)
    receipts: list[GroupReceipt] = []
    failures: list[SegmentLogError] = []
    marked: tuple[SegmentTombstone, ...] = ()
    try:
        check = GroupCheck(look.log, look.live)
        if phase != "1":
            outcomes = compact_groups(
                directory,
                groups=[group.sources for group in look.plan.groups],
                check=check,
                live=look.live,
                limits=look.limits,
                job=job,
                token=token,
                holder=HOLDER,
                ownership=ownership,
            )
            receipts = [outcome for outcome in outcomes if isinstance(outcome, GroupReceipt)]
            failures = [outcome for outcome in outcomes if isinstance(outcome, SegmentLogError)]
        if phase != "3":
            names = _dead_outside_groups(look, rewriting=phase != "1")
            marked = _mark(
                directory, look, names, snapshot=snapshot, live=live, ownership=ownership, job=job, token=token
            )
    finally:
        fence.retire(directory, job)
    swept = _sweep(directory, snapshot, live, look.policy, ownership, grace) if sweeping else None
    result = compact_object(directory, job, recovered, receipts, marked, failures, swept)
    if output is OutputFormat.TABLE:
        _print_result(result)
    else:
        emit(result, output)
    for failure in failures:
        report(failure)
    if failures:
        context.exit(EXIT_DATA_ERROR)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@owner_stopped_option
@output_option()
@click.pass_context
def recover(context: click.Context, *, directory: Path, owner_stopped: bool, output: OutputFormat) -> None:
    """Finish or undo what a crash left half-done in the log in DIR, ours or Ra's own. Harmless on a healthy log.

    Where something is half-done, a log of a Ra system is refused unless its server was stopped cleanly. A segment that
    another process has changed since stays as it is. A file that may hold the only copy of an entry is kept and named;
    the exit code is then 1.
    """
    ownership = ownership_of(owner_stopped=owner_stopped)
    done = recovery.recover(directory, holder=HOLDER, ownership=ownership)
    result = recovery_object(done)
    if output is not OutputFormat.TABLE:
        emit({"log": str(directory), **result}, output)
    elif any(result.values()):
        for word, items in result.items():
            for item in items:
                click.echo(f"{word}: {item if isinstance(item, str) else ' '.join(map(str, item.values()))}")
    else:
        click.echo("nothing to recover")
    if done.kept:
        for kept in done.kept:
            report(RecoveryBlockedError(str(directory / kept.name), kept.reason))
        context.exit(EXIT_DATA_ERROR)


def _look(directory: Path, snapshot: int | None, live: LiveSet | None, options: dict[str, Any]) -> Look:
    require_snapshot_for_live(directory, snapshot, live)
    limits = SegmentLimits(
        max_entries=options["max_entries"], max_bytes=options["max_bytes"], max_sources=options["max_sources"]
    )
    policy = IndexesMissing(options["when_indexes_missing"])
    with storage_errors(directory):
        log = open_log(directory, snapshot_index=snapshot, live=live)
    awaiting = frozenset(tombstone.name for tombstone in fence.read(directory).tombstones)
    planned = plan_log(log, limits, awaiting_deletion=awaiting, indexes_missing=policy)
    return Look(log=log, live=known_live(log, policy), plan=planned, limits=limits, policy=policy)


def _dead_outside_groups(look: Look, *, rewriting: bool) -> list[str]:
    """Dead segments to mark: those that no group carries along, or all of them when no group is rewritten."""
    names = [segment.name for segment in look.plan.unreferenced]
    return names if rewriting else sorted({*names, *(name for g in look.plan.groups for name in g.carried)})


def _mark(
    directory: Path,
    look: Look,
    names: list[str],
    *,
    snapshot: int | None,
    live: LiveSet | None,
    ownership: Ownership,
    job: str,
    token: int,
) -> tuple[SegmentTombstone, ...]:
    return commit.commit_unreferenced(
        directory,
        job=job,
        token=token,
        names=names,
        holder=HOLDER,
        snapshot_index=snapshot,
        live=live,
        indexes_missing=look.policy,
        ownership=ownership,
    )


def _sweep(
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    policy: IndexesMissing,
    ownership: Ownership,
    grace: float,
) -> sweep.SweepReport:
    return sweep.sweep(
        directory,
        grace_seconds=grace,
        snapshot_index=snapshot,
        live=live,
        indexes_missing=policy,
        ownership=ownership,
        holder=HOLDER,
    )


def _print_result(result: dict[str, Any]) -> None:
    """The receipt table, then what waits for deletion and what was deleted."""
    if result["receipts"]:
        print_table(result["receipts"], RECEIPT_COLUMNS)
    if result["unreferenced"]:
        click.echo("marked for deletion:")
        print_table(result["unreferenced"], NAME_COLUMNS)
    if not result["receipts"] and not result["unreferenced"] and not result["failures"]:
        click.echo("nothing to compact")
    swept = result["swept"]
    if swept is not None:
        gained = format_bytes(swept["bytesReclaimed"])
        click.echo(f"\nswept: {len(swept['deleted'])} names deleted, {gained}; {swept['waiting']} wait for their grace")
        for item in swept["blocked"]:
            click.echo(f"kept: {item['name']}: {item['reason']}")
