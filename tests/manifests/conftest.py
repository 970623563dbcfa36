"""The manifests rendered, and a control plane of one's own: installing and uninstalling would take the definitions away
from everybody else's tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.local.cluster.control_plane import RunningControlPlane, start_control_plane
from compaction.local.programs.binaries import Binaries
from support.clocks import eventually
from support.cluster.control_plane import ControlPlane, documents, everything, take_away
from tools.shipped.files import render

#: What an API server makes for itself, some of it a second after it is ready.
SERVERS_OWN = (
    "/api/v1/namespaces/default/services/kubernetes",
    *(f"/api/v1/namespaces/{name}" for name in ("default", "kube-system", "kube-public", "kube-node-lease")),
)

Rendered = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def rendered(binaries: Binaries) -> Rendered:
    """`rendered(directory)`: the objects of a kustomization."""
    return functools.cache(lambda directory: documents(render(binaries.kubectl, directory)))


@pytest.fixture(scope="module")
def plane_of_their_own(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[ControlPlane]:
    """An API server without our definitions, for those of a file that install and uninstall: longer it would cost more
    than another start, a CPU second a minute.
    """
    with start_control_plane(tmp_path_factory.mktemp("plane"), binaries) as running:
        for path in SERVERS_OWN:
            eventually(functools.partial(_exists, running, path), f"{path} of the server itself")
        yield ControlPlane(running.kubeconfig, running.url, binaries, running)


@pytest.fixture
def empty_plane(plane_of_their_own: ControlPlane) -> Iterator[ControlPlane]:
    """Has what an API server makes for itself, and nothing else; what a test adds is gone after it."""
    before = everything(plane_of_their_own)
    yield plane_of_their_own

    def as_before() -> bool:
        found = everything(plane_of_their_own)
        take_away(plane_of_their_own, found - before)
        return found == before

    eventually(as_before, "the API server to be as before")


def _exists(running: RunningControlPlane, path: str) -> bool:
    return running.admin.request("GET", path).ok
