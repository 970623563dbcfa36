"""Stores as platforms have them: S3 and PostgreSQL with TLS and a private authority, from pods of both images. Etcd is
that of test_catalogs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.on_node import Installation, small
from node.private_servers import PrivateServers
from node.test_blocks import block_stores_allowed, succeeded
from support.clocks import eventually
from support.cluster.by_kubectl import write_secret

WORKERS = {"max": 1, "slots": 1, "idleSeconds": 5, "launcher": "pod", "driver": small()}
WORKERS |= {"executor": small() | {"instances": 1, "cores": 1}}

OPEN_BLOCKS = """
from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.blocks.block_stores import content, fill
store = BlockStore.open(BlockStoreConnection(
    url, index, options | {"root_certificate": trust}, authorities=trust))
"""
OPEN_AREA = """
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Writer
from compaction.staging.store import StagingConnection, StagingStore
from support.staging.staging_repos import framed, text_of
store = StagingStore.open(StagingConnection(kv, options=options | {"root_certificate": trust}, authorities=trust))
"""
SHOWN = """
print({one.key.decode(): text_of(one.value) for one in Reader(area).list("main", amount=1000).entries})
store.close()
"""


@pytest.fixture
def allowed(installation: Installation, tmp_path: Path) -> Iterator[None]:
    with block_stores_allowed(installation, tmp_path / "component"):
        yield


def ready(installation: Installation, policy: str) -> dict[str, Any]:
    conditions = installation.cluster.policy(policy).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def test_blocks_on_s3_with_an_index_in_postgresql(
    installation: Installation, servers: PrivateServers, allowed: None
) -> None:
    """Without the authority nothing is trusted, and the policy says what is missing; with it, jobs run."""
    url, index = f"{servers.bucket('lake')}/blocks", servers.database("blocks")
    known = {"url": url, "index": index, "options": servers.options, "trust": servers.trust}
    before = servers.run(OPEN_BLOCKS + "fill(store, [1, 2, 3]); print(content(store)); store.close()", **known)
    write_secret(installation.cluster, "tls-credentials", servers.options)
    write_secret(installation.cluster, "tls-index", {"url": f"{index}?sslmode=verify-full&sslrootcert=system"})
    store: dict[str, Any] = {
        "url": url,
        "credentialsSecretName": "tls-credentials",
        "index": {"secretName": "tls-index"},
    }
    store |= {"levels": [{"maxBlocks": 3, "maxAge": "1h"}]}
    installation.apply_policy("tls-blocks", store={"blockStore": store}, workers=WORKERS)

    def refused() -> str:
        return str(ready(installation, "tls-blocks").get("message", ""))

    eventually(lambda: "of an authority that is not trusted here" in refused(), "the certificate to be refused")
    installation.kubectl("create", "configmap", "trust", f"--from-literal=ca.crt={servers.trust}")
    write_secret(installation.cluster, "tls-index", {"url": index})
    trusting = {"blockStore": store | {"caBundle": {"configMapName": "trust"}}}
    installation.apply_policy("tls-blocks", store=trusting, workers=WORKERS)
    job = eventually(lambda: succeeded(installation, "tls-blocks"), "three blocks to become one")
    assert job["spec"]["kind"] == "BlockRewrite"
    installation.kubectl("delete", "cpol", "tls-blocks")
    installation.await_nothing_left("tls-blocks")
    levels = "print(content(store), [block.level for block in store.live().blocks]); store.close()"
    assert servers.run(OPEN_BLOCKS + levels, **known) == f"{before.strip()} [1]\n"
    installation.kubectl("delete", "configmap/trust", "secret/tls-credentials", "secret/tls-index")


def test_a_branch_on_s3_with_its_keys_in_postgresql(
    installation: Installation, servers: PrivateServers, allowed: None
) -> None:
    kv, namespace = servers.database("staging"), f"{servers.bucket('repository')}/lake"
    known = {"kv": kv, "options": servers.options, "trust": servers.trust, "namespace": namespace}
    begun = """
area = store.create("lake", namespace, committer="tester")
writer = Writer(area)
for number in range(40):
    writer.set("main", f"a/{number:03}".encode(), framed(str(number)))
for number in range(20):
    writer.delete("main", f"a/{number:03}".encode())
store.counters.flush()
"""
    before = servers.run(OPEN_AREA + begun + SHOWN, **known)
    write_secret(installation.cluster, "tls-credentials", servers.options)
    write_secret(installation.cluster, "tls-kv", {"url": kv, "ca.crt": servers.trust})
    area = {"repository": "lake", "kv": {"secretName": "tls-kv"}, "credentialsSecretName": "tls-credentials"}
    area |= {"caBundle": {"secretName": "tls-kv"}, "thresholds": {"tombstones": 20}}
    installation.apply_policy("tls-branch", store={"stagingArea": area}, workers=WORKERS)
    job = eventually(lambda: succeeded(installation, "tls-branch"), "the branch to be compacted")
    assert job["spec"]["kind"] == "MetarangeRewrite"
    installation.kubectl("delete", "cpol", "tls-branch")
    installation.await_nothing_left("tls-branch")
    assert servers.run(OPEN_AREA + 'area = store.area("lake")\n' + SHOWN, **known) == before
    installation.kubectl("delete", "secret", "tls-credentials", "tls-kv")
