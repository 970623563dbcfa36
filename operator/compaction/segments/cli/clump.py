"""`compactor segments plan --clump` and `compact --clump`: sparse live entries re-written side by side at the head of a
log whose owner is stopped.

As any `compact`, it claims a token of its own in the log's fence, so it excludes, and is excluded by, workers.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.lazy import describe
from compaction.cli.output import OutputColumn, OutputFormat, emit, print_pairs, print_table
from compaction.segments.cli.options import HOLDER, refuse_given
from compaction.segments.clump.clump_plan import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MIN_RANGES,
    DEFAULT_SHORTER_THAN,
    ClumpOptions,
    ClumpPlan,
    plan_clump,
)
from compaction.segments.clump.clump_run import ClumpResult, clump_log, require_stopped_owner
from compaction.segments.clump.moves import MoveReceipt
from compaction.segments.commit import fence
from compaction.segments.directory.fs import storage_errors
from compaction.segments.errors import ClumpRefusedError
from compaction.segments.format.names import moves_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log

Command = TypeVar("Command", bound=Callable[..., Any])
LEFT_OUT_COLUMNS = (
    OutputColumn("reason", "left out"),
    OutputColumn("runs", "runs", right=True),
    OutputColumn("entries", "entries", right=True),
    OutputColumn("bytes", "bytes", format_bytes, right=True),
    OutputColumn("first", "first index", right=True),
    OutputColumn("detail", "detail"),
)
RECEIPT_COLUMNS = (
    OutputColumn("output", "segment"),
    OutputColumn("first", "first", right=True),
    OutputColumn("last", "last", right=True),
    OutputColumn("entries", "entries", right=True),
    OutputColumn("payloadBytes", "bytes", format_bytes, right=True),
    OutputColumn("map", "map for the owner"),
)


_CLUMP_ONLY = ("owner_reads_maps", "shorter_than", "min_ranges", "budget")
_NOT_OF_A_CLUMP = ("snapshot", "live", "wal_dir", "max_sources", "when_indexes_missing", "phase")

_OPTIONS = (
    click.option(
        "--clump",
        "clumping",
        is_flag=True,
        help="Re-write sparse live entries side by side, behind the log's last index: under new indexes.",
    ),
    click.option(
        "--owner-reads-maps",
        is_flag=True,
        help="With --clump: the owner of a log in a Ra system reads the maps of moved entries, which Ra itself does "
        "not.",
    ),
    click.option(
        "--shorter-than",
        type=click.IntRange(2),
        default=DEFAULT_SHORTER_THAN,
        show_default=True,
        help="With --clump: re-write runs of fewer adjacent live entries than this.",
    ),
    click.option(
        "--min-ranges",
        type=click.IntRange(1),
        default=DEFAULT_MIN_RANGES,
        show_default=True,
        help="With --clump: skip unless the live set shrinks by this number of ranges.",
    ),
    click.option(
        "--budget",
        type=click.IntRange(1),
        default=DEFAULT_MAX_BYTES,
        show_default=True,
        help="With --clump: maximum payload bytes to write.",
    ),
)


def clump_options(command: Command) -> Command:
    """The option --clump and those that only it takes, passed to the command as `clump`; None without --clump.

    Wrong usage: one of these without --clump, and with it an option that says what the log's own snapshot has to say.
    """

    @functools.wraps(command)
    def run(
        *args: Any,
        clumping: bool,
        owner_reads_maps: bool,
        shorter_than: int,
        min_ranges: int,
        budget: int,
        **rest: Any,
    ) -> Any:
        if not clumping:
            refuse_given(_CLUMP_ONLY, "needs --clump")
            return command(*args, clump=None, **rest)
        refuse_given(_NOT_OF_A_CLUMP, "cannot be used with --clump")
        request = ClumpOptions(
            shorter_than=shorter_than, min_ranges=min_ranges, max_bytes=budget, owner_reads_maps=owner_reads_maps
        )
        return command(*args, clump=request, **rest)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


def compact_clump(
    directory: Path,
    request: ClumpOptions,
    limits: SegmentLimits,
    *,
    owner_stopped: bool,
    bytes_per_second: int | None,
    output: OutputFormat,
) -> None:
    """Re-write sparse live entries now, and print the receipts."""
    with storage_errors(directory):
        # Also checked behind the claim; but who is refused has not changed a byte.
        require_stopped_owner(
            open_log(directory), owner_stopped=owner_stopped, owner_reads_maps=request.owner_reads_maps
        )
    job = f"{HOLDER}-{secrets.token_hex(5)}"
    token = fence.claim_next(directory, job=job, holder=HOLDER)
    try:
        result = clump_log(
            directory,
            request=request,
            limits=limits,
            owner_stopped=owner_stopped,
            job=job,
            token=token,
            holder=HOLDER,
            bytes_per_second=bytes_per_second,
        )
    finally:
        fence.retire(directory, job)
    if output is OutputFormat.TABLE:
        _print_result(result)
    else:
        emit(result_object(directory, job, result), output)


def show_clump_plan(directory: Path, request: ClumpOptions, limits: SegmentLimits, output: OutputFormat) -> None:
    """Print what `compact_clump` would do, and why not more; the log has nothing half-done."""
    with storage_errors(directory):
        log = open_log(directory)
        plan = plan_clump(log, request, limits)
        try:
            require_stopped_owner(log, owner_stopped=True, owner_reads_maps=request.owner_reads_maps)
            refused = None
        except ClumpRefusedError as error:
            # A plan may be made while the owner runs; the refusal of a run is shown beside it.
            refused = describe(error)
    if output is not OutputFormat.TABLE:
        emit({"log": str(directory), **plan_object(plan), "refused": refused}, output)
        return
    _print_plan(plan)
    if refused is not None:
        click.echo(f"but it would be refused now: {refused}")


def plan_object(plan: ClumpPlan) -> dict[str, Any]:
    """The plan, for machines."""
    return {
        "snapshotIndex": plan.snapshot_index,
        "liveEntries": plan.live_entries,
        "rangesBefore": plan.ranges_before,
        "rangesAfter": plan.ranges_after,
        "entries": plan.entries,
        "payloadBytes": plan.bytes,
        "segments": [
            {"entries": len(part.old), "payloadBytes": part.bytes, "first": part.first, "last": part.last}
            for part in plan.rounds
        ],
        "freedSegments": plan.freed_segments,
        "freedBytes": plan.freed_bytes,
        "leftOut": [asdict(runs) | {"reason": runs.reason.value} for runs in plan.left_out],
    }


def result_object(directory: Path, job: str, result: ClumpResult) -> dict[str, Any]:
    """Return the result of a run as an object for json and yaml."""
    return {
        "log": str(directory),
        "job": job,
        "entries": sum(receipt.entries for receipt in result.receipts),
        "payloadBytes": sum(receipt.payload_bytes for receipt in result.receipts),
        "rangesBefore": result.plan.ranges_before,
        "rangesAfter": result.receipts[-1].ranges_after if result.receipts else result.plan.ranges_before,
        "receipts": [_receipt_row(receipt) for receipt in result.receipts],
        "leftOut": plan_object(result.plan)["leftOut"],
    }


def _receipt_row(receipt: MoveReceipt) -> dict[str, Any]:
    return {
        "token": receipt.token,
        "output": receipt.output,
        "outputBytes": receipt.output_bytes,
        "first": receipt.first,
        "last": receipt.last,
        "term": receipt.term,
        "entries": receipt.entries,
        "payloadBytes": receipt.payload_bytes,
        "fingerprint": receipt.fingerprint,
        "map": moves_name(receipt.first),
        "seconds": round(receipt.seconds, 6),
    }


def _print_plan(plan: ClumpPlan) -> None:
    print_pairs(
        [
            ("Live", f"{plan.live_entries} entries in {plural(plan.ranges_before, 'range')}"),
            (
                "Re-write",
                f"{plan.entries} entries, {format_bytes(plan.bytes)}, in {plural(len(plan.rounds), 'segment')}",
            ),
            ("Afterwards", f"{plural(plan.ranges_after, 'range')} at the owner's next snapshot"),
            ("Frees", f"{plural(plan.freed_segments, 'segment')}, {format_bytes(plan.freed_bytes)}"),
        ]
    )
    _print_left_out(plan)


def _print_left_out(plan: ClumpPlan) -> None:
    if plan.left_out:
        click.echo()
        print_table([asdict(runs) | {"reason": runs.reason.value} for runs in plan.left_out], LEFT_OUT_COLUMNS)


def _print_result(result: ClumpResult) -> None:
    if not result.receipts:
        click.echo("nothing to re-write")
        _print_left_out(result.plan)
        return
    print_table([_receipt_row(receipt) for receipt in result.receipts], RECEIPT_COLUMNS)
    moved = sum(receipt.entries for receipt in result.receipts)
    size = format_bytes(sum(receipt.payload_bytes for receipt in result.receipts))
    before, after = result.plan.ranges_before, result.receipts[-1].ranges_after
    click.echo(f"\n{moved} entries re-written, {size}; live ranges {before} before, {after} after")
    _print_left_out(result.plan)
