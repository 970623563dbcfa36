"""The Secrets of a policy's store in the pods of its workers: by name, read-only, exactly those, only where needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from compaction.api.enums import LauncherType
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import PODS, Obj
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.apache import apache_application
from compaction.kube.launchers.backends import BACKENDS
from compaction.kube.launchers.driver_pod import driver_pod
from compaction.kube.launchers.kubeflow import kubeflow_application
from compaction.kube.launchers.objects import ObjectLauncher
from kube.launchers.played_cluster import BLOCKS, FULL, request_of

NAME = "logs-w-abcd-12345"
AT = "/var/run/compaction/secrets"
NOT_FOR_US = "Secret other: it is not for CompactionPolicy/logs; a user who may write it"
EXECUTORS = {"executor": {"instances": 2}}
Build = Callable[..., Obj]
BUILDS = pytest.mark.parametrize("build", [driver_pod, kubeflow_application, apache_application])


def specs_of(body: Obj) -> tuple[Obj, Obj | None]:
    """The specifications of the driver's and the executors' pods, wherever the kind of object has them."""
    if body["kind"] == "Pod":
        text = body["metadata"].get("annotations", {}).get("compaction.dev/executor-template")
        return body["spec"], json.loads(text)["spec"] if text else None
    spec = body["spec"]
    if "driver" in spec:
        return spec["driver"]["template"]["spec"], spec["executor"].get("template", {}).get("spec")
    return spec["driverSpec"]["podTemplateSpec"]["spec"], spec["executorSpec"]["podTemplateSpec"]["spec"]


def mounted(spec: Obj) -> dict[str, str]:
    """Where a pod has Secrets: path -> name of the Secret."""
    volumes = {item["name"]: item["secret"]["secretName"] for item in spec["volumes"] if "secret" in item}
    mounts = [item for item in spec["containers"][0]["volumeMounts"] if item["name"] in volumes]
    assert all(mount["readOnly"] is True for mount in mounts)
    return {mount["mountPath"]: volumes[mount["name"]] for mount in mounts}


@BUILDS
def test_a_driver_has_both_secrets_and_its_executors_those_of_the_objects(build: Build) -> None:
    driver, executor = specs_of(build(request_of(EXECUTORS, store=BLOCKS)))
    credentials = {f"{AT}/store-credentials": "store-credentials"}
    assert executor is not None
    assert mounted(driver) == credentials | {f"{AT}/store-index": "store-index"}
    assert mounted(executor) == credentials, "only the driver writes to the index"


@BUILDS
def test_a_secret_for_both_is_mounted_once(build: Build) -> None:
    both = {"url": "s3://b/p", "credentialsSecretName": "store", "index": {"secretName": "store", "key": "dsn"}}
    driver, _ = specs_of(build(request_of(EXECUTORS, store={"blockStore": both})))
    assert mounted(driver) == {f"{AT}/store": "store"}


@BUILDS
@pytest.mark.parametrize(
    ("bundle", "name", "source"),
    [
        ({"secretName": "trust"}, "trust", {"secret": {"secretName": "trust"}}),
        ({"configMapName": "trust"}, "configmap_trust", {"configMap": {"name": "trust"}}),
    ],
)
def test_certificates_of_authorities_are_in_all_pods(
    build: Build, bundle: dict[str, str], name: str, source: dict[str, Any]
) -> None:
    store = {"url": "s3://b/p", "index": {"secretName": "index"}, "caBundle": bundle}
    for spec in specs_of(build(request_of(EXECUTORS, store={"blockStore": store}))):
        assert spec is not None
        [mount] = [item for item in spec["containers"][0]["volumeMounts"] if item["mountPath"] == f"{AT}/{name}"]
        assert mount["readOnly"] is True
        assert [item for item in spec["volumes"] if item["name"] == mount["name"]] == [
            {"name": mount["name"], **source}
        ]


@BUILDS
def test_without_credentials_the_pods_own_identity_counts(build: Build) -> None:
    store = {"url": "s3://blocks/production", "index": {"secretName": "store-index"}}
    driver, executor = specs_of(build(request_of(EXECUTORS, store={"blockStore": store})))
    assert executor is not None
    assert mounted(driver) == {f"{AT}/store-index": "store-index"}
    assert mounted(executor) == {}


@BUILDS
def test_beside_what_the_user_mounts(build: Build) -> None:
    driver, executor = specs_of(build(request_of(FULL, store=BLOCKS)))
    assert executor is not None
    for spec in (driver, executor):
        assert mounted(spec)["/etc/certificates"] == "certificates"
        assert f"{AT}/store-credentials" in mounted(spec)


@BUILDS
def test_a_block_store_needs_no_claim(build: Build) -> None:
    for spec in specs_of(build(request_of(FULL, store=BLOCKS))):
        assert spec is not None
        assert not [item for item in spec["volumes"] if "persistentVolumeClaim" in item]
        assert all(item["mountPath"] for item in spec["containers"][0]["volumeMounts"])


@BUILDS
def test_segment_logs_need_no_secret(build: Build) -> None:
    for spec in specs_of(build(request_of(EXECUTORS))):
        assert spec is not None
        assert mounted(spec) == {}


def in_template(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


OF_KEY = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "a"}}}


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ({"envFromSecrets": [{"name": "other"}]}, NOT_FOR_US),
        ({"secretVolumes": [{"secretName": "other", "mountPath": "/x"}]}, NOT_FOR_US),
        (in_template(volumes=[{"name": "a", "secret": {"secretName": "other"}}]), NOT_FOR_US),
        (in_template(volumes=[{"name": "a", "projected": {"sources": [{"secret": {"name": "other"}}]}}]), NOT_FOR_US),
        (in_template(volumes=[{"name": "a", "csi": {"nodePublishSecretRef": {"name": "other"}}}]), NOT_FOR_US),
        (in_template(initContainers=[{"name": "a", "envFrom": [{"secretRef": {"name": "other"}}]}]), NOT_FOR_US),
        (in_template(containers=[{"name": "worker", "env": [OF_KEY]}]), NOT_FOR_US),
        ({"envFromSecrets": [{"name": "missing"}]}, 'Secret "missing" not found in namespace'),
    ],
)
def test_no_pod_has_a_secret_that_is_not_for_its_policy(
    control_plane: Any, restricted: str, workers: dict[str, Any], says: str
) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other"}}
    assert control_plane.admin.request("POST", f"/api/v1/namespaces/{restricted}/secrets", body).ok

    async def work() -> None:
        async with ApiClient(load_connection(control_plane.kubeconfig)) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted)
            with pytest.raises(LaunchError, match=says):
                await objects.launch_as(LauncherType.POD, request_of(workers, name=NAME, namespace=restricted))
            assert (await client.list(PODS, namespace=restricted)).items == ()

    asyncio.run(work())


@pytest.mark.parametrize("launcher", list(BACKENDS))
@pytest.mark.parametrize("workers", [{}, EXECUTORS, FULL], ids=["alone", "executors", "full"])
def test_a_real_api_server_takes_the_objects_as_they_are(
    control_plane: Any, restricted: str, spark_operators: None, launcher: LauncherType, workers: dict[str, Any]
) -> None:
    """With strict validation and PodSecurity `restricted`; pods in templates as well, made by the test instead."""
    request = request_of(workers, name=NAME, namespace=restricted, store=BLOCKS)

    async def work() -> None:
        async with ApiClient(load_connection(control_plane.kubeconfig)) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted)
            await objects.launch_as(launcher, request)
            for number, spec in enumerate(specs_of(BACKENDS[launcher].build(request))):
                if spec is None:
                    continue
                name = f"copy-{number}"
                body = {"metadata": {"name": name, "namespace": restricted}, "spec": spec | {"serviceAccountName": ""}}
                body["spec"]["containers"] = [{"image": "w:1"} | item for item in spec["containers"]]
                kept = await client.create(PODS, body, strict=True)
                assert mounted(kept["spec"]) == mounted(spec)
                await client.delete(PODS, name, namespace=restricted, grace_seconds=0)

    asyncio.run(work())
