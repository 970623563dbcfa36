"""`make demo` of block stores, staging areas and catalogs with less data: the demo itself is what users run.

    python small_demo.py --store staging ...

What is less is data, and how fast it is written: the processes, what goes wrong and every claim are those of the demo.
What is set here is read when the modules that use it are imported, so it is set first.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from demos.blocks import writers as blocks
from demos.catalog import nodes as catalog
from demos.staging import writers
from demos.staging import writers as staging

SMALL: Final = [sys.executable, str(Path(__file__))]
"""As `demos.COMMAND`."""
LOGS: Final = 210_000
TABLES: Final = 60_000
PURGED: Final = 60_000
SLOWER: Final = 8.0
"""A writer waits so many times as long: most of what a demo costs is their reads and writes."""
THRESHOLDS: Final = {"tombstones": 150, "sealedTokens": 4, "stagedWrites": 500}
"""Of staging areas, so that branches are due in spite of slow writers."""
COMMIT_EVERY: Final = 5
READER_PAUSE: Final = 0.8
"""Seconds between two readings of the reader that compares everything."""
FEWER: Final = 10
"""One version of a catalog, and of those at which something is pinned, for so many."""
VERSIONS: Final = ("VERSIONS", "CHECKPOINT_AT", "FIRST_TRANSACTION_AT", "SECOND_TRANSACTION_AT", "INDEX_AT")


def main() -> int:
    writers.LOGS, writers.TABLES, writers.TOTAL = LOGS, TABLES, LOGS + TABLES  # type: ignore[misc]
    staging.PURGED, staging.THRESHOLDS = PURGED, THRESHOLDS  # type: ignore[misc]
    slower_writers()
    for name in VERSIONS:
        setattr(catalog, name, getattr(catalog, name) // FEWER)

    from demos.blocks import proof as block_prover
    from demos.staging import proof as staging_prover

    block_prover.PAUSE_SECONDS = staging_prover.PAUSE_SECONDS = READER_PAUSE  # type: ignore[misc]

    from compaction.cli.main import run
    from demos.__main__ import command

    return run(command, "demos")


def slower_writers() -> None:
    slow = [
        replace(branch, pause=SLOWER * branch.pause, commit_every=min(branch.commit_every, COMMIT_EVERY))
        for branch in staging.BRANCHES
    ]
    staging.COMMITTED, staging.CLEANUP, staging.EXPERIMENT, staging.DAMAGED = slow  # type: ignore[misc]
    staging.BRANCHES = tuple(slow)  # type: ignore[misc,assignment]
    tenants = [replace(tenant, pause=SLOWER / 2 * tenant.pause) for tenant in blocks.TENANTS]
    blocks.NOISY, blocks.QUIET, blocks.DAMAGED = tenants  # type: ignore[misc]
    blocks.TENANTS = tuple(tenants)  # type: ignore[misc,assignment]


if __name__ == "__main__":
    sys.exit(main())
