"""`compactor catalogs`: catalogs directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "apply": ("compaction.catalogs.cli.apply:apply_command", "Run the DDL commands of a YAML file."),
    "list": ("compaction.catalogs.cli.versions:list_command", "List the versions that the update log keeps."),
    "inspect": ("compaction.catalogs.cli.versions:inspect_command", "Show a version of a catalog."),
    "plan": (
        "compaction.catalogs.cli.compact:plan_command",
        "Show what each participant needs, who pins the catalog, and what `compact` would cut.",
    ),
    "compact": ("compaction.catalogs.cli.compact:compact_command", "Cut the versions that no participant needs."),
    "diff": ("compaction.catalogs.cli.versions:diff_command", "List what changed from one version to another."),
    "repair": (
        "compaction.catalogs.cli.versions:repair_command",
        "List the versions that no process can read, and step over them.",
    ),
    "serve": ("compaction.catalogs.cli.serving:serve_command", "Serve a reference participant of a catalog."),
    "debug": ("compaction.catalogs.cli.commands:debug", "Check participants, values and recorded histories."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""
DEBUG_COMMANDS: dict[str, tuple[str, str]] = {
    "conformance": (
        "compaction.catalogs.cli.serving:conformance_command",
        "Check a participant by the rules of the protocol.",
    ),
    "decode": ("compaction.catalogs.cli.versions:decode_command", "Show values of an update log as lines of JSON."),
    "replay": ("compaction.catalogs.cli.apply:replay_command", "Run a recorded history, and show what differs."),
}


class CatalogsGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=CatalogsGroup, name="catalogs", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Work with catalogs: zones, schemas, tables and indexes in versions, kept in an update log.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """


class CatalogsDebugGroup(LazyGroup):
    """Imports its commands on demand."""

    commands_by_name = DEBUG_COMMANDS


@click.group(cls=CatalogsDebugGroup, name="debug")
def debug() -> None:
    """Check participants, values and recorded histories: for those who implement the protocol, or look for a defect."""
