"""`compactor blocks`: block stores directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "register": ("compaction.blocks.cli.register:register", "Register existing Parquet files."),
    "list": ("compaction.blocks.cli.listing:list_command", "List the live blocks at one instant."),
    "inspect": ("compaction.blocks.cli.inspect:inspect", "Show one block: index entry, claims, history."),
    "verify": ("compaction.blocks.cli.verify:verify", "Read blocks again and compare them with the index."),
    "plan": ("compaction.blocks.cli.compact:plan", "Show what would be merged now, and why candidates are left out."),
    "compact": ("compaction.blocks.cli.compact:compact", "Merge the blocks that are due."),
    "debt": ("compaction.blocks.cli.debt:debt", "Show debt by level and tenant."),
    "tombstones": (
        "compaction.blocks.cli.sweep:tombstones",
        "List replaced blocks; delete those that are due.",
    ),
    "orphans": ("compaction.blocks.cli.sweep:orphans", "List objects that belong to no block; delete them."),
    "retention": ("compaction.blocks.cli.sweep:retention", "List blocks beyond their retention; expire them."),
    "rebuild-index": ("compaction.blocks.cli.rebuild:rebuild", "Rebuild a lost index from block footers."),
    "quarantine": ("compaction.blocks.cli.listing:group", "List, retry and drop quarantined blocks."),
    "serve": ("compaction.blocks.cli.serve:command", "Serve the HTTP endpoint where writers register blocks."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class BlocksGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=BlocksGroup, name="blocks", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Inspect a store of Parquet blocks; register, plan, compact, verify and clean up.

    The store is a folder (its index is then a database in it), or the URL of an object store with the URL of its index.
    Secrets are never options: the index's URL with its password is read from COMPACTION_INDEX_URL, the object store's
    options from the file that COMPACTION_STORE_OPTIONS_FILE names.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
