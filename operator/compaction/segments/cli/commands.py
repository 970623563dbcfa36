"""`compactor segments`: segment logs as plain directories, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("compaction.segments.cli.read:list_command", "Print every readable entry in index order."),
    "inspect": ("compaction.segments.cli.read:inspect", "Show the segments of a log, its snapshot and its debt."),
    "plan": ("compaction.segments.cli.read:plan", "Show what `compact` would do to a log, and why not more."),
    "compact": ("compaction.segments.cli.write:compact", "Compact a log now."),
    "verify": (
        "compaction.segments.cli.verify:verify",
        "Read everything of a log or a system, and name what is wrong.",
    ),
    "sweep": (
        "compaction.segments.cli.sweeping:sweep_command",
        "Show what is half-done and what replaced data waits; with --apply settle and delete it.",
    ),
    "debug": ("compaction.segments.cli.commands:debug", "Write logs and systems of logs, and watch them."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""
DEBUG_COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("compaction.segments.cli.write:generate", "Write a log to try the other commands on."),
    "exec": (
        "compaction.segments.cli.exec:exec_command",
        "Carry out operations on a system of logs, line by line.",
    ),
    "wal": ("compaction.segments.cli.wal:wal_command", "Show the write-ahead log of a system: files, writers, damage."),
    "follow": (
        "compaction.segments.cli.wal:follow",
        "Show what is written, rolled, compacted and live, as it happens.",
    ),
}


class SegmentsGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=SegmentsGroup, name="segments", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Inspect segment logs in Ra's format; plan, compact, verify and sweep them.

    Exit codes: 0 done, 1 an error in the data (named on stderr), 2 wrong usage.
    """


class SegmentsDebugGroup(LazyGroup):
    """Imports its commands on demand."""

    commands_by_name = DEBUG_COMMANDS


@click.group(cls=SegmentsDebugGroup, name="debug")
def debug() -> None:
    """Write logs and systems of logs, and watch them: for those who write an owner, or look for a defect."""
