"""What is said of staging areas: the branches that are behind, and what reads cost before and after a job."""

from __future__ import annotations

from typing import Any

from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from support.cluster.explained import NOW, ago
from support.cluster.staging_manifests import staging_job_object, staging_policy_object


def target(name: str, **measures: float) -> dict[str, Any]:
    return {"target": f"lake/{name}", "measures": [{"name": item, "value": value} for item, value in measures.items()]}


MAIN = target(
    "main", tombstones=999_999, sealedTokens=12, stagedWrites=1_200_000, tombstonesAfter=0, sealedTokensAfter=0
)
LIVE = target("etl", tombstones=4, sealedTokens=1, stagedWrites=1, tombstonesAfter=4, sealedTokensAfter=1)
MEASURES = [
    {"name": "tombstones", "before": 999_999},
    {"name": "sealedTokens", "before": 12},
    {"name": "ranges", "before": 3, "after": 2},
]
CHANGED = "tombstones 999,999 and 0, sealed tokens 12 and 0, ranges 3 and 2."


def policy_with(**debt: Any) -> CompactionPolicy:
    document = staging_policy_object()
    document["metadata"] |= {"namespace": "storage", "generation": 1}
    status = {"observedGeneration": 1, "store": "StagingArea", "debt": debt, "lastSenseTime": ago(5)}
    return CompactionPolicy.from_object(document | {"status": status})


def done(name: str, finished: float, measures: list[dict[str, Any]]) -> CompactionJob:
    document = staging_job_object()
    document["metadata"] |= {"name": name, "namespace": "storage", "generation": 1, "creationTimestamp": ago(600)}
    receipt = {"token": 1, "worker": "w", "measures": measures}
    status = {"observedGeneration": 1, "state": "Succeeded", "finishedAt": ago(finished), "receipt": receipt}
    return CompactionJob.from_object(document | {"status": status})


def test_the_branches_that_are_behind_are_named() -> None:
    told = explain_policy(policy_with(bytes=9, sources=13, targets=2, behind=[MAIN, LIVE]), [], None, NOW).debt
    assert (
        "Listing `main/` steps over 999,999 tombstones; 0 after compaction. It asks 12 sealed tokens; 0 after "
        "compaction. 1,200,000 writes are staged."
    ) in told
    assert (
        "Listing `etl/` steps over 4 tombstones; at most 4 after compaction. It asks 1 sealed token; 1 after "
        "compaction. 1 write is staged."
    ) in told


def test_branches_that_no_plan_takes_are_named_too() -> None:
    told = explain_policy(policy_with(behind=[LIVE]), [], None, NOW).debt
    assert told[0].startswith("None to plan now")
    assert told[1].startswith("Listing `etl/`")
    (nothing,) = explain_policy(policy_with(), [], None, NOW).debt
    assert nothing.startswith("None: the last scan, 5s ago")


def test_a_job_says_what_reads_cost_before_and_after() -> None:
    job = done("new", 10, MEASURES)
    assert f"Before and after it: {CHANGED}" in explain_job(job, None, None, NOW).state
    jobs = [done("old", 300, [{"name": "tombstones", "before": 1}]), job, done("bare", 1, [])]
    told = explain_policy(policy_with(behind=[MAIN]), jobs, None, NOW).state
    assert [item for item in told if item.startswith("Before and after")] == [
        f"Before and after job new of {job.spec.target}: {CHANGED}"
    ]
