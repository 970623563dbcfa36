"""The models: what the API server sends is read, written back unchanged, and wrong specs are refused with advice."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from compaction.api.catalog.catalog import (
    MAX_PARTICIPANTS,
    PASSING,
    STANDING,
    CatalogCompaction,
    CatalogCompactionStatus,
    CatalogReason,
    ParticipantStatus,
    standing_of,
)
from compaction.api.catalog.reasons import OUTCOMES, Outcome, Reason
from compaction.api.enums import JobState, LauncherType
from compaction.api.job.job import AttemptStatus, CompactionJob, CompactionJobStatus, JobReceipt, SkippedSource
from compaction.api.names import name_stem
from compaction.api.policy.block_store import BLOCK_REWRITE
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus, DebtStatus, TargetError
from compaction.api.policy.segment_logs import SegmentLogParameters, WhenIndexesMissing
from compaction.api.policy.store import PolicyStanding
from compaction.cli.local.policy_file import load_policies
from compaction.errors import InvalidManifestError
from support.cluster.manifests import (
    SEGMENT_1,
    TOKENS,
    WRONG_BLOCK_JOBS,
    WRONG_BLOCK_POLICIES,
    WRONG_JOBS,
    WRONG_POLICIES,
    WRONG_STAGING_JOBS,
    WRONG_STAGING_POLICIES,
    Wrong,
    block_job_object,
    block_policy_object,
    job_object,
    policy_object,
    staging_job_object,
    staging_policy_object,
)
from support.cluster.orders import ACCEPTED, REFUSED, catalog_object

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_policy_has_its_defaults() -> None:
    spec = CompactionPolicy.from_object(policy_object()).spec
    assert (spec.trigger.interval, spec.trigger.cooldown, spec.cleanup.delay) == (60.0, 0.0, 600.0)
    assert (spec.limits.max_concurrent_jobs, spec.limits.max_bytes_per_job) == (4, 1 << 30)
    assert spec.store.segment_logs is not None
    thresholds = spec.store.segment_logs.thresholds
    assert (thresholds.debt_bytes, thresholds.debt_segments) == (0, 1)
    assert (spec.workers.max, spec.workers.slots, spec.workers.launcher) == (1, 2, LauncherType.AUTO)
    assert spec.store.name == "SegmentLogs"
    assert spec.store.segment_logs is not None
    assert spec.store.segment_logs.include == ("**",)
    assert spec.store.segment_logs.max_bytes_per_segment == 64_000_000
    assert spec.store.segment_logs.when_indexes_missing is WhenIndexesMissing.REFUSE


def test_a_policy_says_how_its_pods_are() -> None:
    workers = {
        "image": "registry.example/compaction-worker:1",
        "driver": {"cpu": 2, "memory": "1.5Gi"},
        "executor": {"cpu": "250m", "instances": 2},
        "dynamicAllocation": {"maxExecutors": 4},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"hostAliases": [{"ip": "10.0.0.1"}]}},
    }
    document = policy_object(workers=workers)
    document["spec"]["store"]["segmentLogs"]["volume"] = {"claimName": "logs"}
    (policy,) = load_policies(_as_yaml(document), source="policy.yaml")
    assert (policy.spec.workers.driver.cpu, policy.spec.workers.executor.cpu) == (2000, 250)
    assert policy.spec.workers.driver.memory == 3 << 29
    written = policy.to_object()["spec"]["workers"]
    assert (written["driver"]["cpu"], written["driver"]["memory"]) == (2, "1.5Gi"), "as it was written"
    assert written["podTemplate"]["spec"] == {"hostAliases": [{"ip": "10.0.0.1"}]}
    assert CompactionPolicy.from_object(policy.to_object()) == policy


def test_a_job_has_its_defaults() -> None:
    job = CompactionJob.from_object(job_object())
    assert job.status.state is JobState.UNASSIGNED
    assert job.status.observed_generation == -1
    assert job.spec.segment_log_parameters == SegmentLogParameters()


@pytest.mark.parametrize(("model", "document"), [(CompactionPolicy, policy_object()), (CompactionJob, job_object())])
def test_objects_survive_the_round_trip(model: Any, document: dict[str, Any]) -> None:
    read = model.from_object(document)
    written = read.to_object()
    assert model.from_object(written) == read
    assert model.from_object(written).to_object() == written
    assert written["spec"]["store" if model is CompactionPolicy else "sources"]
    assert pickle.loads(pickle.dumps(read)) == read


def test_metadata_of_the_api_server_is_kept_and_the_empty_rest_left_out() -> None:
    document = policy_object()
    document["metadata"] |= {
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 2,
        "managedFields": [{"manager": "kubectl"}],
    }
    metadata = CompactionPolicy.from_object(document).metadata
    assert (metadata.uid, metadata.resource_version, metadata.generation) == ("u-1", "7", 2)
    assert metadata.to_object() == {"name": "logs", "uid": "u-1", "resourceVersion": "7", "generation": 2}
    assert not metadata.is_deleting
    assert metadata.controller is None


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    document = policy_object()
    document["spec"]["fromTheFuture"] = True
    assert CompactionPolicy.from_object(document) == CompactionPolicy.from_object(policy_object())


@pytest.mark.parametrize("wrong", WRONG_POLICIES, ids=str)
def test_a_wrong_policy_is_refused_with_the_field_and_the_fix(wrong: Wrong) -> None:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(_as_yaml(wrong.applied_to(policy_object())), source="policy.yaml")
    message = str(refusal.value)
    assert wrong.field in message
    assert wrong.model_advice in message


@pytest.mark.parametrize("wrong", WRONG_JOBS, ids=str)
def test_a_wrong_job_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompactionJob.model_validate(wrong.applied_to(job_object()))
    assert any(wrong.model_advice in details["msg"] for details in refusal.value.errors())


def test_models_are_frozen() -> None:
    policy = CompactionPolicy.from_object(policy_object())
    with pytest.raises(ValidationError, match="frozen"):
        policy.spec.suspend = True


def test_status_strings_for_people_follow_the_numbers() -> None:
    status = CompactionPolicyStatus(debt=DebtStatus(bytes=163 << 20), eta_seconds=130, bytes_reclaimed=3 << 29)
    written = status.to_object()
    assert (written["debt"]["summary"], written["eta"], written["reclaimed"]) == ("163Mi", "2m10s", "1.5Gi")
    assert CompactionPolicyStatus.from_object(written) == status
    assert "eta" not in CompactionPolicyStatus().to_object()
    assert CompactionJobStatus(progress_percent=37).to_object()["progress"] == "37%"
    assert "progress" not in CompactionJobStatus().to_object()


def test_a_full_job_status_survives_the_round_trip() -> None:
    attempt = AttemptStatus(token=1, worker="logs-w-abcde", started_at=NOW, charged=True, message="y" * 9000)
    receipt = JobReceipt(
        token=1, worker="logs-w-abcde", sources=(SEGMENT_1,), bytes_before=10, seconds=0.25, committed_at=NOW
    )
    skipped = SkippedSource(source=SEGMENT_1, index=7, offset=131_080, reason="SourceCorrupt", message="bad CRC")
    status = CompactionJobStatus(attempts=(attempt,), receipt=receipt, skipped=(skipped,), fencing_token=1, worker="w")
    assert CompactionJobStatus.from_object(status.to_object()) == status


def test_status_lists_stay_within_their_bounds() -> None:
    attempts = tuple(AttemptStatus(token=number, worker="w", started_at=NOW) for number in range(1, 41))
    kept = CompactionJobStatus(attempts=attempts).attempts
    assert [kept[0].token, kept[-1].token, len(kept)] == [9, 40, 32]
    errors = tuple(TargetError(target=f"/data/{number}", reason="PermissionDenied") for number in range(200))
    assert len(CompactionPolicyStatus(target_errors=errors).target_errors) == 128


def test_status_lists_with_keys_have_each_key_once() -> None:
    errors = (TargetError(target="/data/a", reason="First"), TargetError(target="/data/a", reason="Second"))
    assert CompactionPolicyStatus(target_errors=errors).target_errors == errors[:1]


@pytest.mark.parametrize(
    ("name", "stem"), [("logs", "logs"), ("a" * 50, "a" * 40), ("a" * 39 + "-" + "b" * 9, "a" * 39)]
)
def test_names_of_children_begin_with_the_policy(name: str, stem: str) -> None:
    assert name_stem(name) == stem


def _as_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document)


# Policies and jobs of block stores: what is taken, what is refused, with the field and the fix.


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
def test_a_wrong_policy_of_blocks_is_refused_with_the_field_and_the_fix(wrong: Wrong) -> None:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(yaml.safe_dump(wrong.applied_to(block_policy_object())), source="policy.yaml")
    message = str(refusal.value)
    assert wrong.field in message
    assert wrong.model_advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_JOBS, ids=str)
def test_a_wrong_job_of_blocks_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompactionJob.model_validate(wrong.applied_to(block_job_object()))
    assert any(wrong.model_advice in details["msg"] for details in refusal.value.errors())


# Staging areas in the resources: defaults, and what is refused.


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
def test_a_wrong_policy_of_staging_is_refused_with_the_field_and_the_fix(wrong: Wrong) -> None:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(yaml.safe_dump(wrong.applied_to(staging_policy_object())), source="policy.yaml")
    message = str(refusal.value)
    assert wrong.field in message
    assert wrong.model_advice in message


@pytest.mark.parametrize("wrong", WRONG_STAGING_JOBS, ids=str)
def test_a_wrong_job_of_staging_is_refused(wrong: Wrong) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompactionJob.model_validate(wrong.applied_to(staging_job_object()))
    assert any(wrong.model_advice in details["msg"] for details in refusal.value.errors())


# CatalogCompaction in Python: rules, defaults, bounds of the status, and what each reason means for conditions.


@pytest.mark.parametrize(("spec", "advice"), [item[1:] for item in REFUSED], ids=[item[0] for item in REFUSED])
def test_a_wrong_spec_gets_advice(spec: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        CatalogCompaction.from_object(catalog_object(**spec))
    assert advice in str(refusal.value)


@pytest.mark.parametrize("spec", ACCEPTED)
def test_a_right_spec_survives_the_way_to_the_server_and_back(spec: dict[str, Any]) -> None:
    found = CatalogCompaction.from_object(catalog_object(**spec))
    assert CatalogCompaction.from_object(found.to_object()) == found


def test_the_secrets_that_a_round_needs() -> None:
    spec = CatalogCompaction.from_object(catalog_object()).spec
    assert spec.secret_names == ("etcd", "participants")
    urls = [{"name": "a", "url": "http://a"}]
    both: dict[str, Any] = {"urls": urls, "token": {"secretName": "etcd"}}
    assert CatalogCompaction.from_object(catalog_object(participants=both)).spec.secret_names == ("etcd",)
    own: dict[str, Any] = {"urls": urls, "serviceAccountToken": {"secretName": "authority"}}
    assert CatalogCompaction.from_object(catalog_object(participants=own)).spec.secret_names == ("etcd", "authority")


def test_the_status_keeps_its_bounds_whatever_participants_are_called() -> None:
    many = tuple(ParticipantStatus(name=f"p{n % 150}" + "x" * 1000, reason="Answered") for n in range(300))
    status = CatalogCompactionStatus(participants=many)
    assert len(status.participants) == MAX_PARTICIPANTS
    assert all(len(participant.name) <= 512 for participant in status.participants)


@pytest.mark.parametrize(
    ("earliest", "latest", "debt"), [(None, None, 0), (1, None, 0), (4, 5, 0), (5, 5, 0), (1, 6, 4)]
)
def test_the_debt_of_a_history(earliest: int | None, latest: int | None, debt: int) -> None:
    assert CatalogCompactionStatus(earliest_version=earliest, latest_version=latest).debt_versions == debt


def test_every_reason_stands_somewhere() -> None:
    assert set(STANDING) == set(CatalogReason)
    for reason in Reason:
        working = standing_of(reason, lasts=True) is PolicyStanding.WORKING
        assert working == (reason in PASSING)
        at_once = standing_of(reason, lasts=False) is PolicyStanding.STALLED
        assert at_once == (reason in ("SecretMissing", "PermissionDenied"))
    assert all(OUTCOMES[reason] is not Outcome.FAILED for reason in PASSING)
