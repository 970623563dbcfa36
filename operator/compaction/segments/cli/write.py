"""`compactor segments plan`, `compact`, `recover` and `generate`, on one directory and without a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from compaction.api.text.printing import format_bytes
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, emit, output_option, print_table
from compaction.cli.values import DurationParameter
from compaction.segments import sweep
from compaction.segments.cli.options import (
    log_options,
    max_bytes_option,
    max_bytes_per_second_option,
    max_entries_option,
    owner_stopped_option,
    ownership_of,
    require_snapshot_for_live,
)
from compaction.segments.cli.shapes import (
    NAME_COLUMNS,
    PLAN_COLUMNS,
    RECEIPT_COLUMNS,
    compact_object,
    outlook_words,
    plan_object,
    plan_rows,
    recovery_object,
)
from compaction.segments.commit import recovery
from compaction.segments.directory.owner import doubt_of, look_for_owner
from compaction.segments.errors import RecoveryBlockedError, RecoveryNeededError
from compaction.segments.format.names import MAX_SOURCES
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.model import MAX_COUNT_LIMIT
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.rewriting.compact import CompactionRequest, compact_log, plan_now
from compaction.segments.snapshot.live_indexes import LiveSet

# `compactor segments plan`, `compact` and `recover`: the same library path a worker takes, on one directory.
#
# `compact` claims a token of its own in the log's fence, so it excludes, and is excluded by, workers and other runs
# like any other attempt.

HOLDER = "cli"
Command = TypeVar("Command", bound=Callable[..., Any])


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
def plan(
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Say what compacting the log in DIR would do, and for every segment left alone, why. Changes nothing.

    Example: compactor segments plan /data/ra/LOG --snapshot 120 --live 1-5,9
    """
    if recovery.is_needed(directory):
        outlook = tuple(outlook_words(recovery.outlook(directory)))
        raise RecoveryNeededError(str(directory), outlook, doubt_of(look_for_owner(directory)))
    require_snapshot_for_live(directory, snapshot, live)
    planned = plan_now(directory, _request(snapshot, live, wal_dir, options))
    doubt = doubt_of(look_for_owner(directory))
    if output is not OutputFormat.TABLE:
        emit({**plan_object(planned.log, planned.plan), "refused": doubt or None}, output)
        return
    print_table(plan_rows(planned.plan), PLAN_COLUMNS)
    click.echo(
        f"{planned.plan.debt_segments} segments to rewrite or delete, {format_bytes(planned.plan.debt_bytes)} of "
        f"{format_bytes(planned.plan.total_bytes)} to gain"
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
@max_bytes_per_second_option
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
    wal_dir: Path | None,
    phase: str | None,
    sweeping: bool,
    grace: float,
    max_bytes_per_second: int | None,
    owner_stopped: bool,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Compact the log in DIR now: recover, plan, rewrite, verify, commit.

    Replaced segments stay readable under their old names; nothing is deleted without --sweep. A damaged segment is
    named, the other groups are compacted, and the exit code is 1. A log of a Ra system is refused unless its server was
    stopped cleanly. Where an owner writes meanwhile, --max-bytes-per-second 64M makes fewer of its appends wait.

    Example: compactor segments compact /data/ra/LOG --sweep --grace 0
    """
    require_snapshot_for_live(directory, snapshot, live)
    request = replace(
        _request(snapshot, live, wal_dir, options),
        ownership=ownership_of(owner_stopped=owner_stopped),
        rewriting=phase != "1",
        marking=phase != "3",
        bytes_per_second=max_bytes_per_second,
    )
    done = compact_log(directory, request)
    swept = _sweep(directory, request, grace) if sweeping else None
    result = compact_object(directory, done, swept)
    if output is OutputFormat.TABLE:
        _print_result(result)
    else:
        emit(result, output)
    for failure in done.failures:
        report(failure)
    if done.failures:
        context.exit(EXIT_DATA_ERROR)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@owner_stopped_option
@output_option()
@click.pass_context
def recover(context: click.Context, *, directory: Path, owner_stopped: bool, output: OutputFormat) -> None:
    """Finish or undo what a crash left half-done in the log in DIR, ours or Ra's own. Harmless on a healthy log.

    Where something is half-done, a log of a Ra system is refused unless its server was stopped cleanly. With
    --owner-stopped, outputs of attempts (.partial) go as well: an attempt that still runs ends there. A segment that
    another process has changed since stays as it is. A file that may hold the only copy of an entry is kept and named;
    the exit code is then 1.
    """
    ownership = ownership_of(owner_stopped=owner_stopped)
    done = recovery.recover(directory, holder=HOLDER, ownership=ownership, discard_partials=owner_stopped)
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


def _request(
    snapshot: int | None, live: LiveSet | None, wal_dir: Path | None, options: dict[str, Any]
) -> CompactionRequest:
    limits = SegmentLimits(
        max_entries=options["max_entries"], max_bytes=options["max_bytes"], max_sources=options["max_sources"]
    )
    missing = IndexesMissing(options["when_indexes_missing"])
    return CompactionRequest(HOLDER, limits, snapshot, live, missing, wal_directory=wal_dir)


def _sweep(directory: Path, request: CompactionRequest, grace: float) -> sweep.SweepReport:
    return sweep.sweep(
        directory,
        grace_seconds=grace,
        snapshot_index=request.snapshot_index,
        live=request.live,
        indexes_missing=request.indexes_missing,
        wal_directory=request.wal_directory,
        ownership=request.ownership,
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


# `compactor segments generate`: a log to try the other commands on.

LARGEST_PAYLOAD = 64 << 20


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--segments", type=click.IntRange(1, 10_000), default=6, show_default=True, help="How many segments.")
@click.option(
    "--entries",
    type=click.IntRange(1, MAX_COUNT_LIMIT),
    default=512,
    show_default=True,
    help="Entries in each segment.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(7, LARGEST_PAYLOAD),
    default=256,
    show_default=True,
    help="Bytes of each entry.",
)
@click.option(
    "--live", type=click.FloatRange(0, 1), default=0.25, show_default=True, help="Fraction of the entries that live."
)
@click.option(
    "--pattern",
    type=click.Choice([item.value for item in Pattern]),
    default=Pattern.STRIDED.value,
    show_default=True,
    help="How live entries lie among dead ones.",
)
@output_option()
def generate(
    *,
    directory: Path,
    segments: int,
    entries: int,
    payload_bytes: int,
    live: float,
    pattern: str,
    output: OutputFormat,
) -> None:
    """Write a log with a snapshot into DIR, which holds no segment yet. The same options write the same bytes.

    Example: compactor segments generate log-a --segments 6
    """
    made = generate_log(
        directory,
        pattern=pattern,
        segments=segments,
        entries_per_segment=entries,
        payload_bytes=payload_bytes,
        live_fraction=live,
    )
    found: dict[str, Any] = {
        "log": str(directory),
        "segments": segments,
        "entries": made.entries,
        "payloadBytes": made.payload_bytes,
        "snapshotIndex": made.snapshot_index,
        "liveEntries": len(made.live),
    }
    if output is not OutputFormat.TABLE:
        emit(found, output)
        return
    click.echo(
        f"{directory}: {segments} segments with {made.entries} entries, {format_bytes(made.payload_bytes)}; "
        f"the snapshot at index {made.snapshot_index} keeps {len(made.live)} of them live"
    )
