"""kubectl against the node of the tests, as its administrator."""

from __future__ import annotations

import subprocess

import pytest

from compaction.local.binaries import find_binaries
from compaction.local.node.running import RunningNode


def kubectl(
    node: RunningNode, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
) -> str:
    """What the real kubectl printed; with `check` a failure shows its own words."""
    binaries = find_binaries()
    assert binaries is not None
    command = [str(binaries.kubectl), f"--kubeconfig={node.kubeconfig}"]
    if namespace is not None:
        command.append(f"--namespace={namespace}")
    answer = subprocess.run([*command, *args], input=input, capture_output=True, text=True, check=False)
    if check and answer.returncode != 0:
        pytest.fail(f"kubectl {' '.join(args)} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
    return answer.stdout
