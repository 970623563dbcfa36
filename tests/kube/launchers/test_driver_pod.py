"""The driver pod as an object: what the policy says is in it, once, and it satisfies `restricted`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.enums import LauncherType
from compaction.cli.local.policy_file import load_policies
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.backends import BACKENDS
from compaction.kube.launchers.base import PodAllowance
from compaction.kube.launchers.driver_pod import TEMPLATE_DIRECTORY, driver_pod
from compaction.kube.launchers.kubeflow import kubeflow_application
from kube.launchers.played_cluster import FULL, IMAGE, request_of
from support.cluster.manifests import policy_object


def pod_of(workers: dict[str, Any], **options: Any) -> dict[str, Any]:
    return driver_pod(request_of(workers, **options))


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return only  # type: ignore[no-any-return]


def conf_of(pod: dict[str, Any]) -> dict[str, str]:
    args = container(pod)["args"]
    pairs = [args[i + 1] for i, word in enumerate(args) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_a_driver_alone_needs_nothing_but_itself() -> None:
    pod = pod_of({})
    worker = container(pod)
    assert worker["image"] == "w:1"
    assert worker["args"][:2] == ["compactor", "worker"]
    assert worker["args"][worker["args"].index("--master") + 1] == "local[2]"
    assert worker["resources"] == {
        "requests": {"memory": str(2 << 30), "cpu": "500m"},
        "limits": {"memory": str(2 << 30)},
    }
    assert not [key for key in conf_of(pod) if "kubernetes" in key or "executor" in key]
    assert pod["metadata"]["name"] == "logs-w-abcd-12345"
    assert pod["metadata"]["annotations"] == {"compaction.dev/driver-memory": str(2 << 30)}
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("CompactionPolicy", True)


def test_what_restricted_asks_for() -> None:
    spec = pod_of({})["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = spec["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    mounted = {item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}
    assert {"/tmp", "/opt/spark/work-dir"} <= mounted, "a read-only root needs room to write"


def test_everything_the_policy_says_is_in_the_pod() -> None:
    pod = pod_of(FULL)
    spec, worker, meta = pod["spec"], container(pod), pod["metadata"]
    assert (worker["image"], worker["imagePullPolicy"]) == (IMAGE, "IfNotPresent")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["serviceAccountName"] == "compaction-worker"
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert [item["key"] for item in spec["tolerations"]] == ["spot", "team"]
    assert spec["priorityClassName"] == "system-node-critical"
    assert meta["labels"]["kueue.x-k8s.io/queue-name"] == "compaction"
    assert worker["envFrom"] == [{"secretRef": {"name": "credentials"}}]
    mounts = {item["mountPath"]: item for item in worker["volumeMounts"]}
    assert mounts["/data/ra"] == {"name": "logs", "mountPath": "/data/ra", "subPath": "ra"}
    assert mounts["/etc/certificates"]["readOnly"] is True
    volumes = {item["name"]: item for item in spec["volumes"]}
    assert volumes["logs"]["persistentVolumeClaim"] == {"claimName": "segment-logs"}
    assert worker["resources"]["limits"] == {"memory": str(2 << 30), "cpu": "2"}
    assert {"name": "spark-ui", "containerPort": 4040, "protocol": "TCP"} in worker["ports"]


def test_a_users_template_is_merged_and_our_words_stay() -> None:
    pod = pod_of(FULL)
    worker = container(pod)
    assert worker["name"] == "worker"
    assert worker["args"][0] == "compactor", "what is run is not the template's to say"
    assert {"name": "TZ", "value": "UTC"} in worker["env"]
    assert {item["name"] for item in worker["env"]} == {"POD_NAME", "POD_IP", "TZ"}
    assert pod["spec"]["securityContext"]["fsGroup"] == 100
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "extra" in {item["name"] for item in pod["spec"]["volumes"]}
    labels = pod["metadata"]["labels"]
    assert (labels["team"], labels["compaction.dev/worker"]) == ("storage", "logs-w-abcd-12345")
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_executors_are_made_by_the_driver_from_a_template_it_carries() -> None:
    pod = pod_of(FULL)
    conf = conf_of(pod)
    assert conf["spark.executor.instances"] == "2"
    assert (conf["spark.executor.memory"], conf["spark.executor.memoryOverhead"]) == ("512m", "512m")
    assert (conf["spark.kubernetes.executor.request.cores"], conf["spark.kubernetes.executor.limit.cores"]) == (
        "1",
        "1500m",
    )
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)", "executors are owned by the driver"
    assert conf["spark.default.parallelism"] == "4"
    assert conf["spark.decommission.enabled"] == "true"
    assert conf["spark.eventLog.dir"] == "/tmp/spark-events"
    template = json.loads(pod["metadata"]["annotations"]["compaction.dev/executor-template"])
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["serviceAccountName"] == "compaction-executor"
    (executor,) = template["spec"]["containers"]
    assert executor["name"] == conf["spark.kubernetes.executor.podTemplateContainerName"]
    assert "args" not in executor, "Spark's own"
    assert template["metadata"]["labels"]["compaction.dev/component"] == "executor"
    volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "executor-template")
    (item,) = volume["downwardAPI"]["items"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{TEMPLATE_DIRECTORY}/{item['path']}"


def test_executors_may_come_and_go() -> None:
    conf = conf_of(pod_of({"dynamicAllocation": {"minExecutors": 1, "maxExecutors": 5, "idleSeconds": 30}}))
    assert conf["spark.dynamicAllocation.enabled"] == "true"
    assert conf["spark.dynamicAllocation.initialExecutors"] == "1"
    assert conf["spark.dynamicAllocation.executorIdleTimeout"] == "30s"
    assert conf["spark.default.parallelism"] == "5"
    assert "spark.executor.instances" not in conf


def test_a_setting_that_looks_like_a_variable_is_none() -> None:
    args = container(pod_of({"sparkConf": {"spark.ui.port": "$(POD_IP)"}}))["args"]
    assert "spark.ui.port=$$(POD_IP)" in args, "the kubelet writes $( for it"


@pytest.mark.parametrize(
    ("workers", "advice"),
    [
        ({"sparkConf": {"spark.driver.memory": "2g"}}, "spark.driver.memory (2g) does not fit into"),
        ({"sparkConf": {"spark.driver.memory": "much"}}, "write a size such as 512m or 2g"),
        ({"podTemplate": {"spec": {"containers": {}}}}, "podTemplate.spec.containers must be a list"),
        ({"podTemplate": {"spec": {"volumes": [{}]}}}, "podTemplate.spec.volumes[0] must be an object with name"),
        ({"podTemplate": {"spec": {"securityContext": 1}}}, "podTemplate.spec.securityContext must be an object"),
    ],
)
def test_what_cannot_be_put_together_says_what_to_do(workers: dict[str, Any], advice: str) -> None:
    with pytest.raises(LaunchError) as refusal:
        pod_of(workers)
    assert advice in str(refusal.value)


@pytest.mark.parametrize("launcher", BACKENDS)
def test_the_example_in_the_documentation_can_be_built(launcher: LauncherType) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "resources.md").read_text()
    (example,) = (block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "podTemplate" in block)
    document = policy_object() | {"spec": yaml.safe_load(example)}
    (policy,) = load_policies(yaml.safe_dump(document), source="resources.md")
    request = request_of(document["spec"]["workers"])
    built = json.dumps(BACKENDS[launcher].build(request))
    assert policy.spec.workers.image in built
    assert "spark-events" in built


def test_without_any_image_there_is_advice() -> None:
    with pytest.raises(LaunchError, match=r"set spec.workers.image, or defaults.workers.image in the operator's"):
        driver_pod(request_of({"image": ""}))


@pytest.mark.parametrize(("heap", "overhead"), [("1g", "1024m"), ("768m", "1280m"), ("1048576k", "1024m")])
def test_a_heap_in_any_unit_leaves_the_rest_to_python(heap: str, overhead: str) -> None:
    workers = {"executor": {"instances": 1, "memory": "2Gi"}, "sparkConf": {"spark.executor.memory": heap}}
    assert conf_of(pod_of(workers))["spark.executor.memoryOverhead"] == overhead


# What pods of workers may not have, whatever a namespace enforces, unless the installation allows it.

EXECUTORS = {"executor": {"instances": 1}}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/worker"


def attempt(allowance: PodAllowance = PodAllowance(), **workers: Any) -> str:  # noqa: B008 - frozen
    """Why no worker is made; nothing when one is, in both forms."""
    said = set()
    for build in (driver_pod, kubeflow_application):
        try:
            build(request_of(EXECUTORS | workers, allowance=allowance))
            said.add("")
        except LaunchError as error:
            said.add(str(error).replace("spark-kubernetes-driver", "worker"))
    assert len(said) == 1
    return said.pop()


def of(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def annotated(profile: str) -> dict[str, Any]:
    return {"podTemplate": {"metadata": {"annotations": {APPARMOR: profile, "a": "unconfined"}}}}


def of_worker(**members: Any) -> dict[str, Any]:
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
        (of_worker(securityContext={"privileged": True}), "].securityContext.privileged"),
        (of_worker(securityContext={"allowPrivilegeEscalation": True}), "].securityContext.allowPrivilegeEscalation"),
        (of_worker(securityContext={"procMount": "Unmasked"}), "].securityContext.procMount"),
        (
            of_worker(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
            "capabilities: SYS_ADMIN",
        ),
        (of_worker(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "].securityContext.seLinuxOptions"),
        (of_worker(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "].securityContext.appArmorProfile"),
        (annotated("unconfined"), f"the annotation {APPARMOR}: unconfined"),
        (of_worker(ports=[{"containerPort": 1, "hostPort": 1}]), "]: hostPort"),
        (of_worker(terminationMessagePath="/var/run/secrets/a"), "].terminationMessagePath"),
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
        of_worker(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}}, ports=[{"containerPort": 1}]),
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
