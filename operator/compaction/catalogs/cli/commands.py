"""`compactor catalogs`: catalogs directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "apply": ("compaction.catalogs.cli.apply:apply_command", "Run DDL commands of a YAML file."),
    "describe": ("compaction.catalogs.cli.versions:describe_command", "Show what is in a version."),
    "history": ("compaction.catalogs.cli.versions:history_command", "List the versions that the log keeps."),
    "participants": ("compaction.catalogs.cli.compact:participants_command", "Ask participants what they need."),
    "required-time": (
        "compaction.catalogs.cli.compact:required_time_command",
        "Show from when on the catalog is needed, and who pins it.",
    ),
    "compact": ("compaction.catalogs.cli.compact:compact_command", "Cut the history that no participant needs."),
    "diff": ("compaction.catalogs.cli.versions:diff_command", "List what changed from one version to another."),
    "repair": (
        "compaction.catalogs.cli.versions:repair_command",
        "List versions that no process can read, and step over them.",
    ),
    "decode": ("compaction.catalogs.cli.versions:decode_command", "Show values of an update log as lines of JSON."),
    "replay": ("compaction.catalogs.cli.apply:replay_command", "Run a recorded history, and show what differs."),
    "serve": ("compaction.catalogs.cli.serving:serve_command", "Serve a reference participant of a catalog."),
    "conformance": (
        "compaction.catalogs.cli.compact:conformance_command",
        "Check whether a participant keeps the rules of the protocol.",
    ),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class CatalogsGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=CatalogsGroup, name="catalogs", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Work with catalogs: zones, schemas, tables and indexes in versions, kept in an update log.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
