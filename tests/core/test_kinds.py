"""The registry of kinds, and what each kind must say of itself whatever it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compaction.api.enums import JobReason, PolicyReason, WaitReason
from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.reasons import BlockJobReason
from compaction.core.kind import Kind, StoreSecrets
from compaction.core.meaning import FATES, Fate
from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftOutReason
from compaction.core.planning.planner import JobInventory, PlanLimits, PlannedJob, Planner, PlanTrigger
from compaction.registry import KINDS, any_fate, fate_of, kind_named, kind_of, kind_of_job, register
from compaction.segments.reasons import SegmentReason
from support.cluster.manifests import (
    block_job_object,
    block_policy_object,
    job_object,
    policy_object,
    staging_job_object,
    staging_policy_object,
)

POLICIES = {
    "SegmentLogs": CompactionPolicy.from_object(policy_object()),
    "BlockStore": CompactionPolicy.from_object(block_policy_object()),
    "StagingArea": CompactionPolicy.from_object(staging_policy_object()),
}
JOBS = {
    "SegmentLogs": CompactionJob.from_object(job_object()),
    "BlockStore": CompactionJob.from_object(block_job_object()),
    "StagingArea": CompactionJob.from_object(staging_job_object()),
}
THRESHOLD = {"StagingArea": "tombstones"}
"""The threshold to try, where it is not that of bytes."""
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def planned(kind: Kind) -> PlannedJob:
    """A job that the planner makes of one candidate of the kind, from the parts of a job made by hand."""
    spec = JOBS[kind.name].spec
    parts = kind.parts(spec)
    groups = tuple(GroupCandidate(group, group, 100, 50, divisible=parts.divisible) for group in parts.groups)
    count = sum(len(group.sources) for group in groups)
    candidate = Candidate(spec.target, "", parts.base_version, groups, (), 100, count, sensed_at=0.0)
    planner = Planner("policy", "uid", PlanLimits(1 << 40, 10), PlanTrigger())
    (job,) = planner.plan([candidate], {}, JobInventory(), now=0.0).jobs
    return job


@EACH
def test_a_kind_is_found_by_its_store_its_jobs_and_its_name(kind: Kind) -> None:
    assert kind_of(POLICIES[kind.name].spec.store) is kind
    assert kind_named(kind.name) is kind
    assert [kind_of_job(job.name) for job in kind.member.jobs] == [kind]


@EACH
def test_a_planned_job_is_a_job_of_the_store_and_has_its_parts(kind: Kind) -> None:
    store, job = POLICIES[kind.name].spec.store, planned(kind)
    work = kind.work(job, store)
    spec = JOBS[kind.name].spec.model_copy(update={"kind": work.job_type, "sources": work.sources})
    assert kind.stranger(spec, store, "policy") == ""
    assert spec.target == job.target
    assert kind.parts(spec).groups == tuple(group.sources for group in job.groups)
    assert work.parameters == kind.parameters(store)


@EACH
def test_thresholds_are_the_kinds(kind: Kind) -> None:
    policy = POLICIES[kind.name].to_object()
    member = next(iter(policy["spec"]["store"]))
    policy["spec"]["store"][member]["thresholds"] = {THRESHOLD.get(kind.name, "debtBytes"): 200}
    due = kind.due(CompactionPolicy.from_object(policy).spec.store)
    small, large = (
        Candidate(
            "t", "", "", (), (), debt_bytes=size, debt_sources=9, sensed_at=0.0, measures=(("tombstones", float(size)),)
        )
        for size in (199, 200)
    )
    assert (due(small), due(large)) == (False, True)


def test_any_threshold_of_a_branch_is_enough() -> None:
    document = staging_policy_object()
    document["spec"]["store"]["stagingArea"]["thresholds"] = {"sealedTokens": 3, "tombstones": None, "maxAge": "1h"}
    store = CompactionPolicy.from_object(document).spec.store
    due = kind_of(store).due(store)

    def with_measures(**measures: float) -> Candidate:
        return Candidate("t", "", "", (), (), 1, 1, sensed_at=0.0, measures=tuple(measures.items()))

    assert not due(with_measures(sealedTokens=2, tombstones=1e9, ageReached=0))
    assert due(with_measures(sealedTokens=3))
    assert due(with_measures(ageReached=1))
    assert due(with_measures(stagedWrites=1_000_000))


@EACH
def test_a_kind_proves_equality_of_what_it_read_and_wrote(kind: Kind) -> None:
    equal = JobReceipt(token=1, worker="w", fingerprint_before="1:" + "0" * 32, fingerprint_after="1:" + "0" * 32)
    assert kind.proves_equal(equal)
    assert not kind.proves_equal(equal.model_copy(update={"fingerprint_after": "2:" + "0" * 32}))


def test_a_driver_has_all_secrets_of_a_block_store_and_tasks_those_of_its_objects() -> None:
    document = block_policy_object()
    document["spec"]["store"]["blockStore"]["credentialsSecretName"] = "lake"
    store = CompactionPolicy.from_object(document).spec.store
    assert kind_of(store).secrets(store) == StoreSecrets(driver=("lake", "index"), tasks=("lake",))
    logs = POLICIES["SegmentLogs"].spec.store
    assert kind_of(logs).secrets(logs) == StoreSecrets()


def test_a_reason_has_one_fate_for_all_kinds() -> None:
    own = Counter(reason for kind in KINDS for reason in kind.fates)
    assert max(own.values()) == 1
    assert not set(own) & set(FATES)
    assert {reason for reason in JobReason if fate_of(reason) is Fate.REFUSE} == {
        JobReason.OTHER_STORE,
        JobReason.SOURCES_GONE,
    }
    assert fate_of(JobReason.SOURCES_CHANGED) is Fate.REPLAN
    assert fate_of(SegmentReason.STORE_LOCKED) is Fate.RETRY
    assert fate_of(BlockJobReason.MEMORY_TOO_SMALL) is Fate.PARK
    assert fate_of("WhatNobodyKnows") is Fate.SPLIT
    assert any_fate(["WhatNobodyKnows", SegmentReason.LIVE_SET_UNKNOWN], Fate.PARK)


def test_a_kind_adds_no_word_that_the_core_has() -> None:
    for kind in KINDS:
        assert not set(kind.words.jobs) & set(JobReason)
        assert not set(kind.words.policies) & set(PolicyReason)
        assert not set(kind.words.waits) & set(WaitReason)
        assert not set(kind.words.left_out) & set(LeftOutReason)


def test_measures_have_names_of_their_own() -> None:
    measures = [measure for kind in KINDS for measure in kind.measures]
    assert len({measure.name for measure in measures}) == len({measure.metric for measure in measures}) == len(measures)


def test_to_register_what_is_registered_changes_nothing() -> None:
    before = KINDS
    register(KINDS[0])
    assert before == KINDS


# A kind that lives outside of the package becomes a member of the unions, in a process of its own.

PROGRAM = """
from dataclasses import replace

