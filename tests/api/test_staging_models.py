"""Staging areas in the resources: defaults, and what is refused."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.local.policy_file import load_policies
from compaction.errors import InvalidManifestError
from support.cluster.manifests import Wrong
from support.cluster.staging_manifests import (
    TOKENS,
    WRONG_STAGING_JOBS,
    WRONG_STAGING_POLICIES,
    staging_job_object,
    staging_policy_object,
)


def test_the_smallest_policy_has_defaults() -> None:
    store = CompactionPolicy.from_object(staging_policy_object()).spec.store.staging_area
    assert store is not None
    assert (store.thresholds.tombstones, store.thresholds.sealed_tokens) == (1000, 10)
    assert store.lakefs is None
    assert store.location == "repository lake"
    assert store.reference.secret_names == ("kv",)


def test_a_live_lakefs_is_only_reported_unless_asked_for_more() -> None:
    document = staging_policy_object()
    document["spec"]["store"]["stagingArea"]["lakefs"] = {}
    store = CompactionPolicy.from_object(document).spec.store.staging_area
    assert store is not None
    assert store.lakefs is not None
    assert store.lakefs.dry_run


def test_the_target_of_a_job_is_its_branch() -> None:
    spec = CompactionJob.from_object(staging_job_object()).spec
    assert spec.target == "lake/main"
    assert spec.sources.metarange is not None
    assert spec.sources.metarange.tokens == TOKENS


@pytest.mark.parametrize("wrong", WRONG_STAGING_POLICIES, ids=str)
def test_a_wrong_policy_is_refused_with_the_field_and_the_fix(wrong: Wrong) -> None:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(yaml.safe_dump(wrong.applied_to(staging_policy_object())), source="policy.yaml")
    message = str(refusal.value)
    assert wrong.field in message
    assert wrong.model_advice in message


@pytest.mark.parametrize("wrong", WRONG_STAGING_JOBS, ids=str)
def test_a_wrong_job_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompactionJob.model_validate(wrong.applied_to(staging_job_object()))
    assert any(wrong.model_advice in details["msg"] for details in refusal.value.errors())
