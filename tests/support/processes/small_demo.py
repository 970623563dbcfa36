"""`compactor demo` of staging areas and of catalogs with less data: the demo itself is what users run.

    python small_demo.py demo --store staging ...

What is less is data, and how fast it is written: the processes, what goes wrong and every claim are those of the demo.
What is set here is read when the modules that use it are imported, so it is set first.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from compaction.local.demo.catalog import scenario as catalog
from compaction.local.demo.staging import entries
from compaction.local.demo.staging import scenario as staging

SMALL: Final = [sys.executable, str(Path(__file__)), "demo"]
"""As `demos.COMMAND`."""
LOGS: Final = 210_000
TABLES: Final = 60_000
PURGED: Final = 60_000
SLOWER: Final = 2.5
"""A writer of a staging area waits so many times as long: most of what the demo costs is their reads and commits."""
FEWER: Final = 10
"""One version of a catalog, and of those at which something is pinned, for so many."""
VERSIONS: Final = ("VERSIONS", "CHECKPOINT_AT", "FIRST_TRANSACTION_AT", "SECOND_TRANSACTION_AT", "INDEX_AT")


def main() -> int:
    entries.LOGS, entries.TABLES, entries.TOTAL = LOGS, TABLES, LOGS + TABLES  # type: ignore[misc]
    staging.PURGED = PURGED  # type: ignore[misc]
    slower_writers()
    for name in VERSIONS:
        setattr(catalog, name, getattr(catalog, name) // FEWER)

    from compaction.cli import main as cli

    return cli.main(sys.argv[1:])


def slower_writers() -> None:
    slow = [replace(branch, pause=SLOWER * branch.pause) for branch in staging.BRANCHES]
    staging.COMMITTED, staging.CLEANUP, staging.EXPERIMENT, staging.DAMAGED = slow  # type: ignore[misc]
    staging.BRANCHES = tuple(slow)  # type: ignore[misc,assignment]


if __name__ == "__main__":
    sys.exit(main())
