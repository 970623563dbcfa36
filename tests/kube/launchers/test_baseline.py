"""What pods of workers may not have, whatever a namespace enforces, unless the installation allows it."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PodAllowance
from compaction.kube.launchers.driver_pod import driver_pod
from compaction.kube.launchers.kubeflow import kubeflow_application
from kube.launchers.pods import FULL, request_of

EXECUTORS = {"executor": {"instances": 1}}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/worker"


def attempt(allowance: PodAllowance = PodAllowance(), **workers: Any) -> str:  # noqa: B008 - frozen
    """Why no worker is made; nothing when one is, in both forms."""
    said = set()
    for build in (driver_pod, kubeflow_application):
        try:
            build(request_of(EXECUTORS | workers, allowance=allowance), default_image="w:1")
            said.add("")
        except LaunchError as error:
            said.add(str(error).replace("spark-kubernetes-driver", "worker"))
    assert len(said) == 1
    return said.pop()


def of(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def annotated(profile: str) -> dict[str, Any]:
    return {"podTemplate": {"metadata": {"annotations": {APPARMOR: profile, "a": "unconfined"}}}}


def container(**members: Any) -> dict[str, Any]:
    return of(containers=[{"name": "worker", **members}])


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ({"serviceAccountName": "compaction-operator"}, "the service account compaction-operator"),
        (of(serviceAccountName="default"), "the service account default"),
        (of(serviceAccount="compaction-operator"), "the service account compaction-operator"),
        (of(hostNetwork=True, hostPID=True, hostIPC=True), "hostNetwork, hostPID, hostIPC"),
        (of(nodeName="a"), "nodeName"),
        (of(volumes=[{"name": "root", "hostPath": {"path": "/"}}]), "a volume of hostPath (root)"),
        (of(volumes=[{"name": "x", "flexVolume": {"driver": "a/b"}}]), "a volume of flexVolume (x)"),
        (of(securityContext={"runAsUser": 0}), "securityContext.runAsUser: 0"),
        (of(securityContext={"runAsNonRoot": False}), "securityContext.runAsNonRoot: false"),
        (of(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "the sysctl kernel.msgmax"),
        (of(securityContext={"seccompProfile": {"type": "Unconfined"}}), "securityContext.seccompProfile"),
        (of(securityContext={"windowsOptions": {"hostProcess": True}}), "windowsOptions.hostProcess"),
        (container(securityContext={"privileged": True}), "].securityContext.privileged"),
        (container(securityContext={"allowPrivilegeEscalation": True}), "].securityContext.allowPrivilegeEscalation"),
        (container(securityContext={"procMount": "Unmasked"}), "].securityContext.procMount"),
        (
            container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
            "capabilities: SYS_ADMIN",
        ),
        (container(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "].securityContext.seLinuxOptions"),
        (container(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "].securityContext.appArmorProfile"),
        (annotated("unconfined"), f"the annotation {APPARMOR}: unconfined"),
        (container(ports=[{"containerPort": 1, "hostPort": 1}]), "]: hostPort"),
        (container(terminationMessagePath="/var/run/secrets/a"), "].terminationMessagePath"),
        (of(initContainers=[{"name": "i", "securityContext": {"runAsUser": 0}}]), "initContainers[i].securityContext"),
        (of(containers=[{"name": "b", "securityContext": {"privileged": True}}]), "containers[b].securityContext"),
        (of(ephemeralContainers=[{"name": "e", "securityContext": {"privileged": True}}]), "ephemeralContainers[e]"),
    ],
)
def test_no_pod_is_made_with_what_is_not_the_tenants(workers: dict[str, Any], says: str) -> None:
    said = attempt(**workers)
    assert said.startswith("workers of policies may not have ")
    assert says in said.partition(": correct spec.workers")[0]


@pytest.mark.parametrize(
    "workers",
    [
        FULL,
        of(
            securityContext={
                "runAsUser": 999,
                "fsGroup": 1,
                "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
            }
        ),
        of(volumes=[{"name": "a", "nfs": {"server": "a", "path": "/"}}, {"name": "b", "emptyDir": {}}], nodeName=""),
        container(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}}, ports=[{"containerPort": 1}]),
        annotated("runtime/default"),
        annotated("localhost/spark"),
        of(hostNetwork=False, priorityClassName="low", tolerations=[{"operator": "Exists"}]),
    ],
)
def test_what_the_baseline_allows_is_made(workers: dict[str, Any]) -> None:
    assert attempt(**workers) == ""


def test_the_installation_may_allow_more_and_accounts_apart_from_it() -> None:
    everything = of(hostNetwork=True, volumes=[{"name": "root", "hostPath": {"path": "/"}}])
    assert attempt(PodAllowance(privileged=True), **everything) == ""
    mine = {"serviceAccountName": "mine"}
    assert "the service account mine" in attempt(PodAllowance(privileged=True), **mine)
    assert attempt(PodAllowance(accounts=frozenset({"mine"})), **mine) == ""
    # Executors never run as drivers do.
    assert "the service account mine" in attempt(
        PodAllowance(accounts=frozenset({"mine"})), **of(serviceAccountName="mine")
    )


def test_members_of_other_forms_are_no_reason_for_a_defect() -> None:
    assert attempt(**of(volumes=[{"name": "a", "secret": None}], initContainers=[{"name": "i", "ports": 3}])) == ""
