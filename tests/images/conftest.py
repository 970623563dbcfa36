"""The images, built for real once per session (unchanged ones are taken from the cache) and unpacked.

`make e2e` runs these tests: they need root, a Debian mirror and minutes, so `make test` does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from images.containers import Pod, Unpacked, unpack
from support.cluster.control_plane import ControlPlane
from tools.images.build import BuiltImage, Image, ensure_images

SERVICE_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
"""Where /var/run leads to in the images: as a link it would lead out of an unpacked root."""
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.images)


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> dict[Image, BuiltImage]:
    """Both images."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[images] {line}", end="", flush=True)

    return {image.image: image for image in ensure_images(report=say)}


@pytest.fixture(scope="session")
def worker(built: dict[Image, BuiltImage], tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(built[Image.WORKER].archive, tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="session")
def operator(built: dict[Image, BuiltImage], tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(built[Image.OPERATOR].archive, tmp_path_factory.mktemp("operator"))


@pytest.fixture
def in_cluster(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Callable[[str], Pod]:
    """What a kubelet gives a pod of a service account: token, certificate, namespace, and where the API server is.

    The roles are those of the manifests.
    """

    def pod(account: str) -> Pod:
        directory = tmp_path / f"account-{account}"
        directory.mkdir()
        token = control_plane.kubectl("create", "token", account, namespace=namespace).stdout.strip()
        for name, text in (
            ("token", token),
            ("namespace", namespace),
            ("ca.crt", (control_plane.running.directory / "certificates" / "ca.crt").read_text()),
        ):
            (directory / name).write_text(text)
        server = urlsplit(control_plane.url)
        environment = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        return Pod(environment=environment, volumes={directory: SERVICE_ACCOUNT})

    return pod


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Callable[..., str]:
    """kubectl in the namespace of the test, in which a policy and the accounts and roles of the manifests exist."""

    def run(*args: str, body: dict[str, object] | None = None, check: bool = True) -> str:
        text = None if body is None else json.dumps(body)
        return control_plane.kubectl(*args, namespace=namespace, input=text, check=check).stdout

    policy: dict[str, object] = {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "policy"},
        "spec": {"store": {"segmentLogs": {"root": "/data"}}},
    }
    run("create", "-f", "-", body=policy)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    resources = [os.path.relpath(MANIFESTS / part, overlay) for part in ("rbac", "base", "workers")]
    (overlay / "kustomization.yaml").write_text(json.dumps({"namespace": namespace, "resources": resources}))
    control_plane.kubectl("apply", "-k", str(overlay))
    return run
