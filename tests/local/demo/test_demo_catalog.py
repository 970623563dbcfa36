"""`python -m demos --store catalog` itself, whole: it ends with every claim held, and nothing is left when it is taken
down.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from local.demo.demos import COMMAND, running_below, started_in
from support.depth import at_depth
from support.processes.small_demo import SMALL

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.usefixtures("binaries"),
    # A minute on a machine of its own; everything that others do makes it longer.
    pytest.mark.timeout(900),
]
CATALOG = [*at_depth(short=SMALL, deep=COMMAND), "--store", "catalog"]
FIRST = at_depth(short="1 -> 9 -> 29 -> 59 -> 100", deep="1 -> 99 -> 299 -> 599 -> 1000")
"""The first versions of the history, one after the other. A thousand versions are for the deep run."""
PINS = (
    "MissingParticipant of node-3",
    "Replay of node-2",
    "Transaction of node-1",
    "Transaction of node-2",
    "IndexConstruction of node-1",
)


def test_every_claim_holds_and_it_is_kept_until_it_is_taken_down(directory: Path) -> None:
    command = [*CATALOG, "--keep", "--directory", str(directory)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "all of it held" in answer.stdout
    assert "NO " not in answer.stdout
    assert FIRST in answer.stdout
    for pin in PINS:
        assert f"{pin} is named" in answer.stdout
    assert "kubectl -n compaction-demo get ccat,lease" in answer.stdout
    started = started_in(directory)
    assert [process.name for process in started if process.alive()] == [
        "etcd", "kube-apiserver", "replica-a", "replica-b", "etcd", "node-1", "node-2", "node-3",
    ]  # fmt: skip
    subprocess.run([*COMMAND, "--down", "--directory", str(directory)], check=True)
    assert not any(process.alive() for process in started)
    assert running_below(directory) == []
    assert started_in(directory) == []
