"""What a block store needs of the API server beside all else, by its audit log: its Secrets, by name, with get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction.local.cluster.certs import ensure_authority
from compaction.local.programs.binaries import Binaries
from manifests.test_permissions import OPERATOR, SYSTEM, Rendered, fleet_of, installed
from support.cluster.audit import Use, account, granted, roles_of, uses
from support.cluster.by_kubectl import Cluster
from support.cluster.manifests import block_policy_object
from support.cluster.rendered import NAMESPACED, with_components
from support.cluster.told import files_below, objects_of, write_secret
from support.time.waiting import eventually

pytestmark = pytest.mark.apiserver

VALUE = "s3cr3t-value-that-nobody-may-see"
READS = Use("", "secrets", "get")
READS_AUTHORITIES = Use("", "configmaps", "get")


def ready(cluster: Cluster, policy: str) -> tuple[str, str]:
    """Reason and message of the condition Ready."""
    conditions = cluster.policy(policy).get("status", {}).get("conditions", ())
    return next(
        ((condition["reason"], condition["message"]) for condition in conditions if condition["type"] == "Ready"),
        ("", ""),
    )


def await_reason(cluster: Cluster, policy: str, *reasons: str) -> str:
    """The message that goes with one of the reasons."""

    def found() -> str | None:
        reason, message = ready(cluster, policy)
        return message if reason in reasons else None

    return eventually(found, f"policy {policy} to be {' or '.join(reasons)}", pause=0.2)


def test_a_block_store_is_looked_at_with_its_secrets_and_no_other_permission(
    tmp_path: Path, binaries: Binaries, rendered: Rendered
) -> None:
    mine = with_components(tmp_path / "mine", NAMESPACED, "block-stores")
    with (
        installed(tmp_path / "plane", binaries, NAMESPACED) as plane,
        fleet_of(plane, tmp_path / "operator") as fleet,
    ):
        cluster = Cluster(plane, SYSTEM)
        log = plane.running.audit_log
        make_policies(cluster, tmp_path)
        replica = fleet.start()

        said = await_reason(cluster, "lake", "PermissionDenied")
        assert f"may not get secrets in namespace {SYSTEM}" in said
        assert "manifests/components/block-stores" in said
        assert "cannot be looked after" in replica.output, "said at the start as well"
        assert uses(log, account(SYSTEM, OPERATOR))[1] == {READS}

        plane.kubectl("apply", "--server-side", "-k", str(mine))
        said = await_reason(cluster, "lake", "SecretMissing")
        assert 'Secret "lake-index" not found in namespace' in said
        write_secret(cluster, "lake-index", {"dsn": "x"})
        assert "key url of Secret lake-index" in eventually(
            lambda: ready(cluster, "lake")[1] if "key url" in ready(cluster, "lake")[1] else None, "the key to be named"
        )
        write_secret(cluster, "lake-index", {"url": f"sqlite:///{tmp_path}/index.db"})
        await_reason(cluster, "lake", "Scheduled", "NoBlocksFound", "NoLogsFound")
        assert (tmp_path / "index.db").exists()

        done, _ = uses(log, account(SYSTEM, OPERATOR))
        objects = rendered(mine)
        assert {use for use in done if use.resource.startswith(("secrets", "configmaps"))} == {READS, READS_AUTHORITIES}
        assert done <= granted(roles_of(objects, OPERATOR))
        more = granted(roles_of(objects, OPERATOR)) - granted(roles_of(rendered(NAMESPACED), OPERATOR))
        assert more == {READS, READS_AUTHORITIES}, "what the component adds is what is used"

        await_reason(cluster, "remote", "StoreUnreachable", "SenseFailed")
        assert VALUE not in objects_of(cluster) + replica.output
        assert VALUE.encode() not in files_below(fleet.state_dir)


def make_policies(cluster: Cluster, tmp_path: Path) -> None:
    """One of a folder, whose index Secret is missing, and one of a server that is not there, with secrets to tell."""
    authorities = ensure_authority(tmp_path / "authority").ca.read_text()
    cluster.kubectl("create", "configmap", "authorities", f"--from-literal=ca.crt={authorities}")
    stores: dict[str, dict[str, Any]] = {
        "lake": {"url": f"file://{tmp_path}/lake", "index": {"secretName": "lake-index"}},
        "remote": {
            "url": "s3://bucket/blocks",
            "credentialsSecretName": "remote-credentials",
            "caBundle": {"configMapName": "authorities"},
            "index": {"secretName": "remote-index", "key": "dsn"},
        },
    }
    options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "region": "us-east-1"}
    write_secret(cluster, "remote-credentials", options | {"access_key_id": VALUE, "secret_access_key": VALUE})
    write_secret(cluster, "remote-index", {"dsn": f"postgresql://user:{VALUE}@127.0.0.1:9/index"})
    for name, store in stores.items():
        cluster.apply(block_policy_object(name, store={"blockStore": store}, trigger={"interval": "2s"}))
