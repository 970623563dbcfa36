"""`compactor blocks`: block stores directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.errors import ErrorGroup
from compaction.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "register": ("compaction.cli.blocks.register:register", "Make Parquet files of the store known as blocks."),
    "list": ("compaction.cli.blocks.listing:list_command", "List the live blocks at one instant."),
    "inspect": ("compaction.cli.blocks.inspect:inspect", "Show all that is known about a block."),
    "verify": ("compaction.cli.blocks.verify:verify", "Read blocks again and compare them with the index."),
    "plan": ("compaction.cli.blocks.plan:plan", "Say what would be merged now, and why the rest is left out."),
    "compact": ("compaction.cli.blocks.compact:compact", "Merge now what is due."),
    "debt": ("compaction.cli.blocks.debt:debt", "What waits to be compacted, by level and tenant."),
    "tombstones": ("compaction.cli.blocks.clean:tombstones", "What waits for its deletion; delete what is due."),
    "orphans": ("compaction.cli.blocks.orphans:orphans", "Objects that belong to no block; delete them."),
    "retention": ("compaction.cli.blocks.clean:retention", "What is older than it is kept; let it end."),
    "rebuild-index": ("compaction.cli.blocks.rebuild:rebuild", "Make a lost index anew from the blocks."),
    "quarantine": ("compaction.cli.blocks.quarantine:group", "Blocks that are set aside: list, retry, drop."),
    "serve": ("compaction.cli.blocks.serve:command", "Serve the HTTP endpoint where writers register blocks."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class BlocksGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=BlocksGroup, name="blocks", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Look into a store of Parquet blocks; register, plan, compact, verify and clean up.

    The store is a folder (its index is then a database in it), or the URL of an object store with the URL of its index.
    Secrets are never options: the index's URL with its password is read from COMPACTION_INDEX_URL, the object store's
    options from the file that COMPACTION_STORE_OPTIONS_FILE names.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
