"""Fixtures that every part of the suite shares: reference files, a real control plane, a namespace of one's own,
kubectl.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from compaction.kube.logging import LogFormat, remove_handlers, setup_logging
from compaction.local.cluster.control_plane import AdminClient
from compaction.local.programs.binaries import Binaries, ensure_binaries
from compaction.segments.directory import lock
from compaction.staging.staged.counters import COUNTING
from support.cluster.control_plane import ControlPlane, audited_control_plane

pytest_plugins = (
    "support.timing",
    "support.programs",
    "support.parallel",
    "support.processes.worker_ports",
    "support.object_stores",
    "support.faults.store_faults",
    "support.blocks.block_stores",
    "support.blocks.block_commands",
    "support.staging.staging_repos",
)

ROOT = Path(__file__).resolve().parents[1]
GROUP = "/apis/compaction.dev/v1alpha1"
KINDS = ("compactionpolicies", "compactionjobs", "catalogcompactions")
LEASES = "/apis/coordination.k8s.io/v1"
EVENTS = "/apis/events.k8s.io/v1"


class Kubectl(Protocol):
    """`kubectl("get", "cpol", input=None, check=True)` against the control plane of the tests, as its administrator."""

    def __call__(
        self, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
    ) -> subprocess.CompletedProcess[str]: ...


def pytest_runtest_setup() -> None:
    """Whoever starts the tests in the background may have them ignore these signals, and so all that they start; and a
    library of an earlier test may have put a handler of its own in the place.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure() -> None:
    """The product's lines go to standard logging, as in its programs: unconfigured, structlog prints them to stdout."""
    setup_logging(LogFormat.TEXT, level=logging.WARNING)
    remove_handlers()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets logging up for itself: the next test's warnings would be lost."""
    root = logging.getLogger()
    level = root.level
    yield
    remove_handlers()
    if root.level != level:
        root.setLevel(level)


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """A lock of a log that a test leaves open keeps whatever has its descriptor's number later from being closed; a
    thread that writes counters tries each second for good, once the store of its test is gone.
    """
    locks, threads = set(lock._held), set(threading.enumerate())
    yield
    left = lock._held - locks
    assert not left, f"locks of logs that were left open: {[os.readlink(f'/proc/self/fd/{fd}') for fd in left]}"
    counting = [thread for thread in set(threading.enumerate()) - threads if thread.name == COUNTING]
    assert not counting, f"counters of staging tokens that were not closed: {len(counting)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests on a node and of images take minutes and root: they run when asked for by their place (`make e2e`)."""
    if collection_path not in {ROOT / "tests" / "node", ROOT / "tests" / "images"}:
        return None
    asked = any(
        Path(config.invocation_params.dir, argument.partition("::")[0]).resolve().is_relative_to(collection_path)
        for argument in config.args
    )
    return None if asked else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the control plane carry its marker, so `-m 'not apiserver'` is always right."""
    for item in items:
        if {"control_plane", "servers"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("apiserver")


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """Files written by the reference systems, kept beside the project; only a run outside CI may do without them."""
    path = ROOT.parent / "shared" / "fixtures"
    if not path.is_dir():
        reason = f"{path} is not here: the reference files are kept outside the project"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The programs of the control plane, made when this machine has none (`make setup` does it beforehand)."""
    return ensure_binaries(report=print)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver for the whole session, our definitions served."""
    with audited_control_plane(tmp_path_factory.mktemp("control-plane"), binaries) as plane:
        yield plane


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """The name of a fresh namespace; it and our objects in it are gone after the test."""
    name = f"test-{secrets.token_hex(4)}"
    admin = control_plane.admin
    created = admin.request(
        "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    assert created.ok, created.text
    yield name
    delete_namespace(admin, name)


def delete_namespace(admin: AdminClient, name: str) -> None:
    """Delete a namespace as the (absent) controller manager would: empty it, then take its finalizer away."""
    paths = (f"{GROUP}/namespaces/{name}/{kind}" for kind in KINDS)
    for path in (*paths, f"{LEASES}/namespaces/{name}/leases", f"{EVENTS}/namespaces/{name}/events"):
        answer = admin.request("DELETE", path)
        assert answer.ok or answer.status == 404, answer.text
    admin.request("DELETE", f"/api/v1/namespaces/{name}")
    left = admin.request("GET", f"/api/v1/namespaces/{name}")
    if left.ok:
        document = left.json() | {"spec": {"finalizers": []}}
        final = admin.request("PUT", f"/api/v1/namespaces/{name}/finalize", document)
        assert final.ok or final.status in {404, 409}, final.text
