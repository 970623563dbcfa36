"""A control plane as tests see it: its kubeconfig, its administrator, and the real kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compaction.local.cluster.control_plane import AdminClient, RunningControlPlane, start_control_plane
from compaction.local.programs.binaries import Binaries
from support.time.waiting import eventually

DEFINITIONS = Path(__file__).resolve().parents[3] / "crds"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A real API server. `running` has the rest: `kubeconfig_for(user, path)`, `anonymous`, `audit_log`."""

    kubeconfig: Path
    url: str
    binaries: Binaries
    running: RunningControlPlane

    @property
    def admin(self) -> AdminClient:
        return self.running.admin

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl; with `check` a failure shows kubectl's own words."""
        command = [str(self.binaries.kubectl), f"--kubeconfig={self.kubeconfig}"]
        if namespace is not None:
            command.append(f"--namespace={namespace}")
        answer = subprocess.run([*command, *args], input=input, capture_output=True, text=True, check=False)
        if check and answer.returncode != 0:
            pytest.fail(f"kubectl {' '.join(args)} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
        return answer


@contextmanager
def audited_control_plane(directory: Path, binaries: Binaries) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver with their state in `directory`, our definitions served; audited, stopped at the end."""
    with start_control_plane(directory, binaries, audit=True) as running:
        yield with_definitions(running, binaries)


def with_definitions(running: RunningControlPlane, binaries: Binaries, definitions: Path = DEFINITIONS) -> ControlPlane:
    """The control plane once our resource definitions are served, and discovery knows their short names."""
    plane = ControlPlane(running.kubeconfig, running.url, binaries, running)
    plane.kubectl("apply", "--server-side", "-f", str(definitions))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(definitions))
    listed = ("api-resources", "--api-group=compaction.dev", "--output=name")
    count = len(list(definitions.glob("compaction.dev_*.yaml")))
    eventually(lambda: len(plane.kubectl(*listed, check=False).stdout.split()) == count, "discovery lists them")
    return plane
