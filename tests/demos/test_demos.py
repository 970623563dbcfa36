"""`python -m demos` itself, whole: it ends with every claim held, and it leaves nothing behind. That it is kept running
when asked to is tried where there is more to keep (test_demo_blocks.py), that it is interrupted in test_interrupted.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from demos.cluster import leftover_workers
from support.processes.small_demo import COMMAND, SMALL, running_below, started_in
from support.programs import needs
from support.timing import at_depth


@pytest.mark.apiserver
@pytest.mark.spark
@pytest.mark.usefixtures("binaries")
def test_every_claim_holds_and_nothing_is_left(directory: Path) -> None:
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


# `python -m demos --store blocks` itself, whole: it ends with every claim held, and nothing is left when it is taken
# down.

BLOCKS = [*at_depth(short=SMALL, deep=COMMAND), "--store", "blocks"]
"""Every claim is the same; writers at a user's pace are for the deep run."""


@pytest.mark.apiserver
@pytest.mark.spark
@pytest.mark.usefixtures("binaries")
@needs("versitygw")
def test_every_claim_holds_and_it_is_kept_until_it_is_taken_down(directory: Path) -> None:
    command = [*BLOCKS, "--keep", "--directory", str(directory)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "all of it held" in answer.stdout
    assert "NO " not in answer.stdout
    assert "killed (SIGKILL): worker" in answer.stdout
    assert "SourceCorrupt: globex/0/" in answer.stdout
    assert f"export KUBECONFIG={directory / 'control-plane' / 'kubeconfig'}" in answer.stdout
    started, database = started_in(directory), (directory / "servers" / "postgres").readlink()
    assert [process.name for process in started if process.alive()] == [
        "etcd", "kube-apiserver", "replica-a", "replica-b", "console", "postgres", "versitygw",
    ]  # fmt: skip
    subprocess.run([*COMMAND, "--down", "--directory", str(directory)], check=True)
    assert not any(process.alive() for process in started)
    assert not database.exists()
    assert running_below(directory) == []
    assert started_in(directory) == []
    assert list(directory.rglob("*.secrets")) == []


# `python -m demos --store catalog` itself, whole: it ends with every claim held, and nothing is left when it is taken
# down.

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


@pytest.mark.apiserver
@pytest.mark.usefixtures("binaries")
def test_every_claim_about_the_catalog_holds_and_it_is_kept_until_it_is_taken_down(directory: Path) -> None:
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
        "etcd", "kube-apiserver", "replica-a", "replica-b", "console", "etcd", "node-1", "node-2", "node-3",
    ]  # fmt: skip
    subprocess.run([*COMMAND, "--down", "--directory", str(directory)], check=True)
    assert not any(process.alive() for process in started)
    assert running_below(directory) == []
    assert started_in(directory) == []


# `python -m demos --store staging` itself, whole: it ends with every claim held, and nothing is left when it is taken
# down.

STAGING = [*at_depth(short=SMALL, deep=COMMAND), "--store", "staging"]
"""Every claim is the same; the million tombstones are for the deep run."""


@pytest.mark.apiserver
@pytest.mark.spark
@pytest.mark.usefixtures("binaries")
@needs("versitygw")
def test_every_claim_about_staging_holds_and_it_is_kept_until_it_is_taken_down(directory: Path) -> None:
    command = [*STAGING, "--keep", "--directory", str(directory)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "all of it held" in answer.stdout
    assert "NO " not in answer.stdout
    assert "killed (SIGKILL): worker" in answer.stdout
    assert ", the coordinator" in answer.stdout
    assert "restored: range" in answer.stdout
    started, database = started_in(directory), (directory / "servers" / "postgres").readlink()
    # One of the replicas was killed.
    assert len([process for process in started if process.alive()]) == 6
    subprocess.run([*COMMAND, "--down", "--directory", str(directory)], check=True)
    assert not any(process.alive() for process in started)
    assert not database.exists()
    assert running_below(directory) == []
    assert started_in(directory) == []
    assert list(directory.rglob("*.secrets")) == []
