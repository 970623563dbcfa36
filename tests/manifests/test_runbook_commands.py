"""Every command of every runbook, run as it stands there; only the words in capitals are replaced.

The API server is real and has a policy with a damaged segment and a job that gave up. No kubelet runs: `kubectl logs`
of a pod ends with the API server's word that the pod has no node yet, which is as far as that command gets here.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.names import HOLD_LEASE
from compaction.core.reconcile.observations import Hold
from compaction.kube.hold import lease_of
from compaction.segments.generate import generate_log
from compaction.staging.cli.options import KV_VARIABLE, REPOSITORY_VARIABLE
from compaction.staging.store import StagingConnection, StagingStore
from conftest import delete_namespace
from manifests.test_readme import blocks_of, inline_commands_of
from support.cluster.by_kubectl import PROGRAMS, ROLES, Answer, Cluster, Object, User
from support.cluster.control_plane import ROOT
from support.cluster.explained import condition
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object

pytestmark = pytest.mark.apiserver

PAGES = sorted((ROOT / "docs" / "runbooks").glob("Compaction*.md"))
SEGMENT = "0000000000000007.segment"
PLACEHOLDER = re.compile(r"\b(OPERATOR-NAMESPACE|NAMESPACE|POLICY|CATALOG|JOB|DIR|POD|TARGET/SOURCE|HASH)\b")
COMMENT = re.compile(r"\s+# .*$")
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "logs-w-1", "labels": {"compaction.dev/component": "worker"}},
    "spec": {"containers": [{"name": "worker", "image": "worker:1"}]},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "compaction-operator"},
    "spec": {
        "selector": {"matchLabels": {"app": "operator"}},
        "template": {"metadata": {"labels": {"app": "operator"}}, "spec": {"containers": POD["spec"]["containers"]}},
    },
}
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "compaction-coordinator"},
    "spec": {"holderIdentity": "replica-a"},
}
STATUS: Object = {
    "observedGeneration": 1,
    "conditions": [condition("Ready", "Compacted")],
    "quarantined": [
        {
            "target": "/data/ra/a",
            "source": SEGMENT,
            "reason": "SourceCorrupt",
            "message": "corrupt entry",
            "since": "2026-11-01T00:00:00Z",
        }
    ],
    "plan": {
        "hash": "4d5e00c0ffee1234",
        "jobs": 1,
        "costBytes": 41,
        "gainBytes": 163,
        "createdAt": "2026-11-01T00:00:00Z",
        "approval": "Pending",
        "leftOut": [{"reason": "Cooldown", "count": 2, "example": "/data/ra/b"}],
    },
}
PINNED = {
    "observedGeneration": 1,
    "conditions": [condition("Ready", "Transaction")],
    "fencingToken": 4,
    "earliestVersion": 3,
    "latestVersion": 9,
    "requiredTime": {
        "value": 1,
        "time": "2026-11-01T00:00:00Z",
        "reason": "Transaction",
        "participant": "orders-0",
        "subject": "transaction 7",
    },
}
FAULTY = {
    "state": "Faulty",
    "conditions": [condition("Failed", "TooManyAttempts", message="3 attempts failed, last: no space")],
    "finishedAt": "2026-11-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True)
class OnCall:
    """Somebody with a shell, kubectl with the plugin on PATH, and the alert's labels at hand. `variables`: where a
    staging area is.
    """

    cluster: Cluster
    words: dict[str, str]
    variables: dict[str, str]

    def run(self, command: str) -> Answer:
        """In this process where it is a plain command of ours: what a page asks of it, and not the start of a process.
        That each of them is a plugin of kubectl: tests/cli/cluster/test_commands.py.
        """
        plane = self.cluster.plane
        environment = {
            "KUBECONFIG": str(plane.kubeconfig),
            "PATH": f"{PROGRAMS}:{plane.binaries.kubectl.parent}:{os.environ['PATH']}",
            "KUBE_EDITOR": "true",
            **self.variables,
        }
        written = PLACEHOLDER.sub(lambda found: self.words[found.group()], command)
        words = shlex.split(written)
        ours = words[2:] if words[:2] == ["kubectl", "compaction"] else words[1:] if words[0] == "compactor" else []
        if ours and "|" not in words and ours[0] != "drill":
            with pytest.MonkeyPatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                return User(plane.binaries.kubectl, plane.kubeconfig).run(*ours)
        done = subprocess.run(
            ["bash", "-c", written],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
        )
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def shell(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCall]:
    """One namespace for all pages: what their commands change is put right before the next page (`on_call`)."""
    namespace = f"runbooks-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", namespace)
    cluster = Cluster(control_plane, namespace)
    cluster.kubectl("apply", "-f", str(ROLES))
    policy = policy_object("logs", approval="Manual")
    policy["metadata"]["labels"] = {"team": "blue"}
    objects = [policy, catalog_object("orders"), POD, DEPLOYMENT, LEASE]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))
    write_status(cluster, "cpol/logs", STATUS)
    write_status(cluster, "ccat/orders", PINNED)
    account = f"{namespace}:compaction-operator"
    cluster.kubectl(
        "create", "rolebinding", "operator", "--clusterrole=compaction-operator", f"--serviceaccount={account}"
    )
    log = tmp_path_factory.mktemp("runbooks") / "log"
    generate_log(log, segments=3, entries_per_segment=64, sync=False)
    words = {
        "NAMESPACE": namespace,
        "OPERATOR-NAMESPACE": namespace,
        "POLICY": "logs",
        "JOB": "logs-1",
        "CATALOG": "orders",
        "HASH": STATUS["plan"]["hash"],
    }
    words |= {"DIR": str(log), "POD": "logs-w-1", "TARGET/SOURCE": f"/data/ra/a/{SEGMENT}"}
    kv_url = f"sqlite:///{log.parent}/kv.db"
    with closing(StagingStore.open(StagingConnection(kv_url))) as store:
        store.create("lake", f"file://{log.parent}/objects", committer="tester")
    yield OnCall(cluster, words, {KV_VARIABLE: kv_url, REPOSITORY_VARIABLE: "lake"})
    delete_namespace(control_plane.admin, namespace)


@pytest.fixture
def on_call(shell: OnCall) -> OnCall:
    """With the job that gave up, which a page may delete, and on hold, which a page may end."""
    if not shell.cluster.jobs():
        shell.cluster.apply(job_object("logs-1"))
        write_status(shell.cluster, "cjob/logs-1", FAULTY)
    if not any(lease["metadata"]["name"] == HOLD_LEASE for lease in shell.cluster.list("lease")):
        shell.cluster.apply(lease_of(Hold("the bucket moves"), shell.cluster.namespace).body())
    return shell


def write_status(cluster: Cluster, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", name, "--type=merge", "--subresource=status", "-p", patch)


def commands_of_runbook(page: Path) -> list[str]:
    """What a person pastes without its comment, deletions last; a name of a command alone, without any argument, is no
    command to paste.
    """
    lines = [COMMENT.sub("", line) for block in blocks_of(page) for line in block]
    lines += [code for code in inline_commands_of(page, "kubectl", "compactor") if PLACEHOLDER.search(code)]
    return sorted(dict.fromkeys(lines), key=lambda line: line.startswith("kubectl delete"))


def test_there_are_commands_to_run() -> None:
    assert len(PAGES) >= 8
    assert all(len(commands_of_runbook(page)) >= 2 for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_works_as_it_stands(page: Path, on_call: OnCall) -> None:
    failed = []
    for command in commands_of_runbook(page):
        answer = on_call.run(command)
        quiet_grep = "| grep" in command and answer.returncode == 1 and "error" not in answer.stderr.lower()
        no_node = "does not have a host assigned" in answer.stderr
        if answer.returncode and not quiet_grep and not no_node:
            failed.append(f"{command}: {answer.returncode} {answer.stdout}{answer.stderr}")
    assert failed == []
