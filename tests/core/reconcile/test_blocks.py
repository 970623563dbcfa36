"""Policies of block stores through `reconcile`: the same rules as for segment logs, on what only blocks have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.conditions import get_condition
from compaction.api.enums import JobReason, PolicyReason, WaitReason
from compaction.api.job.job_status import JobReport
from compaction.api.policy.block_store import BLOCK_REWRITE
from compaction.blocks.kind import LIVE, READS, READS_AFTER, WINDOWS
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.reconcile.jobs.job import reported
from compaction.core.reconcile.observations import ClaimProblem, Moment, ScanResult, frozen
from support.cluster.block_world import SIZE, PlainBlockCluster, ulid
from support.cluster.manifests import block_store
from support.cluster.world import F, P, S, U
from support.timing import examples

SOON = {"trigger": {"interval": "10s"}}


def turn(world: PlainBlockCluster, seconds: float = 11.0) -> None:
    """Time passes, workers are there, and everything is decided that can be."""
    world.wall += seconds
    world.renew_all()
    world.settle()
    world.announce()
    world.settle()


def work_off(world: PlainBlockCluster, *, rounds: int = 12) -> None:
    """Every job succeeds, round by round."""
    for _ in range(rounds):
        turn(world)
        for job in world.in_state(P):
            world.finish(job)
    turn(world)


def reason_of(world: PlainBlockCluster) -> str:
    ready = get_condition(world.status.conditions, "Ready")
    assert ready is not None
    return ready.reason


class TestFromBlocksToReceipts:
    def test_a_full_batch_becomes_a_job_with_all_that_a_worker_needs(self) -> None:
        world = PlainBlockCluster(
            store={"mergeMemory": "64Mi", "sortKey": ["series", "ts"], "deduplicate": {"columns": ["key"]}}
        )
        names = world.add_blocks(4, "acme")
        world.settle()
        job = world.jobs[world.only_job()].spec
        assert (job.kind, job.level, job.estimated_bytes) == (BLOCK_REWRITE, 0, 4 * SIZE)
        assert job.sources.to_object()["blocks"] == {
            "store": block_store(index={"secretName": "index", "key": "url"}),
            "tenant": "acme",
            "shard": 0,
            "batch": f"acme/0/L0/{names[0]}",
            "blocks": names,
        }
        assert job.parameters.to_object() == {
            "blocks": {"memoryBytes": 64 << 20, "sortKey": ["series", "ts"], "deduplicateBy": ["key"]}
        }
        assert job.target == f"acme/0/L0/{names[0]}"

    def test_level_by_level(self) -> None:
        world = PlainBlockCluster(**SOON)
        world.add_blocks(8)
        work_off(world)
        (left,) = world.live.values()
        assert (left.level, left.bytes) == (2, 8 * SIZE)
        assert sorted(world.jobs[name].spec.level for name in world.in_state(S)) == [0, 0, 1]
        assert reason_of(world) == PolicyReason.SCHEDULED

    def test_the_status_counts_blocks_by_level_and_tenant_and_says_what_readers_have_of_it(self) -> None:
        world = PlainBlockCluster()
        world.add_blocks(8, "a")
        world.add_blocks(4, "b")
        world.rest()
        debt = world.status.debt
        assert debt is not None
        assert (debt.sources, debt.targets, debt.bytes) == (12, 3, 12 * SIZE)
        assert [(level.level, level.sources) for level in debt.levels] == [(0, 12)]
        assert [(tenant.tenant, tenant.sources) for tenant in debt.tenants] == [("a", 8), ("b", 4)]
        assert (debt.measure(LIVE), debt.measure(WINDOWS), debt.measure(READS)) == (12, 2, 6.0)
        assert debt.measure(READS_AFTER) == 1.5, "3 batches become 3 blocks in 2 windows"

    def test_ten_tenants_are_named(self) -> None:
        world = PlainBlockCluster()
        for tenant in "abcdefghijkl":
            world.add_blocks(4 if tenant < "k" else 8, tenant)
        world.rest()
        assert world.status.debt is not None
        assert [tenant.tenant for tenant in world.status.debt.tenants] == list("klabcdefgh")

    def test_tenants_take_turns(self) -> None:
        world = PlainBlockCluster(limits={"maxConcurrentJobs": 2}, workers={"slots": 2})
        world.add_blocks(12, "noisy")
        world.add_blocks(4, "quiet")
        turn(world)
        tenants = [world.jobs[name].spec.sources.blocks.tenant for name in world.in_state(P)]  # type: ignore[union-attr]
        assert sorted(tenants) == ["noisy", "quiet"]

    def test_a_threshold_of_blocks(self) -> None:
        world = PlainBlockCluster(store={"thresholds": {"debtBlocks": 4}})
        world.add_blocks(4)
        world.rest()
        assert world.jobs == {}, "a batch of four saves three"
        assert world.status.plan is not None
        assert [row.reason for row in world.status.plan.left_out] == [LeftOutReason.BELOW_THRESHOLD]


class TestHeld:
    def test_a_look_is_told_of_all_jobs_that_have_not_succeeded(self) -> None:
        world = PlainBlockCluster(**SOON)
        first = world.add_blocks(4)
        turn(world)
        world.add_blocks(4)
        turn(world)
        turn(world)
        assert len(world.jobs) == 2
        held = world.tasks[-1].jobs
        assert {name: (item.target, item.level) for name, item in held.items()} == {
            name: (job.spec.target, 0) for name, job in world.jobs.items()
        }
        done = next(name for name in world.jobs if world.blocks_of(name) == tuple(first))
        assert world.state(done) is P
        world.finish(done)
        turn(world)
        turn(world)
        assert done not in world.tasks[-1].jobs, "its blocks are replaced"

    def test_also_of_those_that_are_created_with_the_look(self) -> None:
        world = PlainBlockCluster(**SOON)
        world.add_blocks(4)
        world.settle()
        name = world.only_job()
        job = world.jobs.pop(name)
        assert world.reading is not None
        world.memory = replace(world.memory, planning=replace(world.memory.planning, reading=-1))
        world.wall += 60
        decision = world.reconcile()
        assert [job.name for job in decision.create_jobs] == [name]
        assert world.tasks[-1].jobs[name].target == job.spec.target

    @pytest.mark.parametrize("known", [True, False])
    def test_a_block_of_an_unfinished_job_is_planned_nowhere_else(self, known: bool) -> None:
        """A look that did not know the job, as when it was created while the look was under way, offers its blocks."""
        world = PlainBlockCluster(**SOON)
        names = world.add_blocks(4)
        turn(world)
        name = world.only_job()
        assert world.state(name) is P
        if not known:
            target = f"t/0/L0/{ulid(0)}"
            one = world.reading.candidates[0] if world.reading is not None else None
            assert one is not None
            group = replace(one.groups[0], sources=(ulid(0), *names), identities=(ulid(0), *names))
            unaware = replace(one, target=target, groups=(group,), sensed_at=world.wall + 1)
            world.reading = with_candidates(world, unaware)
            world.reconcile()
        else:
            turn(world)
        assert list(world.jobs) == [name]
        plan = world.memory.planning.plan
        assert plan is not None
        assert LeftOutReason.JOB_UNFINISHED in {row.reason for row in plan.left_out}

    def test_what_somebody_releases_is_released_in_the_store(self) -> None:
        world = PlainBlockCluster(**SOON)
        culprit = world.add_blocks(4)[1]
        turn(world)
        job = world.only_job()
        world.set_aside.add(culprit)
        world.report(job, outcome="Failed", reason="SourceCorrupt", skipped=[skipped(culprit)])
        turn(world)
        (entry,) = world.status.quarantined
        assert (entry.source, culprit in world.set_aside) == (culprit, True)
        world.annotate(release=f"{entry.target}/{culprit}")
        turn(world)
        assert world.set_aside == set()
        turn(world)
        assert world.status.quarantined == ()


def with_candidates(world: PlainBlockCluster, *candidates: object) -> ScanResult:
    assert world.reading is not None
    return replace(
        world.reading,
        number=world.reading.number + 1,
        started=world.wall + 1,
        ended=world.wall + 1,
        candidates=candidates,  # type: ignore[arg-type]
        targets=frozenset(candidate.target for candidate in candidates),  # type: ignore[attr-defined]
    )


def skipped(block: str) -> dict[str, str]:
    return {"source": block, "reason": "SourceCorrupt", "message": f"{block} is damaged"}


class TestGone:
    def test_a_planned_job_is_deleted_when_a_block_of_it_is_gone(self) -> None:
        world = PlainBlockCluster(workers={"max": 1}, **SOON)
        names = world.add_blocks(4)
        world.settle()
        (before,) = world.jobs
        assert world.state(before) is U
        del world.live[names[0]]
        world.wall += 61
        world.settle()
        (after,) = world.jobs
        assert (before in world.deleted, world.blocks_of(after)) == (True, tuple(names[1:]))

    def test_not_while_somebody_works_on_it(self) -> None:
        world = PlainBlockCluster(**SOON)
        names = world.add_blocks(4)
        turn(world)
        del world.live[names[0]]
        turn(world)
        assert world.state(world.only_job()) is P

    def test_a_parked_job_goes_when_others_have_done_its_work(self) -> None:
        world = PlainBlockCluster(limits={"maxAttempts": 1}, **SOON)
        world.add_blocks(4)
        turn(world)
        parked = world.only_job()
        world.report(parked, outcome="Failed", reason="VerificationFailed")
        work_off(world)
        assert (world.in_state(F), parked in world.deleted) == ([], True)
        assert reason_of(world) == PolicyReason.SCHEDULED

    def test_jobs_for_another_store_than_the_policys_are_planned_anew(self) -> None:
        world = PlainBlockCluster(**SOON)
        world.add_blocks(4)
        world.settle()
        (before,) = world.jobs
        world.change_spec(store={"blockStore": block_store(url="s3://lake/other")})
        world.settle()
        turn(world)
        (after,) = world.jobs
        sources = world.jobs[after].spec.sources.blocks
        assert sources is not None
        assert (before in world.deleted, sources.store.url) == (True, "s3://lake/other")


def work_by_hand(names: list[str], **store: object) -> dict[str, object]:
    sources = {"store": block_store(**store), "tenant": "t", "shard": 0, "batch": f"t/0/L0/{names[0]}", "blocks": names}
    return {"kind": "BlockRewrite", "sources": {"blocks": sources}}


class TestByHand:
    def test_a_job_of_the_policys_store_is_done(self) -> None:
        world = PlainBlockCluster(**SOON)
        names = world.add_blocks(2)
        world.put_job("mine", **work_by_hand(names))
        turn(world)
        assert world.state("mine") is P
        world.finish("mine")
        turn(world)
        assert world.state("mine") is S

    @pytest.mark.parametrize(
        "other",
        [
            {"url": "s3://lake/other"},
            {"index": {"secretName": "else"}},
            {"index": {"secretName": "index", "key": "admin"}},
            {"credentialsSecretName": "else"},
        ],
        ids=str,
    )
    def test_one_of_another_store_is_refused(self, other: dict[str, object]) -> None:
        """Else whoever may make jobs could have Secrets used that the policy does not name."""
        world = PlainBlockCluster(**SOON)
        world.put_job("mine", **work_by_hand(world.add_blocks(2), **other))
        world.settle()
        failed = get_condition(world.jobs["mine"].status.conditions, "Failed")
        assert failed is not None
        assert (failed.reason, "is not the store of policy logs" in failed.message) == (JobReason.OTHER_STORE, True)
        assert world.logs["t/0/L0/" + ulid(1)].claimed == {}

    def test_one_of_another_kind_is_refused(self) -> None:
        world = PlainBlockCluster(**SOON)
        sources = {"segmentLog": {"path": "/ra/a", "obsolete": ["0000000000000001.segment"]}}
        world.put_job("mine", kind="SegmentRewrite", sources=sources)
        world.settle()
        failed = get_condition(world.jobs["mine"].status.conditions, "Failed")
        assert failed is not None
        assert (failed.reason, failed.message) == (
            JobReason.OTHER_STORE,
            "policy logs compacts BlockStore, which has no SegmentRewrite",
        )

    @pytest.mark.parametrize(("live", "reason"), [(False, JobReason.SOURCES_GONE), (True, JobReason.INVALID_JOB)])
    def test_one_that_the_store_refuses_for_ever_is_parked_after_the_next_look(
        self, live: bool, reason: JobReason
    ) -> None:
        world = PlainBlockCluster(**SOON)
        names = world.add_blocks(2)
        world.put_job("mine", **work_by_hand(names))
        world.settle()
        if not live:
            world.live.clear()
        world.wall += 1
        found = ClaimProblem(WaitReason.STORE_ERROR, "no such block", world.wall, world.wall + 5, terminal=True)
        world.memory = replace(world.memory, claims=frozen({"mine": found}))
        world.settle()
        assert world.state("mine") is U, "not before a look has confirmed it"
        world.wall += 11
        world.settle()
        failed = get_condition(world.jobs["mine"].status.conditions, "Failed")
        assert failed is not None
        assert (failed.reason, failed.message) == (reason, "no such block")


def run_with(culprits: set[str], world: PlainBlockCluster, *, rounds: int) -> list[frozenset[str]]:
    """Workers do every job but those with a culprit in them; the blocks of the jobs that failed, in order."""
    failed = []
    for _ in range(rounds):
        turn(world, 61)
        for job in world.in_state(P):
            blocks = frozenset(world.blocks_of(job))
            if blocks & culprits:
                failed.append(blocks)
                world.report(job, outcome="Failed", reason="VerificationFailed")
            else:
                world.finish(job)
    return failed


class TestSplit:
    def test_a_batch_is_halved_and_no_job_is_made_of_one_block(self) -> None:
        world = PlainBlockCluster(limits={"maxAttempts": 1})
        culprit = world.add_blocks(4)[2]
        failed = run_with({culprit}, world, rounds=8)
        assert [len(blocks) for blocks in failed] == [4, 2]
        assert {name for name, item in world.live.items() if item.level == 0} == failed[-1], (
            "everything else was merged"
        )
        assert culprit in failed[-1]

    def test_blocks_that_differ_are_parked_at_once_and_never_split(self) -> None:
        """Plans keep them apart by their schemas, so it is a job that a plan would not make."""
        world = PlainBlockCluster(limits={"maxAttempts": 3})
        world.add_blocks(4)
        turn(world)
        (whole,) = world.in_state(P)
        world.report(whole, outcome="Failed", reason="SourcesDiffer", message="column v: int64, string", charged=False)
        turn(world)
        turn(world)
        assert world.state(whole) is F
        assert list(world.jobs) == [whole]

    def test_too_little_memory_parks_at_once_and_splits_nothing(self) -> None:
        world = PlainBlockCluster()
        world.add_blocks(4)
        turn(world)
        (whole,) = world.in_state(P)
        report = JobReport.from_object(
            {"token": 1, "outcome": "Failed", "reason": "MemoryTooSmall", "message": "1 GiB needed"}
        )
        after = reported(
            world.jobs[whole].status, report, max_attempts=3, now=Moment(world.wall, world.wall), generation=1
        )
        assert after.state is F
        world.put_status(whole, **dict(after))
        turn(world)
        assert list(world.jobs) == [whole]

    @given(
        culprits=st.sets(st.integers(0, 7), max_size=4),
        history=st.sampled_from([0, 1, 2, 100]),
        queued=st.integers(1, 6),
    )
    @settings(max_examples=examples(25))
    def test_only_the_culprits_and_their_companions_are_left_and_no_set_is_tried_twice(
        self, culprits: set[int], history: int, queued: int
    ) -> None:
        world = PlainBlockCluster(failedJobsHistoryLimit=history, limits={"maxAttempts": 1, "maxJobsQueued": queued})
        names = world.add_blocks(8)
        bad = {names[index] for index in culprits}
        failed = run_with(bad, world, rounds=60)
        left = {name for name, item in world.live.items() if item.level == 0}
        pairs = [blocks for blocks in failed if len(blocks) == 2]
        assert bad <= left <= bad | {name for blocks in pairs for name in blocks}
        several = [blocks for blocks in failed if len(blocks) > 2]
        assert len(several) == len(set(several)), "a split was forgotten"
        assert all(len(blocks) > 1 for blocks in failed)
        if history == 100 and queued > 4:
            assert all(len(blocks) in (2, 4) for blocks in failed), "what failed by itself was put together again"


def rest(world: PlainBlockCluster, seconds: float = 11.0) -> None:
    """As `turn`, until the status is written, too."""
    turn(world, seconds)
    world.rest()


class TestApproval:
    """Blocks arrive all the time, and a plan that changes with each of them could never be approved."""

    def shown(self) -> tuple[PlainBlockCluster, str]:
        world = PlainBlockCluster(approval="Manual", **SOON)
        world.add_blocks(6)
        rest(world)
        assert (world.jobs, world.status.plan is not None) == ({}, True)
        return world, world.status.plan.hash if world.status.plan is not None else ""

    def test_a_plan_that_waits_stays_while_blocks_arrive(self) -> None:
        world, shown = self.shown()
        for _ in range(3):
            world.add_blocks(5)
            rest(world, 61)
        assert world.status.plan is not None
        assert world.status.plan.hash == shown
        world.annotate(approve=shown)
        rest(world)
        assert [len(world.blocks_of(job)) for job in world.jobs] == [4]
        work = world.status.plan
        assert work is not None
        assert (work.hash, str(work.approval)) == (shown, "Approved")
        for job in world.in_state(P):
            world.finish(job)
        rest(world)
        rest(world)
        assert world.status.plan is not None
        assert (world.status.plan.hash != shown, str(world.status.plan.approval)) == (True, "Pending")
        assert world.status.plan.jobs > 1, "what arrived meanwhile is in the next plan"

    def test_it_is_another_plan_when_a_block_of_it_is_gone(self) -> None:
        world, shown = self.shown()
        del world.live[ulid(2)]
        rest(world)
        assert world.status.plan is not None
        assert world.status.plan.hash != shown
        world.annotate(approve=shown)
        rest(world)
        assert world.jobs == {}

    def test_its_blocks_are_kept_out_of_other_batches(self) -> None:
        world, _ = self.shown()
        rest(world)
        held = [job.sources for job in world.tasks[-1].jobs.values()]
        assert held == [tuple(ulid(number) for number in range(1, 5))]


class TestLooks:
    def test_the_next_look_is_when_a_batch_comes_of_age(self) -> None:
        world = PlainBlockCluster(trigger={"interval": "1h"})
        world.add_blocks(2)
        world.look_in = 30.0
        world.rest()
        looks = world.readings
        decision = world.reconcile()
        assert decision.requeue_after is not None
        assert 28 < decision.requeue_after <= 30
        world.wall += 28
        world.reconcile()
        assert world.readings == looks
        world.wall += 1.1
        world.reconcile()
        assert world.readings == looks + 1, "long before the interval is over"

    def test_also_after_a_restart(self) -> None:
        world = PlainBlockCluster(trigger={"interval": "1h"})
        world.look_in = 30.0
        world.settle()
        world.restart()
        world.rest()
        decision = world.reconcile()
        assert decision.requeue_after is not None
        assert 28 < decision.requeue_after <= 30

    def test_the_interval_is_kept_all_the_same(self) -> None:
        world = PlainBlockCluster(trigger={"interval": "10s"})
        world.look_in = 3600.0
        world.settle()
        looks = world.readings
        world.wall += 10.1
        world.settle()
        assert world.readings == looks + 1

    @pytest.mark.parametrize("took", [0.0, 8.0])
    def test_a_store_that_always_has_something_new_is_not_looked_at_without_a_pause(self, took: float) -> None:
        world = PlainBlockCluster(trigger={"interval": "1h"})
        world.rest()
        assert world.reading is not None
        world.reading = replace(world.reading, started=world.wall - took, ended=world.wall)
        world.memory = replace(world.memory, store=replace(world.memory.store, look_due=world.wall))
        decision = world.reconcile()
        assert decision.store_tasks == ()
        assert decision.requeue_after == pytest.approx(max(0.5, 3 * took), abs=0.01)
