"""`compactor segments`: segment logs as plain directories, without Kubernetes and without Spark.

Reading commands are in segments_read, writing ones in segments_write; each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "inspect": ("compaction.segments.cli.read:inspect", "Show the segments of a log, its snapshot and its debt."),
    "entries": ("compaction.segments.cli.read:entries", "Print every readable entry, in index order."),
    "plan": ("compaction.segments.cli.write:plan", "Say what a compaction would do, and why not more."),
    "compact": ("compaction.segments.cli.write:compact", "Compact a log now."),
    "clump": ("compaction.segments.cli.clump:clump", "Re-write sparse live entries side by side at the head."),
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
    "verify": (
        "compaction.segments.cli.verify:verify",
        "Read everything of a log or a system, and name what is wrong.",
    ),
    "conformance": (
        "compaction.segments.cli.verify:conformance_command",
        "Check an owner's rules by what it has written.",
    ),
    "recover": ("compaction.segments.cli.write:recover", "Finish or undo a compaction that died half-way."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class SegmentsGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=SegmentsGroup, name="segments", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Look into segment logs in Ra's format; plan, compact and recover them.

    Exit codes: 0 done, 1 an error in the data (named on stderr), 2 wrong usage.
    """
