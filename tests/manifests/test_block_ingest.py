"""components/block-ingest: applied and admitted by a real API server, started as its manifest says, and granted exactly
what it uses.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.manifests.policies import load_policies
from compaction.cli.blocks.serve import AUDIENCE, command
from compaction.exceptions import ForbiddenError
from compaction.kube.client.api import PODS, ApiClient
from compaction.kube.client.config import load_connection, static_token
from compaction.kube.client.token_review import TokenReviewer
from support.cluster.control_plane import ControlPlane
from support.cluster.rendered import NAMESPACED, ROOT, with_components

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
Rendered = Callable[[Path], list[Object]]
NAME, SYSTEM = "compaction-block-ingest", "compaction-system"
APPLY = ("apply", "--server-side", "--validate=strict")


def one(objects: list[Object], kind: str) -> Object:
    (found,) = (found for found in objects if found["kind"] == kind and found["metadata"]["name"] == NAME)
    return found


@pytest.fixture
def component(tmp_path: Path) -> Path:
    return with_components(tmp_path / "mine", NAMESPACED, "block-ingest")


def test_it_applies_twice_without_a_difference_and_is_admitted(
    empty_plane: ControlPlane, rendered: Rendered, component: Path
) -> None:
    kubectl = empty_plane.kubectl
    for _ in range(2):
        applied = kubectl(*APPLY, "-k", str(component))
        assert "Warning" not in applied.stderr
    assert f"deployment.apps/{NAME}" in applied.stdout
    assert f"service/{NAME}" in applied.stdout
    difference = kubectl("diff", "--server-side", "-k", str(component), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")

    template = one(rendered(component), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "tried"}}
    create = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    assert kubectl(*create, input=json.dumps(pod), namespace=SYSTEM).stderr == "", "restricted, and no warning"

    token = kubectl("create", "token", NAME, namespace=SYSTEM).stdout
    writer = kubectl("create", "token", "compaction-worker", f"--audience={AUDIENCE}", namespace=SYSTEM).stdout
    asyncio.run(_reviews_and_nothing_else(empty_plane, token, writer))
    said = kubectl("auth", "can-i", "--list", f"--as=system:serviceaccount:{SYSTEM}:{NAME}", namespace=SYSTEM).stdout
    granted = [line.split() for line in said.splitlines()[1:] if "selfsubject" not in line and not line.startswith(" ")]
    assert granted == [["tokenreviews.authentication.k8s.io", "[]", "[]", "[create]"]]


async def _reviews_and_nothing_else(plane: ControlPlane, token: str, writer: str) -> None:
    """As the pod's own service account: the context shows no certificate, or it would be the administrator's call."""
    trusting = ssl.create_default_context(cafile=str(plane.running.authority.ca))
    pod = replace(load_connection(plane.kubeconfig), token=static_token(token), ssl_context=trusting)
    async with ApiClient(pod) as client:
        assert await TokenReviewer(client, [AUDIENCE])(writer) == f"system:serviceaccount:{SYSTEM}:compaction-worker"
        with pytest.raises(ForbiddenError):
            await client.list(PODS, namespace=SYSTEM)


def test_the_pod_is_started_with_options_that_there_are(rendered: Rendered, component: Path, tmp_path: Path) -> None:
    objects = rendered(component)
    policy = one(objects, "ConfigMap")["data"]["policy.yaml"]
    (tmp_path / "policy.yaml").write_text(policy)
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    blocks, serve, *options = container["args"]
    assert (blocks, serve) == ("blocks", "serve")
    given = [option.replace("/etc/block-ingest", str(tmp_path)).replace("$(POD_NAMESPACE)", "x") for option in options]
    with command.make_context("serve", given) as context:
        assert (context.params["bind_address"], context.params["accounts"]) == ("0.0.0.0", ("x/*",))
        assert container["ports"][0]["containerPort"] == context.params["port"]


def test_the_mounted_secrets_are_those_of_the_policy(rendered: Rendered, component: Path) -> None:
    objects = rendered(component)
    (policy,) = load_policies(one(objects, "ConfigMap")["data"]["policy.yaml"], source="policy.yaml")
    store = policy.spec.store.block_store
    assert store is not None
    spec = one(objects, "Deployment")["spec"]["template"]["spec"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert set(secrets.values()) == {store.credentials_secret_name, store.index.secret_name}
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    for name, secret in secrets.items():
        assert mounts[name] == f"/var/run/compaction/secrets/{secret}"


def test_the_page_shows_a_kustomization_that_renders(rendered: Rendered, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "block-ingest.md").read_text()
    (shown,) = re.findall(r"```yaml\n(components:.*?)```", text, re.DOTALL)
    directory = with_components(tmp_path / "mine", NAMESPACED, "block-ingest")
    file = directory / "kustomization.yaml"
    document = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(document | {"patches": yaml.safe_load(shown)["patches"]}))
    (policy,) = load_policies(one(rendered(directory), "ConfigMap")["data"]["policy.yaml"], source="policy.yaml")
    assert policy.spec.store.block_store is not None
    assert policy.spec.store.block_store.url == "s3://mine/blocks"
