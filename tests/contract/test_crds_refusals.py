"""Wrong specs are refused by a real API server with a message that names the field and tells the fix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.manifests import WRONG_JOBS, WRONG_POLICIES, Wrong, job_object, policy_object

pytestmark = pytest.mark.apiserver


def refusal(kubectl: Any, namespace: str, document: dict[str, Any]) -> str:
    """kubectl's words about a document the API server does not take."""
    answer = kubectl("create", "-f", "-", input=json.dumps(document), namespace=namespace, check=False)
    assert answer.returncode != 0, f"accepted: {json.dumps(document)}"
    message: str = answer.stderr
    return message


@pytest.mark.parametrize("wrong", WRONG_POLICIES, ids=str)
def test_a_wrong_policy(kubectl: Any, namespace: str, wrong: Wrong) -> None:
    message = refusal(kubectl, namespace, wrong.applied_to(policy_object()))
    assert f"{wrong.field}: " in message or not wrong.field
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_JOBS, ids=str)
def test_a_wrong_job(kubectl: Any, namespace: str, wrong: Wrong) -> None:
    message = refusal(kubectl, namespace, wrong.applied_to(job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message
