"""`compactor staging`: staging areas directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "repo": ("compaction.staging.cli.repos:repo", "List repositories, or create one."),
    "branch": ("compaction.staging.cli.repos:branch", "List branches, create or delete one."),
    "tag": ("compaction.staging.cli.repos:tag", "List tags, create or delete one."),
    "put": ("compaction.staging.cli.objects:put", "Write a record of a branch."),
    "rm": ("compaction.staging.cli.objects:remove", "Delete records of a branch."),
    "list": ("compaction.staging.cli.listing:list_command", "List the records of a reference, or show some in full."),
    "diff": ("compaction.staging.cli.listing:diff", "Show what is uncommitted, or how two references differ."),
    "commit": (
        "compaction.staging.cli.branch_commands:commit",
        "Commit what is staged on a branch, or the records of a file.",
    ),
    "log": ("compaction.staging.cli.branch_commands:log", "Show the commits of a reference."),
    "merge": ("compaction.staging.cli.branch_commands:merge", "Merge a reference into a branch."),
    "revert": ("compaction.staging.cli.branch_commands:revert", "Take back what a commit changed."),
    "cherry-pick": (
        "compaction.staging.cli.branch_commands:cherry_pick",
        "Make the changes of a commit on another branch.",
    ),
    "reset": ("compaction.staging.cli.repos:reset", "Discard uncommitted changes, or go to another commit."),
    "inspect": (
        "compaction.staging.cli.maintenance.inspect:inspect",
        "Show what is staged on branches: tokens, counters, base, claim.",
    ),
    "plan": (
        "compaction.staging.cli.maintenance.inspect:plan",
        "Show which branches are due, and what compacting them would touch.",
    ),
    "compact": ("compaction.staging.cli.maintenance.compact:compact", "Compact a branch now."),
    "sweep": (
        "compaction.staging.cli.maintenance.compact:sweep",
        "Show tokens and objects of no branch; with --apply delete them.",
    ),
    "verify": ("compaction.staging.cli.maintenance.compact:verify", "Read all trees and tokens, and check everything."),
    "serve": ("compaction.staging.cli.serve:command", "Serve the HTTP endpoint of writers."),
    "debug": ("compaction.staging.cli.commands:debug", "Carry out histories, read and write files of tables."),
    "lakefs": ("compaction.staging.cli.lakefs.lakefs_commands:group", "Merge the sealed tokens of a live lakeFS."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""

DEBUG_COMMANDS: dict[str, tuple[str, str]] = {
    "exec": ("compaction.staging.cli.exec:exec_command", "Carry out operations of a file, line by line."),
    "sst": ("compaction.staging.cli.tables:sst", "Print the records of a range or metarange, or write one."),
}
"""The same of `compactor staging debug`."""


class StagingGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=StagingGroup, name="staging", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Work with staging areas: branches with uncommitted changes over sorted ranges; compact, verify and clean up.

    A staging area is a key-value store and a repository in it; the objects are where the record of the repository says.
    Secrets are never options: the URL of the key-value store with its password is read from COMPACTION_KV_URL, the
    object store's options from the file that COMPACTION_STORE_OPTIONS_FILE names.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """


# `compactor staging debug`: what serves conformance and debugging.


class DebugGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = DEBUG_COMMANDS


@click.group(cls=DebugGroup, name="debug", context_settings={"help_option_names": ["-h", "--help"]})
def debug() -> None:
    """Carry out histories of operations, read and write files of ranges and metaranges: for conformance and debugging.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
