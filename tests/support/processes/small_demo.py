"""`make demo` of block stores, staging areas and catalogs with less data: the demo itself is what users run.

    python small_demo.py --store staging ...

What is less is data, and how fast it is written: the processes, what goes wrong and every claim are those of the demo.
What is set here is read when the modules that use it are imported, so it is set first.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from compaction.local.cluster.control_plane import read_state
from compaction.local.processes.process import ProcessId
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


# A demo as a process of its own: what it says, what it has started, and what of it still runs.

COMMAND = [sys.executable, "-m", "demos"]


def started_in(directory: Path) -> list[ProcessId]:
    """Everything the demo has recorded as started: control plane, replicas, servers of a store."""
    states = [read_state(directory / part) for part in ("control-plane", "operator", "console", "servers")]
    return [process for state in states if state is not None for process in state.processes]


def running_below(directory: Path) -> list[str]:
    """Processes whose working directory is below `directory`, seen from the kernel and not from our own records."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve().is_relative_to(directory) and ProcessId.of(entry.name, int(entry.name)):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def read_until(demo: subprocess.Popen[str], word: str) -> str:
    """All that it says up to the line with `word`; that it ends before fails the test."""
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if word in line:
            return seen
    pytest.fail(f"the demo ended before {word!r} was seen:\n{seen}")


if __name__ == "__main__":
    sys.exit(main())
