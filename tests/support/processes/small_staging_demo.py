"""`compactor demo` whose staging area holds a third of the records: the demo itself is what users run.

    python small_staging_demo.py demo --store staging ...

What is smaller is data alone: the processes, what goes wrong and every claim are those of the demo. `LOGS` and `PURGED`
are read when the modules that use them are imported, so they are set first.
"""

from __future__ import annotations

import sys

from compaction.local.demo.staging import entries, scenario

LOGS = 210_000
PURGED = 200_000


def main() -> int:
    entries.LOGS = LOGS  # type: ignore[misc]
    entries.TOTAL = LOGS + entries.TABLES  # type: ignore[misc]
    scenario.PURGED = PURGED  # type: ignore[misc]

    from compaction.cli import main as cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
