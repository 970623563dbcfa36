"""`compactor blocks`: block stores directly, without Kubernetes and without Spark.

Each module is imported when its command runs.
"""

from __future__ import annotations

import click

from compaction.cli.lazy import ErrorGroup, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "register": ("compaction.blocks.cli.register:register", "Register existing Parquet files."),
    "list": ("compaction.blocks.cli.listing:list_command", "List the live blocks at one instant."),
    "inspect": ("compaction.blocks.cli.inspect:inspect", "Show what waits to be compacted, or one block in detail."),
    "plan": ("compaction.blocks.cli.compact:plan", "Show what would be merged now, and why candidates are left out."),
    "compact": ("compaction.blocks.cli.compact:compact", "Merge the blocks that are due."),
    "verify": ("compaction.blocks.cli.verify:verify", "Read blocks again and compare them with the index."),
    "sweep": ("compaction.blocks.cli.sweep:sweep", "Show what is left over; with --apply delete it."),
    "rebuild-index": ("compaction.blocks.cli.rebuild:rebuild", "Rebuild a lost index from block footers."),
    "quarantine": ("compaction.blocks.cli.listing:quarantine", "List quarantined blocks; release or drop those named."),
    "serve": ("compaction.blocks.cli.serve:command", "Serve the HTTP endpoint where writers register blocks."),
}
"""Name -> where its command lives, and the line `--help` shows without importing it; in the order of use."""


class BlocksGroup(LazyGroup, ErrorGroup):
    """Imports its commands on demand, ends errors in one line."""

    commands_by_name = COMMANDS


@click.group(cls=BlocksGroup, name="blocks", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Inspect stores of Parquet blocks; register, plan, compact, verify and clean up.

    The store is a folder (its index is then a database in it), or the URL of an object store with the URL of its index.
    Secrets are never options: the index's URL with its password is read from COMPACTION_INDEX_URL, the object store's
    options from the file that COMPACTION_STORE_OPTIONS_FILE names.

    Exit codes: 0 done, 1 an error in the data or the environment (named on stderr), 2 wrong usage.
    """
