"""What the webhook of Kubeflow's published release says about our applications, by its own code."""

from __future__ import annotations

import pytest

from compaction.kube.launchers.kubeflow import WRITTEN_CONF
from kube.launchers.kubeflow import questions, released_operator


@pytest.mark.parametrize("variant", questions.VARIANTS)
def test_its_webhook_takes_our_applications(variant: str) -> None:
    assert released_operator.validate(questions.variant(variant)) == ""


def test_we_know_every_key_that_it_refuses() -> None:
    assert set(WRITTEN_CONF) == set(released_operator.rules())


@pytest.mark.parametrize("key", sorted(WRITTEN_CONF))
def test_it_refuses_the_key_whatever_its_value(key: str) -> None:
    assert f'sparkConf key "{key}" is not allowed' in released_operator.validate(questions.with_setting(key))


def test_it_refuses_another_namespace_and_takes_the_same() -> None:
    assert "must equal the application namespace" in released_operator.validate(questions.in_another_namespace())


@pytest.mark.parametrize("policy", questions.POLICIES)
def test_names_of_workers_satisfy_it(policy: str) -> None:
    """Services are named after applications: their names are stricter than those of other objects."""
    assert released_operator.validate(questions.of_policy(policy)) == ""
