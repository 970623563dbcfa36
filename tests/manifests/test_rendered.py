"""What the manifests hold, without a cluster: up to date, labelled, hardened, and nothing granted by the handful."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.api.manifests import configuration_of
from compaction.api.names import COMPONENT_EXECUTOR, COMPONENT_WORKER, LABEL_COMPONENT
from compaction.api.policy.configuration import OperatorConfiguration
from compaction.kube.client.transport import APACHE_APPLICATIONS, CONFIG_MAPS, KUBEFLOW_APPLICATIONS, SECRETS
from compaction.kube.launchers.objects import VERBS
from node.network_policies import selects
from support.cluster.control_plane import CLUSTER, MANIFESTS, NAMESPACED, ROOT, documents, names, with_components

Object = dict[str, Any]
Rendered = Callable[[Path], list[Object]]

LABEL = "app.kubernetes.io/"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KUSTOMIZATIONS = sorted(
    path.parent
    for path in MANIFESTS.rglob("kustomization.yaml")
    if "components" not in path.relative_to(MANIFESTS).parts
)
OVERLAYS = [NAMESPACED, CLUSTER]
ENDPOINTS = ("block-ingest", "staging-ingest", "console")


def one(objects: list[Object], kind: str, name: str = "compaction-operator") -> Object:
    (found,) = (found for found in objects if found["kind"] == kind and found["metadata"]["name"] == name)
    return found


def pod_of(objects: list[Object]) -> Object:
    template: Object = one(objects, "Deployment")["spec"]["template"]
    return template


@pytest.mark.parametrize("directory", KUSTOMIZATIONS, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_every_kustomization_renders_and_uses_all_its_files(rendered: Rendered, directory: Path) -> None:
    assert rendered(directory)
    text = (directory / "kustomization.yaml").read_text()
    beside = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in beside if name not in text} == set()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_objects_carry_the_standard_labels(rendered: Rendered, overlay: Path) -> None:
    for found in rendered(overlay):
        if found["kind"] == "CustomResourceDefinition":
            continue
        labels = found["metadata"]["labels"]
        assert labels[f"{LABEL}name"] in {"compaction-operator", "compaction-worker"}, found
        assert labels[f"{LABEL}part-of"] == "compaction"
        by = "compaction-operator" if found["kind"] == "Lease" else "kustomize"
        assert labels[f"{LABEL}managed-by"] == by


def test_versions_are_the_versions_of_the_package(rendered: Rendered) -> None:
    objects = rendered(NAMESPACED)
    template = pod_of(objects)
    (container,) = template["spec"]["containers"]
    assert one(objects, "Deployment")["metadata"]["labels"][f"{LABEL}version"] == VERSION
    assert template["metadata"]["labels"][f"{LABEL}version"] == VERSION
    assert container["image"] == f"compaction-operator:{VERSION}"
    assert configuration_in(objects).defaults.workers.image == f"compaction-worker:{VERSION}"


def configuration_in(objects: list[Object]) -> OperatorConfiguration:
    """What the operator reads when it starts: the file of the ConfigMap that its pod mounts."""
    template = pod_of(objects)
    (container,) = template["spec"]["containers"]
    (path,) = (Path(arg.partition("=")[2]) for arg in container["args"] if arg.startswith("--config="))
    mount = next(item["name"] for item in container["volumeMounts"] if item["mountPath"] == str(path.parent))
    volume = next(item for item in template["spec"]["volumes"] if item["name"] == mount)
    found = one(objects, "ConfigMap", volume["configMap"]["name"])
    assert re.fullmatch("compaction-operator-config-[a-z0-9]{10}", found["metadata"]["name"]), (
        "a change replaces the replicas"
    )
    return configuration_of(found["data"][path.name], path.name)


def test_selectors_match_the_template_and_name_no_version(rendered: Rendered) -> None:
    objects = rendered(NAMESPACED)
    labels = pod_of(objects)["metadata"]["labels"].items()
    spread = pod_of(objects)["spec"]["topologySpreadConstraints"][0]["labelSelector"]
    for selector in (
        one(objects, "Deployment")["spec"]["selector"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"],
        spread,
    ):
        assert selector["matchLabels"].items() <= labels
        assert f"{LABEL}version" not in selector["matchLabels"], "a selector can never be changed"


def test_two_replicas_of_which_a_drain_leaves_one(rendered: Rendered) -> None:
    objects = rendered(NAMESPACED)
    deployment = one(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert one(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == 1


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_nothing_is_granted_by_the_handful(rendered: Rendered, overlay: Path) -> None:
    roles = [found for found in rendered(overlay) if found["kind"] in {"Role", "ClusterRole"}]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
            assert not [word for word in words if "*" in word], role["metadata"]["name"]
            assert {"escalate", "bind", "impersonate", "exec", "attach", "proxy"}.isdisjoint(words)
            assert not [word for word in words if word.startswith(("secrets", "roles", "clusterroles", "nodes"))]
            assert "pods/exec" not in words


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_bindings_name_our_roles_and_our_accounts(rendered: Rendered, overlay: Path) -> None:
    objects = rendered(overlay)
    existing = names(objects)
    bindings = [found for found in objects if found["kind"].endswith("RoleBinding")]
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in existing
        for subject in binding["subjects"]:
            assert ("ServiceAccount", subject["name"]) in existing
            assert subject["namespace"] == "compaction-system"
    assert {binding["kind"] for binding in bindings} == (
        {"RoleBinding"} if overlay == NAMESPACED else {"ClusterRoleBinding"}
    )


def test_the_overlays_differ_in_reach_only(rendered: Rendered) -> None:
    narrow, wide = (pod_of(rendered(overlay))["spec"]["containers"][0]["args"] for overlay in OVERLAYS)
    assert "--namespace=$(POD_NAMESPACE)" in narrow
    assert "--all-namespaces" in wide
    assert [word for word in wide if word != "--all-namespaces"] == [
        word for word in narrow if not word.startswith("--namespace")
    ]
    assert "--lease-namespace=$(POD_NAMESPACE)" in wide


def test_a_namespace_of_workers_binds_its_own_account(rendered: Rendered) -> None:
    objects = rendered(MANIFESTS / "examples" / "namespace")
    for binding in (found for found in objects if found["kind"] == "RoleBinding"):
        assert binding["metadata"]["namespace"] == "storage"
        assert [subject["namespace"] for subject in binding["subjects"]] == ["storage"]
    assert one(objects, "ServiceAccount", "compaction-executor")["automountServiceAccountToken"] is False


def test_what_selects_the_operators_pods_selects_them(rendered: Rendered, tmp_path: Path) -> None:
    directory = with_components(tmp_path / "mine", NAMESPACED, "networkpolicy", "prometheus", "grafana")
    objects = rendered(directory)
    template = pod_of(objects)
    labels = template["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    monitor = one(objects, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels
    assert monitor["podMetricsEndpoints"][0]["port"] in ports
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    for found in objects:
        if found["kind"] not in {"Namespace", "CustomResourceDefinition", "ClusterRole"}:
            assert found["metadata"]["namespace"] == "compaction-system", found["kind"]


def test_network_policies_select_the_pods_of_workers_and_endpoints(rendered: Rendered, tmp_path: Path) -> None:
    objects = rendered(with_components(tmp_path / "mine", NAMESPACED, "networkpolicy", *ENDPOINTS))
    pods = {
        "compaction-operator": pod_of(objects)["metadata"]["labels"],
        COMPONENT_WORKER: {LABEL_COMPONENT: COMPONENT_WORKER},
        COMPONENT_EXECUTOR: {LABEL_COMPONENT: COMPONENT_EXECUTOR},
    }
    (clients,) = one(objects, "NetworkPolicy", "compaction-ingest")["spec"]["ingress"]
    open_ports = {port["port"] for port in clients["ports"]}
    for name in ENDPOINTS:
        template = one(objects, "Deployment", f"compaction-{name}")["spec"]["template"]
        pods[name] = template["metadata"]["labels"]
        (port,) = (port for container in template["spec"]["containers"] for port in container.get("ports", ()))
        assert open_ports == {port["name"]}
    selected = {
        policy["metadata"]["name"]: {
            name for name, labels in pods.items() if selects(policy["spec"]["podSelector"], labels)
        }
        for policy in objects
        if policy["kind"] == "NetworkPolicy"
    }
    assert selected == {
        "compaction-operator": {"compaction-operator"},
        "compaction-workers": {COMPONENT_WORKER, COMPONENT_EXECUTOR},
        "compaction-drivers": {COMPONENT_WORKER},
        "compaction-ingest": set(ENDPOINTS),
    }


def test_the_example_installation_fits_the_example_policy(rendered: Rendered) -> None:
    examples = MANIFESTS / "examples"
    objects = rendered(examples / "installation")
    storage = documents((examples / "installation" / "storage.yaml").read_text())
    claim = one(storage, "PersistentVolumeClaim", "segment-logs")
    spec = pod_of(objects)["spec"]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    claims = {
        volume["persistentVolumeClaim"]["claimName"]: mounts[volume["name"]]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    (policy,) = documents((examples / "policy-in-pods.yaml").read_text())
    store = policy["spec"]["store"]["segmentLogs"]
    assert claims == {store["volume"]["claimName"]: store["root"]}
    assert claim["metadata"]["namespace"] == one(objects, "Deployment")["metadata"]["namespace"] == "storage"
    assert {"Namespace", "PersistentVolumeClaim"}.isdisjoint(found["kind"] for found in objects), (
        "deleted with the rest"
    )
    assert "/tmp" in mounts.values(), "what the base mounts stays"
    assert configuration_in(objects).defaults.workers.image == f"compaction-worker:{VERSION}"
    assert container["image"] == f"compaction-operator:{VERSION}"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_with_a_spark_operator_its_applications_are_granted_and_nothing_else(
    rendered: Rendered, tmp_path: Path, overlay: Path
) -> None:
    directory = with_components(tmp_path / "mine", overlay, "spark-operators")
    before, after = (one(rendered(where), "ClusterRole")["rules"] for where in (overlay, directory))
    (added,) = [rule for rule in after if rule not in before]
    assert [rule for rule in after if rule != added] == before
    assert sorted(added["apiGroups"]) == sorted(kind.group for kind in (KUBEFLOW_APPLICATIONS, APACHE_APPLICATIONS))
    assert added["resources"] == [KUBEFLOW_APPLICATIONS.plural] == [APACHE_APPLICATIONS.plural]
    assert sorted(added["verbs"]) == sorted(VERBS)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_block_stores_add_the_reading_of_secrets_by_name_in_one_namespace(
    rendered: Rendered, tmp_path: Path, overlay: Path
) -> None:
    """However wide the operator's reach is: with the ClusterRole it would be every Secret of the cluster."""
    before, after = rendered(overlay), rendered(with_components(tmp_path / "mine", overlay, "block-stores"))
    added = [found for found in after if found not in before]
    assert names(added) == {("Role", "compaction-block-stores"), ("RoleBinding", "compaction-block-stores")}
    assert [found for found in after if found not in added] == before
    rules = one(added, "Role", "compaction-block-stores")["rules"]
    assert rules == [
        {"apiGroups": [""], "resources": [kind.plural], "verbs": ["get"]} for kind in (SECRETS, CONFIG_MAPS)
    ]
    (subject,) = one(added, "RoleBinding", "compaction-block-stores")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "compaction-operator", "namespace": "compaction-system"}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_catalogs_add_the_reading_of_secrets_and_tokens_of_the_operators_own_account(
    rendered: Rendered, tmp_path: Path, overlay: Path
) -> None:
    before, after = rendered(overlay), rendered(with_components(tmp_path / "mine", overlay, "catalogs"))
    added = [found for found in after if found not in before]
    assert [found for found in after if found not in added] == before
    kinds = ("Role", "RoleBinding")
    both = {(kind, name) for kind in kinds for name in ("compaction-catalogs", "compaction-catalog-tokens")}
    assert names(added) == both | {("ClusterRole", "compaction-catalog-participant")}
    (rule,) = one(added, "Role", "compaction-catalogs")["rules"]
    assert rule == {"apiGroups": [""], "resources": [SECRETS.plural], "verbs": ["get"]}
    (rule,) = one(added, "Role", "compaction-catalog-tokens")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["serviceaccounts/token"], ["create"])
    deployment = one(after, "Deployment", "compaction-operator")["spec"]["template"]["spec"]
    assert rule["resourceNames"] == [deployment["serviceAccountName"]], "and of no other account"
    assert "--service-account=$(POD_NAMESPACE)/$(POD_SERVICE_ACCOUNT)" in deployment["containers"][0]["args"]
    (rule,) = one(added, "ClusterRole", "compaction-catalog-participant")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["tokenreviews"], ["create"])


