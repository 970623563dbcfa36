"""The commands of `compactor staging lakefs`; each module is imported when its command runs."""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "inspect": (
        "compaction.staging.cli.lakefs.sealed_tokens:inspect",
        "Show the tokens of branches, and what a read costs.",
    ),
    "merge": (
        "compaction.staging.cli.lakefs.merge:merge",
        "Show what merging sealed tokens would change; with --apply merge them.",
    ),
    "verify": ("compaction.staging.cli.lakefs.ends:verify", "Read old and merged tokens again, and compare them."),
    "sweep": (
        "compaction.staging.cli.lakefs.ends:sweep",
        "Show what merges have left over; with --apply delete it.",
    ),
    "hold": ("compaction.staging.cli.lakefs.ends:hold", "Show whether merging is stopped; stop or allow it."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class LakeFsGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=LakeFsGroup, name="lakefs", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Merge the sealed tokens of a live, unmodified lakeFS on PostgreSQL.

    The key-value store is that of the servers; its URL with the password is read from COMPACTION_KV_URL. Everything
    that is not known is refused: another version of the layout, another database, a repository that is being deleted.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
