"""`python -m demos --store blocks` itself, whole: it ends with every claim held, and nothing is left when it is taken
down.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from local.demo.demos import COMMAND, running_below, started_in
from support.depth import at_depth
from support.processes.small_demo import SMALL
from support.programs import needs

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.spark,
    pytest.mark.usefixtures("binaries"),
    needs("versitygw"),
    # A minute on a machine of its own; Spark is started twice, and everything that others do makes it longer.
    pytest.mark.timeout(900),
]
BLOCKS = [*at_depth(short=SMALL, deep=COMMAND), "--store", "blocks"]
"""Every claim is the same; writers at a user's pace are for the deep run."""


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
        "etcd", "kube-apiserver", "replica-a", "replica-b", "postgres", "versitygw",
    ]  # fmt: skip
    subprocess.run([*COMMAND, "--down", "--directory", str(directory)], check=True)
    assert not any(process.alive() for process in started)
    assert not database.exists()
    assert running_below(directory) == []
    assert started_in(directory) == []
    assert list(directory.rglob("*.secrets")) == []
