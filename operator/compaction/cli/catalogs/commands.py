"""`compactor catalogs`: catalogs directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.errors import ErrorGroup
from compaction.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "apply": ("compaction.cli.catalogs.apply:apply_command", "Run DDL commands of a YAML file."),
    "describe": ("compaction.cli.catalogs.describe:describe_command", "Show what is in a version."),
    "history": ("compaction.cli.catalogs.history:history_command", "List the versions that the log keeps."),
    "participants": ("compaction.cli.catalogs.compact:participants_command", "Ask participants what they need."),
    "required-time": (
        "compaction.cli.catalogs.compact:required_time_command",
        "Show from when on the catalog is needed, and who pins it.",
    ),
    "compact": ("compaction.cli.catalogs.compact:compact_command", "Cut the history that no participant needs."),
    "diff": ("compaction.cli.catalogs.diff:diff_command", "List what changed from one version to another."),
    "repair": (
        "compaction.cli.catalogs.repair:repair_command",
        "List versions that no process can read, and step over them.",
    ),
    "decode": ("compaction.cli.catalogs.decode:decode_command", "Show values of an update log as lines of JSON."),
    "replay": ("compaction.cli.catalogs.replay:replay_command", "Run a recorded history, and show what differs."),
    "serve": ("compaction.cli.catalogs.serving:serve_command", "Serve a reference participant of a catalog."),
    "conformance": (
        "compaction.cli.catalogs.conformance:conformance_command",
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
