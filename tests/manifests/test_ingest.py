"""components/block-ingest and components/staging-ingest: applied and admitted by a real API server, started as their
manifests say, and granted exactly what they use.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.cli import serve as blocks
from compaction.cli.local.policy_file import load_policies
from compaction.errors import ForbiddenError
from compaction.kube.client.api import PODS, ApiClient
from compaction.kube.client.config import load_connection, static_token
from compaction.kube.client.tokens import TokenReviewer
from compaction.staging.cli import serve as staging
from support.cluster.control_plane import NAMESPACED, ROOT, ControlPlane, with_components

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
Rendered = Callable[[Path], list[Object]]
SYSTEM = "compaction-system"
APPLY = ("apply", "--server-side", "--validate=strict")


@dataclass(frozen=True)
class Ingest:
    """One of the components. `secrets`: those that a policy of its kind names. `page`: shows how it is changed."""

    component: str
    room: str
    command: click.Command
    audience: str
    page: str
    secrets: Callable[[CompactionPolicy], set[str]]
    place: Callable[[CompactionPolicy], str]
    changed: str

    @property
    def name(self) -> str:
        return f"compaction-{self.component}"

    def one(self, objects: list[Object], kind: str) -> Object:
        (found,) = (found for found in objects if found["kind"] == kind and found["metadata"]["name"] == self.name)
        return found

    def policy(self, objects: list[Object]) -> CompactionPolicy:
        text = self.one(objects, "ConfigMap")["data"]["policy.yaml"]
        (policy,) = load_policies(text, source="policy.yaml")
        return policy


def block_store(policy: CompactionPolicy) -> Any:
    return policy.spec.store.block_store


def staging_area(policy: CompactionPolicy) -> Any:
    return policy.spec.store.staging_area


BLOCKS = Ingest(
    component="block-ingest",
    room="blocks",
    command=blocks.command,
    audience=blocks.AUDIENCE,
    page="block-ingest.md",
    secrets=lambda policy: {block_store(policy).credentials_secret_name, block_store(policy).index.secret_name},
    place=lambda policy: str(block_store(policy).url),
    changed="s3://mine/blocks",
)
STAGING = Ingest(
    component="staging-ingest",
    room="staging",
    command=staging.command,
    audience=staging.AUDIENCE,
    page="install.md",
    secrets=lambda policy: set(staging_area(policy).reference.secret_names),
    place=lambda policy: str(staging_area(policy).table),
    changed="mine",
)


@pytest.fixture(params=[BLOCKS, STAGING], ids=lambda item: item.component)
def ingest(request: pytest.FixtureRequest) -> Ingest:
    found: Ingest = request.param
    return found


@pytest.fixture
def component(tmp_path: Path, ingest: Ingest) -> Path:
    return with_components(tmp_path / "mine", NAMESPACED, ingest.component)


def test_it_applies_twice_without_a_difference_and_is_admitted(
    empty_plane: ControlPlane, rendered: Rendered, component: Path, ingest: Ingest
) -> None:
    kubectl = empty_plane.kubectl
    for _ in range(2):
        applied = kubectl(*APPLY, "-k", str(component))
        assert "Warning" not in applied.stderr
    assert f"deployment.apps/{ingest.name}" in applied.stdout
    assert f"service/{ingest.name}" in applied.stdout
    difference = kubectl("diff", "--server-side", "-k", str(component), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")

    template = ingest.one(rendered(component), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "tried"}}
    create = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    assert kubectl(*create, input=json.dumps(pod), namespace=SYSTEM).stderr == "", "restricted, and no warning"

    token = kubectl("create", "token", ingest.name, namespace=SYSTEM).stdout
    writer = kubectl("create", "token", "compaction-worker", f"--audience={ingest.audience}", namespace=SYSTEM).stdout
    asyncio.run(_reviews_and_nothing_else(empty_plane, ingest.audience, token, writer))
    said = kubectl(
        "auth", "can-i", "--list", f"--as=system:serviceaccount:{SYSTEM}:{ingest.name}", namespace=SYSTEM
    ).stdout
    granted = [line.split() for line in said.splitlines()[1:] if "selfsubject" not in line and not line.startswith(" ")]
    assert granted == [["tokenreviews.authentication.k8s.io", "[]", "[]", "[create]"]]


async def _reviews_and_nothing_else(plane: ControlPlane, audience: str, token: str, writer: str) -> None:
    """As the pod's own service account: the context shows no certificate, or it would be the administrator's call."""
    trusting = ssl.create_default_context(cafile=str(plane.running.authority.ca))
    pod = replace(load_connection(plane.kubeconfig), token=static_token(token), ssl_context=trusting)
    async with ApiClient(pod) as client:
        assert await TokenReviewer(client, [audience])(writer) == f"system:serviceaccount:{SYSTEM}:compaction-worker"
        with pytest.raises(ForbiddenError):
            await client.list(PODS, namespace=SYSTEM)


def test_the_pod_is_started_with_options_that_there_are(
    rendered: Rendered, component: Path, ingest: Ingest, tmp_path: Path
) -> None:
    objects = rendered(component)
    (tmp_path / "policy.yaml").write_text(ingest.one(objects, "ConfigMap")["data"]["policy.yaml"])
    container = ingest.one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    room, serve, *options = container["args"]
    assert (room, serve) == (ingest.room, "serve")
    mounted = f"/etc/{ingest.component}"
    given = [option.replace(mounted, str(tmp_path)).replace("$(POD_NAMESPACE)", "x") for option in options]
    with ingest.command.make_context("serve", given) as context:
        assert (context.params["bind_address"], context.params["accounts"]) == ("0.0.0.0", ("x/*",))
        assert container["ports"][0]["containerPort"] == context.params["port"]


def test_the_mounted_secrets_are_those_of_the_policy(rendered: Rendered, component: Path, ingest: Ingest) -> None:
    objects = rendered(component)
    spec = ingest.one(objects, "Deployment")["spec"]["template"]["spec"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert set(secrets.values()) == ingest.secrets(ingest.policy(objects))
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    for name, secret in secrets.items():
        assert mounts[name] == f"/var/run/compaction/secrets/{secret}"


def test_the_page_shows_a_kustomization_that_renders(rendered: Rendered, ingest: Ingest, tmp_path: Path) -> None:
    text = (ROOT / "docs" / ingest.page).read_text()
    every = re.findall(r"```yaml\n(components:.*?)```", text, re.DOTALL)
    (shown,) = [item for item in every if f"/{ingest.component}\n" in item]
    directory = with_components(tmp_path / "mine", NAMESPACED, ingest.component)
    file = directory / "kustomization.yaml"
    document = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(document | {"patches": yaml.safe_load(shown)["patches"]}))
    assert ingest.place(ingest.policy(rendered(directory))) == ingest.changed
