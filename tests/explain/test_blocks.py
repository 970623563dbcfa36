"""What is said of block stores: blocks, batches, tenants and readers instead of segments and logs."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.kind import BLOCKS
from compaction.cli.cluster.status_view import job_data, policy_data, show_policy
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from support.cluster.explained import NOW, ago, condition
from support.cluster.manifests import BLOCK_1, BLOCK_2, block_job_object, block_policy_object

STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "store": "BlockStore",
    "debt": {
        "bytes": 3 << 20,
        "sources": 42,
        "targets": 2,
        "measures": [
            {"name": "liveBlocks", "value": 50},
            {"name": "windows", "value": 4},
            {"name": "readAmplification", "value": 12.5},
            {"name": "readAmplificationAfter", "value": 2.5},
        ],
        "levels": [{"level": 0, "bytes": 3 << 20, "sources": 42}],
        "tenants": [{"tenant": "acme", "bytes": 3 << 20, "sources": 40}, {"tenant": "b", "bytes": 1, "sources": 2}],
    },
    "oldestDebtAt": ago(90),
    "lastSenseTime": ago(5),
}
BEFORE, AFTER, DROPPED = f"3:{5:016x}", f"2:{3:016x}", f"1:{2:016x}"


def policy_with(**status: Any) -> CompactionPolicy:
    document = block_policy_object()
    document["metadata"] |= {"namespace": "storage", "generation": 1}
    return CompactionPolicy.from_object(document | {"status": STATUS | status})


def job_with(status: dict[str, Any] | None = None, **spec: Any) -> CompactionJob:
    document = block_job_object(**{"estimatedBytes": 3 << 20, "level": 1} | spec)
    document["metadata"] |= {"namespace": "storage", "generation": 1, "creationTimestamp": ago(600)}
    return CompactionJob.from_object(document | {"status": {"observedGeneration": 1} | (status or {})})


def test_the_debt_of_a_policy() -> None:
    told = explain_policy(policy_with(), (), None, NOW)
    assert told.debt[:4] == (
        "3Mi of 42 blocks in 2 batches could be merged; the oldest debt is 1m30s old.",
        "A query about one tenant, shard and window of time opens 12.5 blocks on average; 2.5 when that is done.",
        "Of tenant acme: 40 blocks wait to be merged.",
        "Of tenant b: 2 blocks wait to be merged.",
    )
    message = "2 schemas of `acme` cannot be merged: column v int8 | string"
    conflicts = [{"tenant": "acme", "classes": 2, "sources": 7, "message": message}]
    kept_apart = policy_with(conflicts=conflicts)
    assert f"{message} (7 blocks)." in explain_policy(kept_apart, (), None, NOW).debt
    nothing = explain_policy(policy_with(debt={"bytes": 0}), (), None, NOW)
    assert nothing.debt[0].startswith("None: ")


def test_what_a_job_does() -> None:
    parameters = {"blocks": {"deduplicateBy": ["service", "time"]}}
    told = explain_job(job_with(parameters=parameters), policy_with(), None, NOW)
    assert told.debt == (
        "The job merges 2 blocks, 3Mi, of tenant t, shard 0, into one of level 2; of rows with the same service, time "
        "only the last is kept.",
    )


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        ({"fingerprintAfter": BEFORE}, "3 rows. The live content read back is equal to that of the sources."),
        (
            {"fingerprintAfter": AFTER, "fingerprintDuplicates": DROPPED, "duplicates": 1},
            "3 rows, 1 duplicate left out. The live content read back is equal to that of the sources.",
        ),
        ({"fingerprintAfter": AFTER}, "3 rows. THE FINGERPRINTS DIFFER."),
        (
            {"fingerprintAfter": AFTER, "fingerprintDuplicates": AFTER, "duplicates": 1},
            "3 rows, 1 duplicate left out. THE FINGERPRINTS DIFFER.",
        ),
        ({"fingerprintAfter": "2:x", "fingerprintDuplicates": DROPPED}, "3 rows. THE FINGERPRINTS DIFFER."),
    ],
)
def test_what_a_receipt_proves(receipt: dict[str, Any], said: str) -> None:
    proof = {
        "token": 1,
        "worker": "w-1",
        "sources": [BLOCK_1, BLOCK_2],
        "outputs": [BLOCK_1],
        "records": 3,
        "bytesBefore": 2048,
        "bytesAfter": 1024,
        "fingerprintBefore": BEFORE,
    } | receipt
    told = explain_job(job_with({"state": "Succeeded", "finishedAt": ago(9), "receipt": proof}), None, None, NOW)
    assert f"2 blocks became 1, 2Ki became 1Ki, {said}" in told.state
    assert BLOCKS.proves_equal(JobReceipt.from_object(proof)) is ("DIFFER" not in said)


def test_the_status_of_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    ready = condition("Ready", "SourcesQuarantined", message="1 damaged blocks are set aside")
    aside = {"target": f"acme/0/L0/{BLOCK_1}", "source": BLOCK_1, "reason": "SourceCorrupt", "since": ago(60)}
    policy = policy_with(conditions=[ready], quarantined=[aside])
    show_policy(policy, (job_with(),), NOW)
    said = capsys.readouterr().out
    assert "3Mi in 42 blocks of 2 batches, the oldest for 1m30s" in said
    assert "50 live; a query opens 12.5 on average, 2.5 when the debt is worked off" in said
    assert "L0: 42 blocks" in said
    assert "acme: 40 blocks, b: 2 blocks" in said
    assert "1 block: kubectl compaction quarantine blocks -n storage" in said
    assert f"t/0/L0/{BLOCK_1}" in said


def test_the_same_as_data() -> None:
    data = policy_data(policy_with(), NOW)
    assert (data["debtSources"], data["debtTargets"], data["measures"]["readAmplification"]) == (42, 2, 12.5)
    assert [item["tenant"] for item in data["debtTenants"]] == ["acme", "b"]
    row = job_data(job_with(), NOW)
    assert (row["target"], row["level"]) == (f"t/0/L0/{BLOCK_1}", 1)
