"""When `compactor run` ends: a function of the objects, what the reconciler remembers, and the last scan."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from compaction.api.base import ObjectMeta
from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.core.planning.planner import PlannedJob
from compaction.core.reconcile.observations import ClaimProblem, Memory, PlanMemory, Unmade, frozen
from compaction.local.run.once import RunState

SCAN = ScanResult(number=3, generation=1, started=50.0, ended=51.0, wall=0.0)
PLANNED = Memory(planning=PlanMemory(reading=3))
DONE = RunState({}, PLANNED, SCAN, changed_at=40.0)
REFUSED = ClaimProblem("TargetBusy", "another process has it", since=45.0, retry_at=99.0)
UNMADE = PlannedJob("logs-1", "/a", "", 0, "", (), (), 0, 0)


def job(state: JobState) -> CompactionJob:
    spec = CompactionJobSpec.model_validate(
        {
            "policyRef": {"name": "logs"},
            "kind": "SegmentRewrite",
            "sources": {"segmentLog": {"path": "/a", "snapshotIndex": 1, "obsolete": ["0000000000000001.segment"]}},
        }
    )
    one = CompactionJob(metadata=ObjectMeta(name="logs-1", uid="1"), spec=spec)
    return one.model_copy(update={"status": one.status.model_copy(update={"state": state})})


def test_a_store_that_was_scanned_and_planned_is_settled() -> None:
    assert DONE.settled


@pytest.mark.parametrize("state", JobState)
def test_no_job_is_left(state: JobState) -> None:
    assert replace(DONE, jobs={"logs-1": job(state)}).settled is (state in (JobState.SUCCEEDED, JobState.FAULTY))


@pytest.mark.parametrize(
    "changes",
    [
        {"reading": None},
        {"changed_at": 60.0},
        {"memory": Memory()},
        {"memory": replace(PLANNED, planning=PlanMemory(reading=3, unmade=Unmade("hash", (UNMADE,))))},
    ],
    ids=["no scan", "a scan before the last commit", "a scan without a plan", "jobs to be created"],
)
def test_it_goes_on(changes: dict[str, Any]) -> None:
    assert not replace(DONE, **changes).settled


def test_a_store_that_cannot_be_read_ends_it() -> None:
    problem = TargetProblem("/data", "RootNotFound", "/data does not exist")
    assert replace(DONE, memory=Memory(), reading=replace(SCAN, problem=problem)).settled


def test_others_are_not_waited_for() -> None:
    waiting = replace(DONE, jobs={"logs-1": job(JobState.UNASSIGNED)})
    assert replace(waiting, memory=replace(PLANNED, claims=frozen({"logs-1": REFUSED}))).settled


def test_a_job_that_ended_and_is_planned_again_is_no_reason_to_go_on() -> None:
    assert replace(DONE, jobs={"logs-1": job(JobState.IN_PROGRESS)}, repeated={"logs-1"}).settled


def test_a_scan_waits_for_open_jobs_and_then_for_nothing() -> None:
    busy = replace(DONE, jobs={"logs-1": job(JobState.IN_PROGRESS)}, changed_at=60.0)
    assert busy.paced(61.0).store.sense_running
    over = replace(busy, jobs={"logs-1": job(JobState.FAULTY)}, memory=busy.paced(61.0)).paced(62.0).store
    assert (over.sense_running, over.look_wanted) == (False, 62.0)
    assert DONE.paced(62.0).store.look_wanted == -math.inf


def test_marks_change_with_jobs_and_not_when_one_goes_that_has_succeeded() -> None:
    marks = [replace(DONE, jobs={"logs-1": job(state)}).marks for state in JobState]
    assert len(set(marks)) == len(marks)
    assert replace(DONE, jobs={"logs-1": job(JobState.SUCCEEDED)}).marks == DONE.marks
    refused = replace(DONE, memory=replace(PLANNED, claims=frozen({"logs-1": REFUSED})))
    assert refused.marks != DONE.marks
