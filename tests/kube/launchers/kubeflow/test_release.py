"""What the webhook of Kubeflow's published release says about our applications, by its own code."""

from __future__ import annotations

import pytest

from compaction.kube.launchers.kubeflow import WRITTEN_CONF, kubeflow_application
from compaction.reconcile.workers.fleet import worker_names
from kube.launchers.kubeflow import released_operator
from kube.launchers.pods import FULL, request_of

DYNAMIC = FULL | {"dynamicAllocation": {"minExecutors": 0, "maxExecutors": 3}, "executor": {"instances": 0}}
VARIANTS = {"plain": {}, "full": FULL, "dynamic": DYNAMIC}


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_webhook_takes_our_applications(variant: str) -> None:
    application = kubeflow_application(request_of(VARIANTS[variant]), default_image="w:1")
    assert released_operator.validate(application) == ""


def test_we_know_every_key_that_it_refuses() -> None:
    assert set(WRITTEN_CONF) == set(released_operator.rules())


@pytest.mark.parametrize("key", sorted(WRITTEN_CONF))
def test_it_refuses_the_key_whatever_its_value(key: str) -> None:
    application = kubeflow_application(request_of({}), default_image="w:1")
    application["spec"]["sparkConf"][key] = application["spec"]["image"]
    assert f'sparkConf key "{key}" is not allowed' in released_operator.validate(application)


def test_it_refuses_another_namespace_and_takes_the_same() -> None:
    application = kubeflow_application(request_of(FULL), default_image="w:1")
    conf = application["spec"]["sparkConf"]
    assert conf["spark.kubernetes.namespace"] == application["metadata"]["namespace"]
    conf["spark.kubernetes.namespace"] = "another"
    assert "must equal the application namespace" in released_operator.validate(application)


@pytest.mark.parametrize("policy", ["logs", "9-lives", "a.policy.with.dots", "n" * 63])
def test_names_of_workers_satisfy_it(policy: str) -> None:
    """Services are named after applications: their names are stricter than those of other objects."""
    (name,) = worker_names(policy, "uid", settings="abcd", seed=1.0, count=1, taken=())
    application = kubeflow_application(request_of({}, name=name), default_image="w:1")
    assert released_operator.validate(application) == ""
