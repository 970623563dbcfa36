"""A demo as a process of its own: what it says, what it has started, and what of it still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compaction.local.cluster.control_plane import read_state
from compaction.local.processes.process import ProcessId

COMMAND = [sys.executable, "-m", "demos"]


def started_in(directory: Path) -> list[ProcessId]:
    """Everything the demo has recorded as started: control plane, replicas, servers of a store."""
    states = [read_state(directory / part) for part in ("control-plane", "operator", "servers")]
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
