"""A demo that is interrupted stops everything that it has started, whatever that is: one end (`cli/errors`) and one
record of what runs serve all of them, so a short run tries the demo that has most to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from compaction.local.processes.process import wait_gone
from local.demo.demos import COMMAND, read_until, running_below, started_in
from support.depth import at_depth
from support.processes.small_demo import SMALL

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.spark,
    pytest.mark.usefixtures("binaries"),
    # Less than a minute on a machine of its own; everything that others do makes it longer.
    pytest.mark.timeout(900),
]


@dataclass(frozen=True, slots=True)
class Middle:
    """A demo's middle: the line that says it is there, and how many processes it has started by then."""

    store: str
    line: str
    started: int
    interruption: signal.Signals


# Writers and reader are at work, and a worker has a job; secrets are written, and a database runs.
BLOCKS = Middle("blocks", "InProgress", 6, signal.SIGINT)
# Keys are written and read: the control plane, replicas, and the owners of the logs.
SEGMENTS = Middle("segments", "a reader reads them", 7, signal.SIGTERM)
# The reader is at work, and a first pin is named.
CATALOG = Middle("catalog", "MissingParticipant", 7, signal.SIGINT)


@pytest.mark.parametrize(
    "middle", at_depth(short=[BLOCKS], deep=[BLOCKS, SEGMENTS, CATALOG]), ids=lambda middle: middle.store
)
def test_in_the_middle_it_stops_everything(middle: Middle, directory: Path) -> None:
    command = [*at_depth(short=SMALL, deep=COMMAND), "--store", middle.store, "--directory", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        seen = read_until(demo, middle.line)
        started, servers = started_in(directory), directory / "servers" / "postgres"
        database = servers.readlink() if servers.is_symlink() else None
        assert len(started) == middle.started, seen
        assert (database is not None) is (middle is BLOCKS)
        os.kill(demo.pid, middle.interruption)
        rest = demo.stdout.read()
        assert demo.wait() == 130, rest
    assert all(wait_gone(process, timeout=1) for process in started)
    assert database is None or not database.exists()
    assert running_below(directory) == []
    assert list(directory.rglob("*.secrets")) == []
