"""Policies and jobs of block stores: what is taken, what is refused, with the field and the fix."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from compaction.api.job.job import CompactionJob
from compaction.api.policy.block_store import BLOCK_REWRITE
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.local.policy_file import load_policies
from compaction.errors import InvalidManifestError
from support.cluster.manifests import (
    WRONG_BLOCK_JOBS,
    WRONG_BLOCK_POLICIES,
    Wrong,
    block_job_object,
    block_policy_object,
)


def test_the_smallest_policy_has_all_defaults() -> None:
    spec = CompactionPolicy.from_object(block_policy_object()).spec
    assert spec.store.name == "BlockStore"
    store = spec.store.block_store
    assert store is not None
    assert [(level.max_blocks, float(level.max_age), int(level.max_bytes)) for level in store.levels] == [
        (20, 36.0, 512 << 20),
        (10, 720.0, 512 << 20),
        (10, 10_800.0, 512 << 20),
    ]
    assert (store.index.key, float(store.span), store.deduplicate, store.retention.default) == (
        "url",
        10_800.0,
        None,
        None,
    )


@pytest.mark.parametrize("url", ["s3://lake/blocks", "gs://lake", "az://container/a/b", "file:///data/blocks"])
def test_where_blocks_may_be(url: str) -> None:
    document = block_policy_object()
    document["spec"]["store"]["blockStore"]["url"] = url
    assert CompactionPolicy.from_object(document).to_object()["spec"]["store"]["blockStore"]["url"] == url


def test_a_job_of_blocks() -> None:
    job = CompactionJob.from_object(block_job_object(level=1))
    assert (job.spec.kind, job.spec.level) == (BLOCK_REWRITE, 1)
    assert (job.spec.block_parameters.memory_bytes, job.spec.block_parameters.deduplicate_by) == (512 << 20, ())
    assert CompactionJob.from_object(job.to_object()) == job


def test_a_job_is_told_of_the_store_what_it_needs_to_open_it() -> None:
    document = block_policy_object()
    document["spec"]["store"]["blockStore"] |= {"credentialsSecretName": "lake", "span": "1h"}
    store = CompactionPolicy.from_object(document).spec.store.block_store
    assert store is not None
    assert store.reference.to_object() == {
        "url": "s3://lake/blocks",
        "credentialsSecretName": "lake",
        "index": {"secretName": "index", "key": "url"},
    }


@pytest.mark.parametrize("wrong", WRONG_BLOCK_POLICIES, ids=str)
def test_a_wrong_policy_is_refused_with_the_field_and_the_fix(wrong: Wrong) -> None:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(yaml.safe_dump(wrong.applied_to(block_policy_object())), source="policy.yaml")
    message = str(refusal.value)
    assert wrong.field in message
    assert wrong.model_advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_JOBS, ids=str)
def test_a_wrong_job_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompactionJob.model_validate(wrong.applied_to(block_job_object()))
    assert any(wrong.model_advice in details["msg"] for details in refusal.value.errors())