def test_a_further_namespace_with_block_stores_names_its_secrets(rendered: Rendered) -> None:
    objects = rendered(MANIFESTS / "examples" / "block-stores")
    plain = names(rendered(MANIFESTS / "examples" / "namespace"))
    assert plain < names(objects), "it is more of the same"
    rule, _ = one(objects, "Role", "compaction-block-stores")["rules"]
    assert rule["resourceNames"] == ["lake-credentials", "lake-index"]
    binding = one(objects, "RoleBinding", "compaction-block-stores")
    assert binding["metadata"]["namespace"] == "storage"
    assert [subject["namespace"] for subject in binding["subjects"]] == ["compaction-system"]


def test_a_further_namespace_with_catalogs_names_its_secrets(rendered: Rendered) -> None:
    """Tokens of the operator's account are created where that is."""
    objects = rendered(MANIFESTS / "examples" / "catalogs")
    bound = {("Role", "compaction-catalogs"), ("RoleBinding", "compaction-catalogs")}
    assert names(objects) == bound | {("ClusterRole", "compaction-catalog-participant")}
    (rule,) = one(objects, "Role", "compaction-catalogs")["rules"]
    assert rule["resourceNames"] == ["orders-etcd", "orders-participants"]
    binding = one(objects, "RoleBinding", "compaction-catalogs")
    assert binding["metadata"]["namespace"] == "storage"
    assert [subject["namespace"] for subject in binding["subjects"]] == ["compaction-system"]


