"""Wrong specs are refused by a real API server with a message that names the field and tells the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from compaction.blocks.model import place_problem
from compaction.local.cluster.control_plane import AdminAnswer
from support.cluster.manifests import (
    BLOCK_1,
    WRONG_BLOCK_JOBS,
    WRONG_BLOCK_POLICIES,
    WRONG_JOBS,
    WRONG_POLICIES,
    Wrong,
    block_job_object,
    block_policy_object,
    job_object,
    policy_object,
)
from support.cluster.staging_manifests import (
    WRONG_STAGING_JOBS,
    WRONG_STAGING_POLICIES,
    staging_job_object,
    staging_policy_object,
)

pytestmark = pytest.mark.apiserver


DryRun = Callable[[dict[str, Any]], AdminAnswer]


def refusal(dry_run: DryRun, document: dict[str, Any]) -> str:
    """The API server's words about a document that it does not take, as kubectl shows them (see test_crds_server)."""
    answer = dry_run(document)
    assert answer.status in {400, 422}, f"{answer.status}: {json.dumps(document)}"
    message: str = answer.json()["message"]
    return message


@pytest.mark.parametrize("wrong", WRONG_POLICIES, ids=str)
def test_a_wrong_policy(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(policy_object()))
    assert f"{wrong.field}: " in message or not wrong.field
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_JOBS, ids=str)
def test_a_wrong_job(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_POLICIES, ids=str)
def test_a_wrong_policy_of_a_block_store(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(block_policy_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_JOBS, ids=str)
def test_a_wrong_job_of_blocks(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(block_job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize(
    "tenant",
    [
        "acme", "x" * 200, "x" * 201, "ü" * 33, "ü" * 33 + "xx", "ü" * 33 + "xxx", ".", "..", "." + "x" * 197,
        "." + "x" * 198, "a.b" * 66, "a\nb", "b\n", "a\x7fb", "a\u0085b", "a\u202eb", "a\u2028b", "\U0001f600" * 16,
        "t=1", "日本/x y",
    ],
)  # fmt: skip
def test_a_tenant_is_taken_by_the_server_when_a_path_can_hold_it(dry_run: DryRun, tenant: str) -> None:
    """One rule, in two languages: CEL here, Python at every other entrance."""
    document = block_job_object()
    document["spec"]["sources"]["blocks"] |= {"tenant": tenant, "batch": f"{tenant}/0/L0/{BLOCK_1}"}
    assert (dry_run(document).status < 300) == (not place_problem(tenant, 0))


@pytest.mark.parametrize("wrong", WRONG_STAGING_POLICIES, ids=str)
def test_a_wrong_policy_of_a_staging_area(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(staging_policy_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_STAGING_JOBS, ids=str)
def test_a_wrong_job_of_a_branch(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(staging_job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


def test_the_smallest_staging_area_is_taken_with_its_defaults(kubectl: Any, namespace: str) -> None:
    for document in (staging_policy_object(), staging_job_object()):
        kubectl("create", "-f", "-", input=json.dumps(document), namespace=namespace)
    answer = kubectl("get", "cpol", "staging", "-o", "json", namespace=namespace)
    store = json.loads(answer.stdout)["spec"]["store"]["stagingArea"]
    assert store["thresholds"] == {"tombstones": 1000, "sealedTokens": 10, "stagedWrites": 1_000_000}
    assert (store["include"], store["table"], store["kv"]["key"]) == (["*"], "kv", "url")
    assert "lakefs" not in store


def test_the_smallest_ones_are_taken_with_their_defaults(kubectl: Any, namespace: str) -> None:
    for document in (block_policy_object(), block_job_object()):
        kubectl("create", "-f", "-", input=json.dumps(document), namespace=namespace)
    answer = kubectl("get", "cpol", "blocks", "-o", "json", namespace=namespace)
    store = json.loads(answer.stdout)["spec"]["store"]["blockStore"]
    assert [level["maxBlocks"] for level in store["levels"]] == [20, 10, 10]
    assert store["retention"] == {"tenants": []}