from compaction.api.crd.definitions import crd_files
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.meaning import Fate
from compaction.registry import all_kinds, fate_of, kind_of, kind_of_job, register
from conformance.lines.kind import LINE_STORE, LineKind


class Lines(LineKind):
    fates = {"LineTooLong": Fate.PARK}


def refused(kind, what):
    try:
        register(kind)
    except ValueError as error:
        assert what in str(error), error
    else:
        raise AssertionError(what)


class Taken(Lines):
    member = replace(LINE_STORE, name="BlockStore")


class Contrary(Lines):
    fates = {"SourceCorrupt": Fate.RETRY}


refused(Taken(), "BlockStore")
refused(Contrary(), "SourceCorrupt")
known = len(all_kinds())
lines = Lines()
register(lines)
register(lines)
assert len(all_kinds()) == known + 1
spec = {"store": {"lineStore": {"root": "/data"}}}
policy = CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": spec, "status": {"store": "LineStore"}})
assert kind_of(policy.spec.store) is lines
assert (policy.spec.store.name, policy.spec.store.location, policy.status.store) == ("LineStore", "/data", "LineStore")
assert policy.to_object()["spec"]["store"]["lineStore"]["root"] == "/data"
both = {"lineStore": {"root": "/data"}, "segmentLogs": {"root": "/ra"}}
for wrong in (both, {}):
    try:
        CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": {"store": wrong}})
    except ValueError as error:
        assert "set exactly one store: segmentLogs or blockStore or stagingArea or lineStore" in str(error)
    else:
        raise AssertionError(wrong)
spec = {"policyRef": {"name": "a"}, "kind": "LineRewrite", "sources": {"lines": {"path": "/data/x", "files": ["a"]}}}
job = CompactionJob.from_object({"metadata": {"name": "a-1"}, "spec": spec})
assert kind_of_job(job.spec.kind) is lines
assert job.spec.target == "/data/x"
assert fate_of("LineTooLong") is Fate.PARK
text = "".join(crd_files().values())
assert "lineStore" in text and "LineRewrite" in text and ".spec.sources.lines.path" in text
"""


def test_a_kind_from_outside_is_a_member_of_every_union() -> None:
    """In another process: models are the same objects for all tests of this one."""
    tests = Path(__file__).parents[1]
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=tests)
    assert answer.returncode == 0, answer.stderr