def test_the_page_about_catalogs_opens_the_ports_of_etcd_and_participants(rendered: Rendered, tmp_path: Path) -> None:
    directory = with_components(tmp_path / "mine", NAMESPACED, "networkpolicy", "catalogs")
    page = (ROOT / "docs" / "catalogs.md").read_text()
    (patch,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if text.startswith("patches:")]
    with (directory / "kustomization.yaml").open("a") as file:
        file.write(patch)
    egress = one(rendered(directory), "NetworkPolicy", "compaction-operator")["spec"]["egress"]
    assert {2379, 7800} <= {port["port"] for rule in egress for port in rule.get("ports", ())}


def test_the_page_opens_further_ports_of_network_policies(rendered: Rendered, tmp_path: Path) -> None:
    """The patch of docs/install.md, word by word."""
    directory = with_components(tmp_path / "mine", NAMESPACED, "networkpolicy", "block-stores")
    page = (ROOT / "docs" / "install.md").read_text()
    (patch,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if text.startswith("patches:")]
    with (directory / "kustomization.yaml").open("a") as file:
        file.write(patch)
    for name in ("compaction-operator", "compaction-workers", "compaction-ingest"):
        egress = one(rendered(directory), "NetworkPolicy", name)["spec"]["egress"]
        assert {5432, 9000} <= {port["port"] for rule in egress for port in rule.get("ports", ())}


def test_expressions_need_no_kubernetes_after_1_30() -> None:
    """What a server emulates (test_tenants) is not that old: macros of two variables came with 1.32, with 1.34 the
    functions of lists.
    """
    places = [*(MANIFESTS / "admission").glob("*.yaml"), *(MANIFESTS / "components").rglob("admission.yaml")]
    assert len(places) > 4
    newer = re.compile(
        r"\.(?:all|exists|existsOne|transform\w+)\(\w+,\s*\w+,|\.(?:flatten|distinct|sort\w*|slice|first|last)\("
    )
    assert {path.name: found for path in places if (found := newer.findall(path.read_text()))} == {}
