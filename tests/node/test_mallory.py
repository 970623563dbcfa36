"""A tenant gains nothing, on a real node (docs/design/threat-model.md): every attempt of the table as a real write, at
admission and past it, and code of hers in pods; in a namespace with and without the labels of Pod Security, for an
operator of one namespace and of all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.kube.client.transport import COMPACTION_JOBS, COMPACTION_POLICIES, PODS
from compaction.local.tenants import OF_WORKERS, pod
from node.mallory import (
    AGENT,
    CANARY,
    KEY,
    LISTENER,
    MALLORY,
    THEIRS,
    Tenant,
    listening,
    living_in,
    of_her_code,
    said_by_her_code,
    templates,
    told,
)
from node.on_node import CLAIM, NAMESPACE, OPERATOR, USER, Installation, VolumeLogs, plane_of, volume_object
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Cluster, Object, condition
from support.cluster.control_plane import CLUSTER, MANIFESTS, ROOT, Use, account, uses
from support.timing import at_depth

SYSTEM, PLAIN = "compaction-system", "plain"
ENFORCED = "pod-security.kubernetes.io/enforce"
BINDINGS = ("compaction-policies", "compaction-catalogs")
APPROVAL = str(MANIFESTS / "components" / "approval" / "admission.yaml")
MAY_NOT = 403


@dataclass(frozen=True, slots=True)
class Situation:
    """An operator, and the namespaces where she tries the same; `heard`: what her server was sent."""

    installation: Installation
    system: Cluster
    tenants: tuple[Tenant, ...]
    heard: Path

    def standing(self) -> tuple[str, int, list[int]]:
        """Who leads, how often that has changed, and how often replicas were started again."""
        [lease] = self.system.list("lease", fields="metadata.name=compaction-coordinator")
        replicas = self.system.list("pod", labels=f"app.kubernetes.io/name={OPERATOR}")
        restarts = [item["restartCount"] for each in replicas for item in each["status"].get("containerStatuses", ())]
        spec = lease.get("spec", {})
        return str(spec.get("holderIdentity") or ""), int(spec.get("leaseTransitions") or 0), restarts


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What there is after all of her objects were written past the admission, and an honest policy is through."""

    situation: Situation
    policies: dict[str, Object]
    catalogs: dict[str, Object]
    code: dict[str, Object]
    told: dict[str, str]
    logs: str
    before: tuple[str, int, list[int]]
    after: tuple[str, int, list[int]]


@contextmanager
def kustomized(cluster: Cluster, directory: Path, document: Object) -> Iterator[None]:
    """A kustomization of the test's own, applied and deleted."""
    directory.mkdir(parents=True)
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    cluster.kubectl("apply", "--server-side", "-k", str(directory))
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-k", str(directory))


def may_read_secrets(directory: Path, tenant: Tenant) -> Object:
    """The operator's permissions for stores and catalogs in a namespace, and the accounts of workers there."""
    components = [os.path.relpath(MANIFESTS / "components" / item, directory) for item in ("block-stores", "catalogs")]
    subject = yaml.safe_dump([{"op": "add", "path": "/subjects/0/namespace", "value": tenant.system}])
    workers = [] if tenant.namespace == NAMESPACE else [os.path.relpath(MANIFESTS / "workers", directory)]
    target = {"kind": "RoleBinding", "name": "compaction-(block-stores|catalog.*)"}
    patches = [{"target": target, "patch": subject}]
    return {"namespace": tenant.namespace, "resources": workers, "components": components, "patches": patches}


