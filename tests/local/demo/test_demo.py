"""`python -m demos` itself, whole: it ends with every claim held, and it leaves nothing behind. That it is kept running
when asked to is tried where there is more to keep (test_demo_blocks.py), that it is interrupted in test_interrupted.py.
"""

from __future__ import annotations

import subprocess

import pytest

from demos.cluster import leftover_workers
from local.demo.demos import COMMAND, running_below, started_in

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
