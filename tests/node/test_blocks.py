"""A block store whose workers are pods: they have the Secrets of its policy as files, and need nothing else of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from compaction.blocks.store import BlockStore, BlockStoreConnection
from node.on_node import CLAIM, MOUNT, NAMESPACE, Installation, give_to_pods, small
from support.blocks.block_stores import content, fill
from support.clocks import eventually
from support.cluster.by_kubectl import write_secret
from support.cluster.control_plane import MANIFESTS

SECRETS = "/var/run/compaction/secrets"


@contextmanager
def block_stores_allowed(installation: Installation, directory: Path) -> Iterator[None]:
    """The component beside the installation, and gone again."""
    directory.mkdir()
    component = os.path.relpath(MANIFESTS / "components" / "block-stores", directory)
    account = {"op": "add", "path": "/subjects/0/namespace", "value": NAMESPACE}
    patch = {"target": {"kind": "RoleBinding"}, "patch": yaml.safe_dump([account])}
    document = {"namespace": NAMESPACE, "components": [component], "patches": [patch]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    installation.kubectl("apply", "--server-side", "-k", str(directory))
    yield
    installation.kubectl("delete", "-k", str(directory))


def policy_parts() -> dict[str, Any]:
    """A store on the volume, which pods mount by their template: one of S3 would need none."""
    blocks = {"url": f"file://{MOUNT}/lake/blocks", "credentialsSecretName": "lake-credentials"}
    volume = {"name": "lake", "persistentVolumeClaim": {"claimName": CLAIM}}
    container = {"name": "worker", "volumeMounts": [{"name": "lake", "mountPath": MOUNT}]}
    workers = {"max": 1, "slots": 1, "idleSeconds": 5, "launcher": "pod", "driver": small()}
    return {
        "store": {
            "blockStore": blocks
            | {"index": {"secretName": "lake-index"}, "levels": [{"maxBlocks": 3, "maxAge": "1h"}]},
        },
        "workers": workers
        | {
            "executor": small() | {"instances": 1, "cores": 1},
            "podTemplate": {"spec": {"volumes": [volume], "containers": [container]}},
        },
    }


def mounts_of(pod: dict[str, Any]) -> set[str]:
    (worker,) = pod["spec"]["containers"]
    return {item["mountPath"] for item in worker["volumeMounts"] if item["mountPath"].startswith(SECRETS)}


def test_blocks_are_merged_in_pods_that_have_their_secrets_as_files(installation: Installation, tmp_path: Path) -> None:
    """Drivers read the index's, executors that of the objects, as the user of the pods."""
    place = installation.volume / "lake"
    place.mkdir()
    connection = BlockStoreConnection(f"file://{place}/blocks", f"sqlite:///{place}/index.db")
    store = BlockStore.open(connection)
    fill(store, [1, 2, 3])
    before = content(store)
    store.close()
    give_to_pods(place)
    write_secret(installation.cluster, "lake-credentials", {})
    write_secret(installation.cluster, "lake-index", {"url": f"sqlite:///{MOUNT}/lake/index.db"})
    with block_stores_allowed(installation, tmp_path / "component"):
        installation.apply_policy("lake", **policy_parts())
        executors = eventually(lambda: installation.executors("lake"), "an executor")
        [driver] = installation.drivers("lake")
        assert mounts_of(driver) == {f"{SECRETS}/lake-credentials", f"{SECRETS}/lake-index"}
        assert mounts_of(executors[0]) == {f"{SECRETS}/lake-credentials"}
        job = eventually(lambda: succeeded(installation, "lake"), "three blocks to become one")
        assert job["spec"]["kind"] == "BlockRewrite"
        installation.kubectl("delete", "cpol", "lake")
        installation.await_nothing_left("lake")
    installation.kubectl("delete", "secret", "lake-credentials", "lake-index")
    store = BlockStore.open(connection)
    assert content(store) == before
    assert [block.level for block in store.live().blocks] == [1]
    store.close()


def succeeded(installation: Installation, policy: str) -> dict[str, Any] | None:
    """The policy's job when it has succeeded."""
    jobs = [job for job in installation.cluster.jobs() if job["spec"]["policyRef"]["name"] == policy]
    return next((job for job in jobs if job.get("status", {}).get("state") == "Succeeded"), None)
