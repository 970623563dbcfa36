"""`python -m compaction.local.node.prepare`: everything a node needs, before it is needed, with visible progress."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from compaction.cli.errors import describe
from compaction.local.errors import BinaryError, NodeError
from compaction.local.node.packages import check_machine, ensure_packages
from compaction.local.node.programs import ensure_programs


def main() -> int:
    """Exit code 1, and one line that says why, when this machine cannot run a node."""
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[node {int(time.monotonic() - started):4d} s] {line}", flush=True)

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        check_machine()
        ensure_packages(report=report)
        programs = ensure_programs(report=report)
    except (BinaryError, NodeError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    report(f"ready: {programs.kubelet}")
    return 0


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
