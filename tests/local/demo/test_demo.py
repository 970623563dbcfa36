"""`compactor demo` itself, whole: it ends with every claim held, and it leaves nothing behind, also when it is
terminated. That it is kept running when asked to is tried where there is more to keep: test_demo_blocks.py.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from compaction.local.demo.replicas import leftover_workers
from compaction.local.processes.process import wait_gone
from local.demo.demos import COMMAND, read_until, running_below, started_in

pytestmark = [pytest.mark.apiserver, pytest.mark.spark, pytest.mark.usefixtures("binaries")]


def test_every_claim_holds_and_nothing_is_left(directory):
    answer = subprocess.run([*COMMAND, "--directory", str(directory)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "all of it held" in answer.stdout
    assert "NO " not in answer.stdout
    assert "$ kubectl get cpol,cjob,lease" in answer.stdout
    assert "SourceCorrupt" in answer.stdout
    assert answer.stdout.count("killed (SIGKILL): ") == 3
    assert running_below(directory) == []
    assert started_in(directory) == []
    assert leftover_workers(directory / "operator") == []


def test_terminated_in_the_middle_it_stops_everything(directory):
    """Interrupted (SIGINT) it does the same, and when a worker has a job: test_demo_blocks.py."""
    command = [*COMMAND, "--directory", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        # The middle: servers and replicas run, keys are written and read.
        seen = read_until(demo, "a reader reads them")
        started = started_in(directory)
        # Control plane, replicas, and the owners of the logs.
        assert len(started) == 7, seen
        os.kill(demo.pid, signal.SIGTERM)
        rest = demo.stdout.read()
        assert demo.wait() == 130, rest
    assert all(wait_gone(process, timeout=1) for process in started)
    assert running_below(directory) == []