@contextmanager
def operator_of_all_namespaces(installation: Installation, directory: Path) -> Iterator[Cluster]:
    """overlays/cluster with the volume, instead of the operator of one namespace."""
    system = Cluster(plane_of(installation.node), SYSTEM)
    directory.mkdir()
    volume = (MANIFESTS / "examples" / "installation" / "operator.yaml").read_text()
    document = {"resources": [os.path.relpath(CLUSTER, directory)], "patches": [{"patch": volume}]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    installation.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
    system.kubectl("apply", "--server-side", "-k", str(directory))
    claim(installation, system)
    try:
        system.kubectl("rollout", "status", f"deployment/{OPERATOR}", TIMEOUT_FLAG)
        yield system
    finally:
        installation.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=2")
        # Definitions, roles and admission are those of the other operator, too.
        system.kubectl("delete", f"namespace/{SYSTEM}", f"clusterrolebinding/{OPERATOR}")
        system.kubectl("delete", f"pv/{CLAIM}-{SYSTEM}")
        installation.kubectl("rollout", "status", f"deployment/{OPERATOR}", TIMEOUT_FLAG)


def claim(installation: Installation, cluster: Cluster) -> None:
    """The volume of the logs in another namespace."""
    cluster.apply(volume_object(installation.volume, namespace=cluster.namespace))
    [_, found] = yaml.safe_load_all((MANIFESTS / "examples" / "installation" / "storage.yaml").read_text())
    cluster.apply(found | {"metadata": {"name": found["metadata"]["name"]}})


@contextmanager
def namespace_without_labels(installation: Installation) -> Iterator[Cluster]:
    plain = Cluster(plane_of(installation.node), PLAIN)
    plain.kubectl("create", "namespace", PLAIN)
    # Of the operator's name: without it a pod as that account is refused for the want of it.
    plain.kubectl("create", "serviceaccount", OPERATOR)
    claim(installation, plain)
    try:
        yield plain
    finally:
        plain.kubectl("delete", f"namespace/{PLAIN}")
        plain.kubectl("delete", f"pv/{CLAIM}-{PLAIN}")


ONE, ONE_WITHOUT, ALL = "one namespace, with labels", "one namespace, without", "all namespaces, both"
SITUATIONS = at_depth(short=[ONE_WITHOUT, ALL], deep=[ONE, ONE_WITHOUT, ALL])


@pytest.fixture(scope="module", params=SITUATIONS)
def situation(
    request: pytest.FixtureRequest, installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Situation]:
    directory = tmp_path_factory.mktemp("mallory")
    node, storage = installation.node, installation.cluster
    with ExitStack() as stack:
        heard = stack.enter_context(listening(node, directory / "heard"))
        if request.param == ALL:
            system = stack.enter_context(operator_of_all_namespaces(installation, directory / "cluster"))
            plain = stack.enter_context(namespace_without_labels(installation))
            tenants: tuple[Tenant, ...] = Tenant(node, storage, SYSTEM, True), Tenant(node, plain, SYSTEM, False)
        else:
            system, restricted = storage, request.param == ONE
            if not restricted:
                storage.kubectl("label", "namespace", NAMESPACE, f"{ENFORCED}-")
                stack.callback(storage.kubectl, "label", "namespace", NAMESPACE, f"{ENFORCED}=restricted")
            tenants = (Tenant(node, storage, NAMESPACE, restricted),)
        for tenant in tenants:
            place = directory / tenant.namespace
            stack.enter_context(kustomized(tenant.cluster, place, may_read_secrets(place, tenant)))
            stack.enter_context(living_in(tenant))
        found = Situation(installation, system, tenants, heard)
        eventually(lambda: found.standing()[0], "an operator to lead")
        yield found


def test_every_attempt_is_refused_at_the_write(situation: Situation) -> None:
    """With the account's real token, and in so many words; what is usual is taken."""
    for tenant in situation.tenants:
        attempts = tenant.attempts()
        assert len({attempt.name for attempt in attempts} | {worker.name for worker in OF_WORKERS}) > 40
        said = tenant.write([(attempt.resource, attempt.body) for attempt in attempts])
        assert [item.name for item, answer in zip(attempts, said, strict=True) if item.says not in answer] == []
        names = {item["metadata"]["name"] for item in tenant.cluster.list("cpol") + tenant.cluster.list("ccat")}
        assert names & {attempt.body["metadata"]["name"] for attempt in attempts} == set()
        usual = policy_object(f"{tenant.namespace}-usual", tenant.policy_spec("usual"))
        assert tenant.write([(COMPACTION_POLICIES, usual)]) == [""]
        tenant.cluster.kubectl("delete", "cpol", f"{tenant.namespace}-usual")


def policy_object(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_no_pod_of_hers_runs_as_the_operator(situation: Situation) -> None:
    """Where she may create pods, too."""
    for tenant in situation.tenants:
        kubectl = tenant.cluster.kubectl
        kubectl("create", "role", "pods", "--verb=create", "--resource=pods")
        kubectl("create", "rolebinding", "pods", "--role=pods", f"--serviceaccount={tenant.namespace}:{MALLORY}")
        as_operator = [(PODS, pod(OPERATOR))]
        eventually(partial(says, tenant, as_operator, "only the operator's own Deployment"), "the pod to be refused")
        assert tenant.write([(PODS, pod("default"))], dry=True) == [""], "any other is"
        kubectl("delete", "rolebinding/pods", "role/pods")


def says(tenant: Tenant, objects: list[tuple[Any, Object]], words: str) -> bool:
    return all(words in said for said in tenant.write(objects, dry=True))


def test_four_eyes_are_not_bypassed(situation: Situation) -> None:
    """By no approval, by another approval, by an annotation of hers, by a job by hand."""
    situation.system.kubectl("apply", "-f", APPROVAL)
    try:
        for tenant in situation.tenants:
            name = f"{tenant.namespace}-eyes"
            auto = policy_object(name, tenant.policy_spec(name))
            job = yaml.safe_load((ROOT / "manifests" / "examples" / "job.yaml").read_text())
            at_once = [(COMPACTION_POLICIES, auto)]
            eventually(partial(says, tenant, at_once, "may do without approval"), "a policy to be refused")
            eventually(partial(says, tenant, [(COMPACTION_JOBS, job)], "may create jobs"), "a job to be refused")
            manual = auto | {"spec": auto["spec"] | {"approval": "Manual"}}
            approved = manual | {"metadata": {"name": name, "annotations": {"compaction.dev/approve": "any"}}}
            answers = [*tenant.write(at_once), *tenant.write([(COMPACTION_POLICIES, approved), (COMPACTION_JOBS, job)])]
            for answer, words in zip(
                answers, ("may do without approval", "may approve a plan", "may create jobs"), strict=True
            ):
                assert words in answer
            assert tenant.write([(COMPACTION_POLICIES, manual)]) == [""]
            patched = patched_by_her(tenant, name, {"spec": {"approval": "Auto"}})
            assert "may do without approval" in patched
            annotated = patched_by_her(tenant, name, {"metadata": {"annotations": {"compaction.dev/approve": "any"}}})
            assert "may approve a plan" in annotated
            tenant.cluster.kubectl("delete", "cpol", name)
            assert [item for item in tenant.cluster.jobs() if item["metadata"]["name"] == job["metadata"]["name"]] == []
    finally:
        situation.system.kubectl("delete", "-f", APPROVAL)


def patched_by_her(tenant: Tenant, name: str, change: Object) -> str:
    user = f"--as={account(tenant.namespace, MALLORY)}"
    return tenant.cluster.kubectl("patch", "cpol", name, "--type=merge", "-p", json.dumps(change), user, check=False)


@pytest.fixture(scope="module")
def aftermath(situation: Situation) -> Iterator[Aftermath]:
    """All that the operator can be asked is written while admission is away, as before it came; beside her policies one
    that is honest.
    """
    with admission_away(situation):
        before = situation.standing()
        found = yaml.safe_load(
            situation.system.kubectl("get", "configmap", "-l", f"app.kubernetes.io/name={OPERATOR}", "-o", "yaml")
        )
        image = yaml.safe_load(found["items"][0]["data"]["config.yaml"])["defaults"]["workers"]["image"]
        logs = [write_all(tenant, situation.installation.volume, image) for tenant in situation.tenants]
        code = {tenant.namespace: said_by_her_code(tenant) for tenant in situation.tenants}
        for tenant, honest in zip(situation.tenants, logs, strict=True):
            await_settled(tenant)
            honest.assert_unchanged()
        yield Aftermath(
            situation,
            {item["metadata"]["name"]: item for tenant in situation.tenants for item in tenant.cluster.list("cpol")},
            {item["metadata"]["name"]: item for tenant in situation.tenants for item in tenant.cluster.list("ccat")},
            code,
            {tenant.namespace: told(tenant.cluster) for tenant in situation.tenants},
            situation.system.kubectl("logs", "-l", f"app.kubernetes.io/name={OPERATOR}", "--tail=-1"),
            before,
            situation.standing(),
        )


@contextmanager
def admission_away(situation: Situation) -> Iterator[None]:
    """Afterwards it is in force again, and nothing is left of what was written meanwhile."""
    kubectl = situation.installation.kubectl
    kubectl("delete", "validatingadmissionpolicybinding", *BINDINGS)
    try:
        yield
    finally:
        kubectl("apply", "--server-side", "-k", str(MANIFESTS / "admission"))
        for tenant in situation.tenants:
            tenant.cluster.kubectl("delete", "cpol,ccat,cjob", "--all")
        for tenant in situation.tenants:
            first = tenant.attempts()[0]
            again = partial(says, tenant, [(first.resource, first.body)], first.says)
            eventually(again, "admission to be back")
            eventually(partial(nothing_left, tenant), "pods and Leases of workers to go")
            for directory in situation.installation.volume.glob(f"{tenant.namespace}-*"):
                shutil.rmtree(directory)


def nothing_left(tenant: Tenant) -> bool:
    cluster = tenant.cluster
    workers = cluster.list("pod", labels="compaction.dev/component=worker")
    return not workers + cluster.leases("worker") + cluster.leases("job")


def write_all(tenant: Tenant, volume: Path, image: str) -> VolumeLogs:
    """Her attempts, her templates and an honest policy, each with a log that is worth a job."""
    attempts = [attempt for attempt in tenant.attempts() if attempt.operator]
    objects = [(attempt.resource, attempt.body) for attempt in attempts]
    for name, workers in templates(tenant, image).items():
        objects.append((COMPACTION_POLICIES, policy_object(name, tenant.policy_spec(name, **workers))))
    honest = f"{tenant.namespace}-honest"
    objects.append((COMPACTION_POLICIES, policy_object(honest, tenant.policy_spec(honest))))
    honest_logs = VolumeLogs(volume, {}, honest)
    honest_logs.add("a", entries_per_segment=256, payload_bytes=512)
    for resource, body in objects:
        if resource is COMPACTION_POLICIES and body["metadata"]["name"] != honest:
            VolumeLogs(volume, {}, body["metadata"]["name"]).add("a", entries_per_segment=64, payload_bytes=512)
    # The API server takes a moment to see that a policy is gone.
    taken = partial(tenant.write, objects, dry=True)
    eventually(lambda: not any(taken()), "admission to be away")
    assert [said for said in tenant.write(objects) if said] == []
    return honest_logs


def refusal_of(found: Object) -> str:
    """Reason and message of an object that needs a person, in the end; empty of one that may yet go on."""
    ready = condition(found, "Ready")
    return f"{ready['reason']}: {ready['message']}" if ready.get("status") == "False" else ""


def await_settled(tenant: Tenant) -> None:
    """Until the operator has said of each attempt what is wrong, and the honest policy is through."""

    def unsaid() -> list[str]:
        found = {item["metadata"]["name"]: item for item in tenant.cluster.list("cpol") + tenant.cluster.list("ccat")}
        attempts = {attempt.body["metadata"]["name"]: attempt for attempt in tenant.attempts() if attempt.operator}
        return [
            f"{item.name}: {item.operator!r} is not in {found[name].get('status')}"
            for name, item in attempts.items()
            if item.operator not in refusal_of(found[name])
        ]

    last: list[str] = []

    def said() -> bool:
        nonlocal last
        last = unsaid()
        return not last

    try:
        eventually(said, "the operator to refuse each")
    except AssertionError as error:
        raise AssertionError("\n".join(last)) from error

    def done() -> bool:
        jobs = [job for job in tenant.cluster.jobs() if job["spec"]["policyRef"]["name"].endswith("-honest")]
        return bool(jobs) and all(job.get("status", {}).get("state") == "Succeeded" for job in jobs)

    eventually(done, "the honest policy to be compacted")
    for words in ("init container first", "FailedPostStartHook"):
        eventually(partial(is_told, tenant, words), f"{words!r} to be said")


def is_told(tenant: Tenant, words: str) -> bool:
    return words in told(tenant.cluster)


def test_the_operator_refuses_what_was_written_past_the_admission(aftermath: Aftermath) -> None:
    for tenant in aftermath.situation.tenants:
        for attempt in tenant.attempts():
            if not attempt.operator:
                continue
            name = attempt.body["metadata"]["name"]
            found = (aftermath.policies if attempt.resource is COMPACTION_POLICIES else aftermath.catalogs)[name]
            assert refusal_of(found).startswith(("LaunchFailed: ", "PermissionDenied: ")), attempt.name
            assert attempt.operator in refusal_of(found)


def test_no_pod_was_made_for_an_attempt(aftermath: Aftermath, installation: Installation) -> None:
    situation = aftermath.situation
    log = installation.node.plane.audit_log
    allowed = {
        f"{tenant.namespace}-{name}" for tenant in situation.tenants for name in ("honest", "sidecar", "init", "hook")
    }
    made = pods_made(log, account(situation.system.namespace, OPERATOR))
    hers = {name for name in made if any(name.startswith(f"{tenant.namespace}-") for tenant in situation.tenants)}
    assert {name for name in hers if not name.startswith(tuple(allowed))} == set()
    for tenant in situation.tenants:
        assert any(name.startswith(f"{tenant.namespace}-honest") for name in hers)


def pods_made(audit_log: Path, user: str) -> set[str]:
    found = set()
    with audit_log.open() as lines:
        for line in lines:
            if user in line and '"pods"' in line and line.endswith("\n"):
                entry = json.loads(line)
                target = entry.get("objectRef", {})
                if (entry["verb"], target.get("resource")) == ("create", "pods") and entry["user"]["username"] == user:
                    found.add(str(target.get("name")))
    return found


def test_code_of_hers_in_a_pod_gets_nothing_with_the_token_of_the_worker(
    aftermath: Aftermath, installation: Installation
) -> None:
    for tenant in aftermath.situation.tenants:
        found = aftermath.code[tenant.namespace]["found"]
        assert set(found) == {name for name, *_ in of_her_code(tenant)}
        assert {name: answer for name, answer in found.items() if answer[0] != MAY_NOT} == {}
        done, refused = uses(
            installation.node.plane.audit_log,
            account(tenant.namespace, "compaction-worker"),
            by=lambda agent: agent == AGENT,
        )
        # Before she writes to the coordinator's Lease she reads it: a worker reads the Leases of its namespace.
        assert done <= {Use("coordination.k8s.io", "leases", "get")}
        assert {use.resource for use in refused} >= {"pods", "secrets", "serviceaccounts/token", "leases"}


def test_code_of_hers_in_a_pod_has_what_the_baseline_gives(aftermath: Aftermath) -> None:
    for tenant in aftermath.situation.tenants:
        code = aftermath.code[tenant.namespace]
        status = dict(line.split(":\t", 1) for line in code["status"].splitlines())
        assert set(status["Uid"].split()) == {str(USER)}
        assert int(status["CapEff"], 16) == 0
        assert not [item for item in code["processes"] if "kubelet" in item or "containerd" in item]
        beyond = [
            item
            for item in code["mounts"]
            if not item.startswith(("/proc", "/sys", "/dev", "/etc/", "/run/", "/var/run/"))
        ]
        assert beyond == ["/"]
        [driver] = tenant.cluster.list("pod", labels=f"compaction.dev/policy={tenant.namespace}-sidecar")
        spec = driver["spec"]
        assert spec["serviceAccountName"] == "compaction-worker"
        assert not spec.get("hostPID")
        assert not [item for item in spec["volumes"] if "hostPath" in item]


def test_no_secret_is_where_others_read_it(aftermath: Aftermath) -> None:
    """Not in status or Events, though a sidecar, an init container and a hook had it as their last words; nothing of
    one that is for nobody is known, not even which keys it has; and her own server heard of nobody but her.
    """
    situation = aftermath.situation
    for tenant in situation.tenants:
        said = aftermath.told[tenant.namespace]
        assert f"Secret {THEIRS}" in said
        assert CANARY not in said
        assert KEY not in said
    assert CANARY not in aftermath.logs
    assert KEY not in aftermath.logs
    heard = [json.loads(line) for line in situation.heard.read_text().splitlines()]
    assert len(heard) == len(situation.tenants), LISTENER
    for line in heard:
        assert "-sidecar-" in line
        assert line.startswith("hello from ")


def test_the_operator_leads_on_and_siblings_were_compacted(aftermath: Aftermath) -> None:
    situation = aftermath.situation
    assert aftermath.after == aftermath.before
    for tenant in situation.tenants:
        assert condition(aftermath.policies[f"{tenant.namespace}-honest"], "Ready")["status"] == "True"
