"""`compactor segments clump`: re-write sparse live entries side by side at the head of a log whose owner is stopped.

Like `compact`, it claims a token of its own in the log's fence, so it excludes, and is excluded by, workers.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.lazy import describe
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_pairs, print_table
from compaction.segments.cli.options import (
    max_bytes_option,
    max_bytes_per_second_option,
    max_entries_option,
    owner_stopped_option,
)
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
from compaction.segments.commit import fence, recovery
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import doubt_of, look_for_owner
from compaction.segments.errors import ClumpRefusedError, RecoveryNeededError
from compaction.segments.format.names import moves_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log

HOLDER = "cli"
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


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--plan", "--dry-run", "planning", is_flag=True, help="Dry run: show what would change, and what is left out."
)
@owner_stopped_option
@click.option(
    "--owner-reads-maps",
    is_flag=True,
    help="The owner of a log in a Ra system reads the maps of moved entries, which Ra itself does not.",
)
@click.option(
    "--shorter-than",
    type=click.IntRange(2),
    default=DEFAULT_SHORTER_THAN,
    show_default=True,
    help="Re-write runs of fewer adjacent live entries than this.",
)
@click.option(
    "--min-ranges",
    type=click.IntRange(1),
    default=DEFAULT_MIN_RANGES,
    show_default=True,
    help="Skip unless the live set shrinks by this number of ranges.",
)
@click.option(
    "--budget",
    type=click.IntRange(1),
    default=DEFAULT_MAX_BYTES,
    show_default=True,
    help="Maximum payload bytes to write.",
)
@max_entries_option
@max_bytes_option
@max_bytes_per_second_option
@output_option()
def clump(
    *,
    directory: Path,
    planning: bool,
    owner_stopped: bool,
    owner_reads_maps: bool,
    shorter_than: int,
    min_ranges: int,
    budget: int,
    max_entries: int,
    max_bytes: int,
    max_bytes_per_second: int | None,
    output: OutputFormat,
) -> None:
    """Re-write sparse live entries of the log in DIR side by side, behind its last index.

    The copies have new indexes. The log's owner finds them in the `*.moves` files, which it must read whenever it opens
    the log; do not use this on the log of an owner that does not (Ra 3.1.10 does not). The old entries are dead then:
    `compactor segments compact DIR` reclaims them.

    Example: compactor segments clump /data/ra/LOG --plan
    """
    request = ClumpOptions(
        shorter_than=shorter_than, min_ranges=min_ranges, max_bytes=budget, owner_reads_maps=owner_reads_maps
    )
    limits = SegmentLimits(max_entries=max_entries, max_bytes=max_bytes)
    if planning:
        _show_plan(directory, request, limits, output)
        return
    with storage_errors(directory):
        # Also checked behind the claim; but who is refused has not changed a byte.
        require_stopped_owner(open_log(directory), owner_stopped=owner_stopped, owner_reads_maps=owner_reads_maps)
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
            bytes_per_second=max_bytes_per_second,
        )
    finally:
        fence.retire(directory, job)
    if output is OutputFormat.TABLE:
        _print_result(result)
    else:
        emit(result_object(directory, job, result), output)


def _show_plan(directory: Path, request: ClumpOptions, limits: SegmentLimits, output: OutputFormat) -> None:
    if recovery.is_needed(directory):
        raise RecoveryNeededError(str(directory), doubt=doubt_of(look_for_owner(directory)))
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
