"""`compactor segments verify`: everything that a log, or a system of logs, holds is read and compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.formatting import plural
from compaction.cli.errors import EXIT_DATA_ERROR, report_all, warn
from compaction.cli.output import Column, OutputFormat, emit, optional, optional_bytes, output_option, print_table
from compaction.cli.progress_bar import ProgressBar
from compaction.segments.checking.facts import LogFacts, SystemFacts
from compaction.segments.checking.reading import read_facts
from compaction.segments.checking.rules import Problem
from compaction.segments.checking.run import log_problems, payload_bytes, system_problems
from compaction.segments.cli.options import described_snapshot, log_options
from compaction.segments.directory.faults import storage_errors
from compaction.segments.snapshot.seq import LiveSet

_LOGS: Final = (
    Column("log", "log"),
    Column("verified", "verified"),
    Column("segments", "segments", right=True),
    Column("entries", "entries", right=True),
    Column("payloadBytes", "payload", optional_bytes, right=True),
    Column("waiting", "in wal", right=True),
    Column("snapshotIndex", "snapshot", optional, right=True),
    Column("liveEntries", "live", optional, right=True),
    Column("problems", "problems", right=True),
)


@click.command()
@log_options
@output_option()
@click.pass_context
def verify(
    context: click.Context,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    output: OutputFormat,
) -> None:
    """Read everything of the log, or of the system of logs, in DIR: the checksum of every payload, every live entry,
    segments, links, half-done compactions, snapshots, the write-ahead log, and each against the others.

    Reads only, also while an owner writes and a compactor compacts. Each problem is a sentence on stderr that names the
    object and what to do; the exit code is then 1. What is harmless is a warning.

    Example: compactor segments verify system
    """
    described = described_snapshot(directory, snapshot, live)
    with storage_errors(directory), ProgressBar("logs") as bar:
        facts = read_facts(directory, described=described, wal_directory=wal_dir)
        rows, problems = _verified(facts, bar)
    hard = [problem for problem in problems if not problem.note]
    if output is not OutputFormat.TABLE:
        emit(_object(facts, rows, problems), output)
    else:
        print_table(rows, _LOGS)
        entries, waiting = (sum(row[key] for row in rows) for key in ("entries", "waiting"))
        read = f"{plural(entries, 'entry', 'entries')} in segments and {waiting} in the write-ahead log"
        click.echo(f"\n{plural(len(rows), 'log')} with {read}: {plural(len(hard), 'problem')}")
    if output is OutputFormat.TABLE:
        for problem in problems:
            if problem.note:
                warn(problem.sentence)
    report_all([problem.sentence for problem in hard])
    if hard:
        context.exit(EXIT_DATA_ERROR)


def _verified(facts: SystemFacts, bar: ProgressBar) -> tuple[list[dict[str, Any]], list[Problem]]:
    """A row for each log, and all problems; progress is shown by the bytes of payload."""
    rows, problems = [], list(system_problems(facts))
    for log in facts.logs:
        bar.note(log.name, payload_bytes(log), 0)
    bar.say("reading payloads")
    for log in facts.logs:
        own = list(_noted(log, bar))
        rows.append(_row(log, own))
        problems += own
    return rows, problems


def _noted(log: LogFacts, bar: ProgressBar) -> Iterator[Problem]:
    size, read = payload_bytes(log), 0

    def on_bytes(count: int) -> None:
        nonlocal read
        read += count
        bar.note(log.name, size, min(99, read * 100 // max(1, size)))

    yield from log_problems(log, on_bytes)
    bar.note(log.name, size, 100)


def _row(log: LogFacts, problems: list[Problem]) -> dict[str, Any]:
    count = sum(not problem.note for problem in problems)
    row = log.row
    return {
        "log": log.name,
        "verified": "WRONG" if count else "right",
        "segments": len(log.state.segments),
        "entries": sum(int(log.state.readable(ref).size) for ref in log.state.refs),
        "payloadBytes": payload_bytes(log),
        "waiting": len(log.waiting or {}),
        "snapshotIndex": row.snapshot_index,
        "liveEntries": None if row.live is None else len(row.live),
        "problems": count,
    }


def _object(facts: SystemFacts, rows: list[dict[str, Any]], problems: list[Problem]) -> dict[str, Any]:
    return {
        "directory": str(facts.directory),
        "logs": rows,
        "wal": [wal.path.name for wal in facts.wal],
        "problems": [problem_object(problem) for problem in problems if not problem.note],
        "notes": [problem_object(problem) for problem in problems if problem.note],
    }


def problem_object(problem: Problem) -> dict[str, Any]:
    """A problem with its rule, for machines."""
    return {
        "rule": str(problem.rule),
        "path": problem.path,
        "sentence": problem.sentence,
        "window": None if problem.window is None else str(problem.window),
    }
