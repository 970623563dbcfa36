"""`compactor segments compact` and `debug generate`, on one directory and without a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from compaction.api.text.printing import format_bytes
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, emit, output_option, print_table
from compaction.segments.cli.clump import clump_options, compact_clump
from compaction.segments.cli.options import (
    limits_of,
    log_options,
    max_bytes_per_second_option,
    owner_stopped_option,
    ownership_of,
    planning_options,
    request_of,
    require_snapshot_for_live,
)
from compaction.segments.cli.shapes import (
    NAME_COLUMNS,
    RECEIPT_COLUMNS,
    compact_object,
)
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.model import MAX_COUNT_LIMIT
from compaction.segments.rewriting.compact import compact_log
from compaction.segments.snapshot.live_indexes import LiveSet

# `compactor segments compact`: the same library path a worker takes, on one directory.
#
# It claims a token of its own in the log's fence, so it excludes, and is excluded by, workers and other runs
# like any other attempt.

Command = TypeVar("Command", bound=Callable[..., Any])


@click.command()
@log_options
@planning_options
@click.option("--phase", type=click.Choice(["1", "3"]), help="Only mark dead segments (1), or only rewrite groups (3).")
@max_bytes_per_second_option
@owner_stopped_option
@clump_options
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
    max_bytes_per_second: int | None,
    owner_stopped: bool,
    clump: ClumpOptions | None,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Compact the log in DIR now: recover, plan, rewrite, verify, commit.

    Replaced segments stay readable under their old names until `sweep --apply` deletes them. A damaged
    segment is named, the other groups are compacted, and the exit code is 1. A log of a Ra system is refused unless its
    server was stopped cleanly. Where an owner writes meanwhile, --max-bytes-per-second 64M makes fewer of its appends
    wait.

    With --clump sparse live entries are written again side by side, behind the log's last index. The copies have new
    indexes. The log's owner finds them in the `*.moves` files, which it must read whenever it opens the log; do not use
    this on the log of an owner that does not (Ra 3.1.10 does not). The old entries are dead then: another `compact`
    reclaims them.

    Example: compactor segments compact /data/ra/LOG
    """
    if clump is not None:
        pace = max_bytes_per_second
        limits = limits_of(options)
        compact_clump(directory, clump, limits, owner_stopped=owner_stopped, bytes_per_second=pace, output=output)
        return
    require_snapshot_for_live(directory, snapshot, live)
    request = replace(
        request_of(snapshot, live, wal_dir, options),
        ownership=ownership_of(owner_stopped=owner_stopped),
        rewriting=phase != "1",
        marking=phase != "3",
        bytes_per_second=max_bytes_per_second,
    )
    done = compact_log(directory, request)
    result = compact_object(directory, done)
    if output is OutputFormat.TABLE:
        _print_result(result)
    else:
        emit(result, output)
    for failure in done.failures:
        report(failure)
    if done.failures:
        context.exit(EXIT_DATA_ERROR)


def _print_result(result: dict[str, Any]) -> None:
    """The receipt table, then what waits for deletion."""
    if result["receipts"]:
        print_table(result["receipts"], RECEIPT_COLUMNS)
    if result["unreferenced"]:
        click.echo("marked for deletion:")
        print_table(result["unreferenced"], NAME_COLUMNS)
    if not result["receipts"] and not result["unreferenced"] and not result["failures"]:
        click.echo("nothing to compact")


# `compactor segments debug generate`: a log to try the other commands on.

LARGEST_PAYLOAD = 64 << 20


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--segments", type=click.IntRange(1, 10_000), default=6, show_default=True, help="Number of segments.")
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
    help="Arrangement of live entries among dead ones.",
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

    Example: compactor segments debug generate log-a --segments 6
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
