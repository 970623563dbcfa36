"""All that the tests ask Kubeflow's release, by name: what `answers.json` has the answers to, no more and no less."""

from __future__ import annotations

from typing import Any, Final

from compaction.core.reconcile.workers.fleet import worker_names
from compaction.kube.launchers.kubeflow import WRITTEN_CONF, kubeflow_application
from kube.launchers.kubeflow.recorded import UID, Question, Submission
from kube.launchers.played_cluster import FULL, request_of

DYNAMIC: Final = FULL | {"dynamicAllocation": {"minExecutors": 0, "maxExecutors": 3}, "executor": {"instances": 0}}
VARIANTS: Final[dict[str, dict[str, Any]]] = {"plain": {}, "full": FULL, "dynamic": DYNAMIC}
POLICIES: Final = ("logs", "9-lives", "a.policy.with.dots", "n" * 63)

NAME: Final = "logs-w-abcd-12345"
BESIDE: Final = "logs-w-abcd-54321"
NAMESPACE: Final = "kubeflow-submission"
NOTHING_DROPPED = {"name": "worker", "securityContext": {"capabilities": {"drop": []}}}
REFUSED: Final = {"podTemplate": {"spec": {"containers": [NOTHING_DROPPED]}}}
"""What a namespace that enforces `restricted` takes no pods of."""
PROXY = {
    "name": "a-proxy",
    "image": "proxy:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
WITH_PROXY: Final = {"podTemplate": {"spec": {"containers": [PROXY]}}}
SUBMITTED: Final[dict[str, dict[str, Any]]] = {NAME: FULL, BESIDE: WITH_PROXY, "refused": REFUSED}
"""Names of the applications that are submitted -> their policy's workers."""


def variant(name: str) -> dict[str, Any]:
    return kubeflow_application(request_of(VARIANTS[name]))


def with_setting(key: str) -> dict[str, Any]:
    """An application that sets a key of sparkConf which the operator writes itself, and to what it would write."""
    application = variant("plain")
    application["spec"]["sparkConf"][key] = application["spec"]["image"]
    return application


def in_another_namespace() -> dict[str, Any]:
    application = variant("full")
    conf = application["spec"]["sparkConf"]
    assert conf["spark.kubernetes.namespace"] == application["metadata"]["namespace"]
    conf["spark.kubernetes.namespace"] = "another"
    return application


def of_policy(policy: str) -> dict[str, Any]:
    """The application of a worker of this policy, with the worker's name."""
    (name,) = worker_names(policy, "uid", settings="abcd", seed=1.0, count=1, taken=())
    return kubeflow_application(request_of({}, name=name))


def submitted(name: str, uid: str) -> dict[str, Any]:
    """One of `SUBMITTED`. Its uid is its own on this machine: the operator keeps what it submits below /tmp/spark by
    it.
    """
    request = request_of(SUBMITTED[name], name=name, namespace=NAMESPACE)
    application = kubeflow_application(request)
    application["metadata"]["uid"] = uid
    return application


def asked() -> dict[str, Question]:
    """Every question, by a name."""
    validated = (
        {name: variant(name) for name in VARIANTS}
        | {key: with_setting(key) for key in sorted(WRITTEN_CONF)}
        | {"another namespace": in_another_namespace()}
        | {f"policy {policy}": of_policy(policy) for policy in POLICIES}
    )
    return (
        {"rules": Question("rules")}
        | {f"validate {name}": Question.about("validate", application) for name, application in validated.items()}
        | {f"submit {name}": Question.about("submit", submitted(name, UID), Submission()) for name in SUBMITTED}
    )
