"""`compactor segments list`, `inspect` and `plan`: they look, they never change a byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.lazy import EXIT_DATA_ERROR, describe, report
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_pairs,
    print_table,
    stream,
)
from compaction.errors import CompactionError
from compaction.segments.cli.clump import clump_options, show_clump_plan
from compaction.segments.cli.options import (
    limits_of,
    log_options,
    planning_options,
    request_of,
    require_snapshot_for_live,
)
from compaction.segments.cli.shapes import PLAN_COLUMNS, outlook_words, plan_object, plan_rows
from compaction.segments.clump.clump_plan import ClumpOptions, mean_run
from compaction.segments.commit import recovery
from compaction.segments.directory.owner import OwnerSigns, doubt_of, hazard_in, look_for_owner
from compaction.segments.errors import CorruptEntryError, CorruptIndexesError, LiveSetUnknownError, RecoveryNeededError
from compaction.segments.model import SegmentIndex
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits, damage_of
from compaction.segments.reading.reader import hidden_errors, iter_entries, read_batches
from compaction.segments.reading.view import LogScan, LogState, SegmentRef, scan_log
from compaction.segments.rewriting.compact import plan_now
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import read_cut


def _span(bounds: list[int] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]}-{bounds[1]}"


SEGMENT_COLUMNS = (
    OutputColumn("name", "segment"),
    OutputColumn("state", "state"),
    OutputColumn("version", "version", optional, right=True),
    OutputColumn("maxCount", "maxcount", optional, right=True),
    OutputColumn("entries", "entries", optional, right=True),
    OutputColumn("range", "range", _span),
    OutputColumn("readable", "readable", _span),
    OutputColumn("liveEntries", "live", optional, right=True),
    OutputColumn("liveBytes", "live bytes", optional_bytes, right=True),
    OutputColumn("dataBytes", "data bytes", optional_bytes, right=True),
    OutputColumn("linkTarget", "link target", optional),
)
ENTRY_COLUMNS = tuple(OutputColumn(key, key) for key in ("index", "term", "length", "crc32", "sha256", "file"))
_MAX_RANGES_SHOWN = 20


@click.command()
@log_options
@click.option("--verify", is_flag=True, help="Also read every payload and compare it with its checksum.")
@output_option()
@click.pass_context
def inspect(
    context: click.Context,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    verify: bool,
    output: OutputFormat,
) -> None:
    """Show the segments of the log in DIR, its snapshot, its live indexes and its debt.

    Corrupt files are named and the others still shown; the exit code is then 1.
    """
    require_snapshot_for_live(directory, snapshot, live)
    scan = scan_log(directory, snapshot_index=snapshot, live=live, wal_directory=wal_dir)
    torn = {error.file: error for error in _torn_records(scan.log)}
    damaged = [error for error in damage_of(scan.log) if error.file not in torn]
    errors: list[CompactionError] = [*scan.errors, *torn.values(), *damaged]
    if verify:
        for _ in read_batches(scan.log, on_corrupt=errors.append):
            pass
    half_done = _half_done(directory, errors)
    if verify:
        errors += [scan.log.entries_missing()] if scan.log.missing else []
        cut = read_cut(directory)
        errors += hidden_errors(scan.log, cut=None if cut is None else cut.first)
    given = {"snapshot_given": snapshot is not None, "live_given": live is not None}
    result = _describe(scan, errors, look_for_owner(directory), **given, verified=verify)
    result["halfDone"] = half_done
    if output is OutputFormat.TABLE:
        _print(result)
    else:
        emit(result, output)
    for error in errors:
        report(error)
    if errors:
        context.exit(EXIT_DATA_ERROR)


@click.command("list")
@log_options
@click.option(
    "--live-only", is_flag=True, help="Only entries that compaction keeps: live ones, and all above the snapshot."
)
@output_option(default=OutputFormat.JSONL, jsonl=True)
@click.pass_context
def list_command(
    context: click.Context,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    live_only: bool,
    output: OutputFormat,
) -> None:
    """Print every readable entry of the log in DIR in index order: index, term, length, crc32, sha256, file.

    An entry that cannot be read is named on stderr, the others are still printed; the exit code is then 1.
    """
    require_snapshot_for_live(directory, snapshot, live)
    scan = scan_log(directory, snapshot_index=snapshot, live=live, wal_directory=wal_dir)
    for fatal in scan.errors:
        if not scan.log.segments or (live_only and isinstance(fatal, CorruptIndexesError)):
            raise fatal
    errors: list[CompactionError] = list(scan.errors)
    stream(_entry_rows(scan.log, errors, live_only=live_only), output, columns=ENTRY_COLUMNS)
    if live_only and scan.log.missing:
        errors.append(scan.log.entries_missing())
    for error in errors:
        report(error)
    if errors:
        context.exit(EXIT_DATA_ERROR)


def _entry_rows(log: LogState, errors: list[CompactionError], *, live_only: bool) -> Iterator[dict[str, Any]]:
    for entry in iter_entries(log, live_only=live_only, on_corrupt=errors.append):
        yield {
            "index": entry.index,
            "term": entry.term,
            "length": entry.length,
            "crc32": entry.crc32,
            "sha256": hashlib.sha256(entry.payload).hexdigest(),
            "file": entry.file,
        }


def _half_done(directory: Path, errors: list[CompactionError]) -> list[str]:
    """Describe the leftovers of a crash by what a recovery would do about them."""
    try:
        if not recovery.is_needed(directory):
            return []
        stopped = " --owner-stopped" if doubt_of(look_for_owner(directory)) else ""
        settled = f"it is settled by `compactor segments sweep {directory} --apply{stopped}`"
        return outlook_words(recovery.outlook(directory)) or [settled]
    except CompactionError as error:
        # Shown with the other errors: what can be read of the log is shown all the same.
        errors.append(error)
        return []


def _torn_records(log: LogState) -> Iterator[CorruptEntryError]:
    """Readable records whose payload is not wholly in the file: one error per segment, for the first of them."""
    for ref in log.refs:
        segment = log.segment(ref.name)
        rows = log.readable(ref)
        outside = rows[~segment.inside[rows]]
        if outside.size:
            row = int(outside[0])
            reason = f"{outside.size} readable record(s) point outside the file of {segment.identity.size} bytes"
            yield CorruptEntryError(str(segment.path), int(segment.idx[row]), int(segment.offset[row]), reason)


def _describe(
    scan: LogScan,
    errors: list[CompactionError],
    signs: OwnerSigns,
    *,
    snapshot_given: bool,
    live_given: bool,
    verified: bool,
) -> dict[str, Any]:
    log = scan.log
    live = _live(log, given=live_given)
    return {
        "directory": str(log.directory),
        "segments": _segment_rows(scan, errors, verified=verified),
        "verified": verified,
        "snapshot": _snapshot(log, given=snapshot_given),
        "live": live and live | {"missing": len(log.missing)},
        "owner": _owner(signs, log.directory),
        "debt": _debt(scan),
        "rejectedSnapshots": [describe(error) for error in log.rejected_snapshots],
        "errors": [describe(error) for error in errors],
    }


def _owner(signs: OwnerSigns, directory: Path) -> dict[str, Any] | None:
    """None where nothing speaks of a Ra system."""
    if not signs.is_ra_system:
        return None
    doubt = doubt_of(signs)
    if doubt and (hazard := hazard_in(directory)):
        doubt = f"{doubt}; do not start it: {hazard}"
    return {"stopped": not doubt, "reason": doubt or None}


def _segment_rows(scan: LogScan, errors: list[CompactionError], *, verified: bool) -> list[dict[str, Any]]:
    """One row per segment name, in name order: files, links and what could not be parsed. `errors`:
    all that was found, in payloads too.
    """
    log = scan.log
    refs = {ref.name: ref for ref in log.refs}
    rows = [_segment_row(log, segment, refs.get(segment.name), verified=verified) for segment in log.segments]
    rows += [
        _blank_row(name, "Link" if (log.directory / name).exists() else "DanglingLink") | {"linkTarget": target}
        for name, target in log.links.items()
    ]
    known = {row["name"]: row for row in rows}
    for error in errors:
        file = getattr(error, "file", None)
        if isinstance(file, str) and file.endswith(".segment"):
            known.setdefault(Path(file).name, _blank_row(Path(file).name, ""))["state"] = "Corrupt"
    return sorted(known.values(), key=lambda row: str(row["name"]))


def _segment_row(log: LogState, segment: SegmentIndex, ref: SegmentRef | None, *, verified: bool) -> dict[str, Any]:
    """Only a segment whose payloads were compared with their checksums is called readable."""
    state = "Empty" if not segment.count else "Overwritten" if ref is None else "Readable" if verified else "Unverified"
    row = _blank_row(segment.name, state)
    row |= {
        "version": segment.version,
        "maxCount": segment.max_count,
        "entries": segment.count,
        "dataBytes": segment.data_bytes,
        "fileBytes": segment.identity.size,
    }
    if segment.count:
        row["range"] = [segment.first, segment.last]
    if ref is not None:
        row["readable"] = [ref.first, ref.last]
    if ref is None:
        row |= {"liveEntries": 0, "liveBytes": 0}
    elif log.snapshot_index is None or log.live is not None:
        rows = log.readable(ref)
        rows = rows[log.live_mask(segment.idx[rows])]
        row |= {"liveEntries": int(rows.size), "liveBytes": int(segment.length[rows].sum(dtype=np.uint64))}
    return row


def _blank_row(name: str, state: str) -> dict[str, Any]:
    keys = ("version", "maxCount", "entries", "range", "readable", "liveEntries", "liveBytes", "dataBytes", "fileBytes")
    return {"name": name, "state": state, **dict.fromkeys(keys), "linkTarget": None}


def _snapshot(log: LogState, *, given: bool) -> dict[str, Any] | None:
    if log.snapshot_index is None:
        return None
    found = log.snapshot if log.snapshot and log.snapshot.index == log.snapshot_index else None
    return {
        "index": log.snapshot_index,
        "term": found.term if found else None,
        "path": str(found.path) if found else None,
        "source": "option" if given else "directory",
    }


def _live(log: LogState, *, given: bool) -> dict[str, Any] | None:
    """None without a snapshot (then everything is live); `ranges` None when unknown."""
    if log.snapshot_index is None:
        return None
    known = log.live is not None
    return {
        "known": known,
        "entries": len(log.live) if log.live is not None else None,
        "ranges": str(log.live) if log.live is not None else None,
        "rangeCount": log.live.bounds[0].size if log.live is not None else None,
        "meanRun": round(mean_run(log.live), 3) if log.live is not None else None,
        "source": "option" if given else "directory" if known else None,
    }


def _debt(scan: LogScan) -> dict[str, Any]:
    """Return what a compaction with the default limits would reclaim; with a reason when that cannot be said."""
    unknown = {"bytes": None, "segments": None, "groups": None, "unreferenced": None}
    if scan.errors:
        return unknown | {"reason": "the log has corrupt files"}
    try:
        plan = plan_log(scan.log, SegmentLimits())
    except LiveSetUnknownError as error:
        return unknown | {"reason": describe(error)}
    return {
        "bytes": plan.debt_bytes,
        "segments": plan.debt_segments,
        "groups": len(plan.groups),
        "unreferenced": len(plan.unreferenced),
        "reason": None,
    }


def _print(result: dict[str, Any]) -> None:
    print_table(result["segments"], SEGMENT_COLUMNS)
    snapshot, live, debt = result["snapshot"], result["live"], result["debt"]
    pairs = [("Snapshot", "none: every entry is live")]
    if snapshot is not None:
        term = f", term {snapshot['term']}" if snapshot["term"] is not None else ""
        pairs = [("Snapshot", f"index {snapshot['index']}{term} ({snapshot['source']})")]
        ranges = "UNKNOWN: the snapshot has no readable `indexes` file; say what is live with --live"
        if live["known"]:
            ranges = f"{live['entries']} at {_shorten(live['ranges'])}" if live["entries"] else "nothing"
        pairs.append(("Live", ranges))
        if live["entries"]:
            sparse = f"{live['rangeCount']}, of {live['meanRun']:.1f} neighbours on average"
            pairs.append(("Ranges", sparse))
        if live["missing"]:
            pairs.append(("Missing", f"{plural(live['missing'], 'live entry', 'live entries')} in no readable segment"))
    pairs += [("Half-done", text) for text in result["halfDone"]]
    pairs += [("Ignored snapshot", text) for text in result["rejectedSnapshots"]]
    if result["owner"] is not None:
        pairs.append(("Owner", result["owner"]["reason"] or "stopped"))
    if not result["verified"]:
        pairs.append(("Payloads", "not checked; --verify compares each with its checksum"))
    debt_text = f"unknown: {debt['reason']}"
    if debt["reason"] is None:
        debt_text = (
            f"{format_bytes(debt['bytes'])} in {plural(debt['segments'], 'segment')} "
            f"({plural(debt['groups'], 'group')} to rewrite, {plural(debt['unreferenced'], 'segment')} to delete)"
        )
    pairs.append(("Debt", debt_text))
    click.echo()
    print_pairs(pairs)


def _shorten(ranges: str) -> str:
    parts = ranges.split(",")
    if len(parts) <= _MAX_RANGES_SHOWN:
        return ranges
    return ",".join(parts[:_MAX_RANGES_SHOWN]) + f",... ({len(parts)} ranges; all with -o json)"


# `compactor segments plan`: the same plan that a worker makes, on one directory.


@click.command()
@log_options
@planning_options
@clump_options
@output_option()
def plan(
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    clump: ClumpOptions | None,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Show what `compact` would do to the log in DIR, and for every segment left alone, why. Changes nothing.

    With --clump: what `compact --clump` would re-write, and for every run of live entries left alone, why.

    Example: compactor segments plan /data/ra/LOG --snapshot 120 --live 1-5,9
    """
    if recovery.is_needed(directory):
        outlook = tuple(outlook_words(recovery.outlook(directory)))
        raise RecoveryNeededError(str(directory), outlook, doubt_of(look_for_owner(directory)))
    if clump is not None:
        show_clump_plan(directory, clump, limits_of(options), output)
        return
    require_snapshot_for_live(directory, snapshot, live)
    planned = plan_now(directory, request_of(snapshot, live, wal_dir, options))
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
