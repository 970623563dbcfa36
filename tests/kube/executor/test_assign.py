"""Assignments that are carried out long after the picture they were decided on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from compaction.api.job.job import CompactionJobSpec, CompactionJobStatus, JobSources, PolicyReference
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, SegmentLogSources
from compaction.core.reconcile.actions import AssignJob
from compaction.core.reconcile.observations import Moment, OperatorIdentity
from compaction.kube.client.api import LEASES, ApiClient
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.executor.executor import AssignmentSteps, ExecutionResult
from compaction.kube.executor.policy_objects import ApiObjects
from compaction.kube.informer.cache import CacheKey
from kube.executor.quiet_runtime import quiet_runtime

KEY = CacheKey("ns", "logs")
SPEC = CompactionJobSpec(
    policy_ref=PolicyReference(name="logs"),
    kind=SEGMENT_REWRITE,
    sources=JobSources(segment_log=SegmentLogSources(path="/ra/a", obsolete=("0000000000000001.segment",))),
)
ACTION = AssignJob(OperatorIdentity("job-1", "uid-1", "7"), "w-1", SPEC, CompactionJobStatus(), 1, None, 0, 15)


def outcome_with(tmp_path: Path, *leases: dict[str, Any]) -> tuple[ExecutionResult, list[str]]:
    """What comes of an assignment when the cache knows these Leases; and which stores were asked for."""
    asked: list[str] = []

    async def main() -> ExecutionResult:
        async with ApiClient(ApiConnection("http://127.0.0.1:9", None, no_token())) as client:
            runtime = quiet_runtime(client, tmp_path)
            for lease in leases:
                runtime.cache.store(LEASES).upsert(lease)
            outcome = ExecutionResult()
            steps = AssignmentSteps(
                ApiObjects(runtime, KEY, None, observed=lambda *_: None),
                store_of=lambda: asked.append("store"),
                now=Moment(0.0, 0.0),
                outcome=outcome,
                in_thread=asyncio.to_thread,
            )
            await steps.assign(ACTION)
            return outcome

    return asyncio.run(main()), asked


def worker(slots: str) -> dict[str, Any]:
    metadata = {"name": "w-1", "namespace": "ns", "uid": "w", "resourceVersion": "5"}
    return {"metadata": {**metadata, "annotations": {"compaction.dev/slots": slots}}, "spec": {}}


def test_a_worker_that_has_left_since_gets_nothing(tmp_path: Path) -> None:
    """An assignment to it would cost a token, an attempt, and the wait for its loss."""
    outcome, asked = outcome_with(tmp_path)
    assert (outcome.stale, outcome.failed_jobs, asked) == (True, {"job-1"}, [])


def test_a_worker_that_is_leaving_gets_nothing(tmp_path: Path) -> None:
    outcome, asked = outcome_with(tmp_path, worker("0"))
    assert (outcome.stale, outcome.failed_jobs, asked) == (True, {"job-1"}, [])


def test_a_worker_that_serves_is_given_the_job(tmp_path: Path) -> None:
    """As far as the store, of which there is none here."""
    outcome, asked = outcome_with(tmp_path, worker("2"))
    assert (outcome.stale, asked) == (False, ["store"])
