"""Plans: deterministic, complete, within limits, and with a reason for everything left out."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.enums import JobState
from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftAlonePart, LeftOutReason, ObsoleteSource
from compaction.core.planning.debt import FinishedWork, LevelDebt, bytes_per_second, eta_seconds, total_debt
from compaction.core.planning.overlap import relative_to
from compaction.core.planning.planner import (
    JobInventory,
    Plan,
    PlanLimits,
    Planner,
    PlanTrigger,
    TargetHistory,
    cooldown_left,
)
from compaction.core.reconcile.jobs.job import TRANSITIONS, JobEvent, next_state
from compaction.errors import IllegalTransitionError
from compaction.segments.kind import tenant_of

NOW = 10_000.0


def group(number: int, copy: int = 100) -> GroupCandidate:
    sources = (f"{number:04d}.segment", f"{number + 1:04d}.segment")
    return GroupCandidate(sources, tuple(f"id-{name}" for name in sources), copy_bytes=copy, gain_bytes=50)


def candidate(path: str = "/ra/a", groups: int = 1, obsolete: int = 0, **more: object) -> Candidate:
    base = Candidate(
        target=path,
        tenant="",
        base_version="7",
        groups=tuple(group(i * 2) for i in range(groups)),
        obsolete=tuple(ObsoleteSource(f"u{i}", f"id{i}", 10) for i in range(obsolete)),
        debt_bytes=50 * groups + 10 * obsolete,
        debt_sources=groups + obsolete,
        sensed_at=100.0,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def planner(
    *, max_bytes: int = 1000, queued: int = 100, trigger: PlanTrigger | None = None, uid: str = "uid"
) -> Planner:
    return Planner("policy", uid, PlanLimits(max_bytes, queued), trigger or PlanTrigger())


def plan(
    *candidates: Candidate,
    using: Planner | None = None,
    history: dict[str, TargetHistory] | None = None,
    inventory: JobInventory | None = None,
) -> Plan:
    return (using or planner()).plan(candidates, history or {}, inventory or JobInventory(), now=NOW)


def reasons(result: Plan) -> dict[str, int]:
    return {row.reason: row.count for row in result.left_out}


class TestJobs:
    def test_one_log_one_job(self) -> None:
        result = plan(candidate(groups=2, obsolete=1))
        (job,) = result.jobs
        assert (job.target, job.base_version, len(job.groups), len(job.obsolete)) == ("/ra/a", "7", 2, 1)
        assert (job.cost_bytes, job.gain_bytes) == (200, 110)
        assert (result.cost_bytes, result.gain_bytes) == (200, 110)
        assert job.name.startswith("policy-")
        assert len(job.name) == len("policy-") + 10

    def test_cut_at_max_bytes_but_a_larger_group_goes_alone(self) -> None:
        wide = candidate(groups=0, obsolete=1)
        wide = replace(wide, groups=(group(0, 60), group(2, 60), group(4, 500), group(6, 10)))
        jobs = plan(wide, using=planner(max_bytes=100)).jobs
        assert [[g.copy_bytes for g in job.groups] for job in jobs] == [[60], [60], [500], [10]]
        assert [len(job.obsolete) for job in jobs] == [1, 0, 0, 0]

    def test_only_unreferenced_sources(self) -> None:
        (job,) = plan(candidate(groups=0, obsolete=3)).jobs
        assert (job.cost_bytes, len(job.obsolete)) == (0, 3)

    def test_the_name_depends_on_all_a_job_is_made_of(self) -> None:
        base = candidate(obsolete=1)
        other_identity = replace(base.groups[0], identities=("x", "y"))
        variants = [
            plan(base),
            plan(base, using=planner(uid="another")),
            plan(replace(base, target="/ra/b")),
            plan(replace(base, base_version="8")),
            plan(replace(base, groups=(other_identity,))),
            plan(replace(base, obsolete=())),
        ]
        assert len({result.jobs[0].name for result in variants}) == len(variants)
        assert len({result.hash for result in variants}) == len(variants)

    def test_a_long_policy_name_gives_a_valid_name(self) -> None:
        long = Planner("a" * 39 + "." + "b" * 20, "uid", PlanLimits(1, 1), PlanTrigger())
        (job,) = plan(candidate(), using=long).jobs
        assert job.name.startswith("a" * 39 + "-")


class TestLeftOut:
    @pytest.mark.parametrize(
        ("change", "trigger", "history", "reason"),
        [
            ({"groups": ()}, PlanTrigger(), None, LeftOutReason.NOTHING_TO_GAIN),
            ({}, PlanTrigger(is_due=lambda item: item.debt_bytes >= 51), None, LeftOutReason.BELOW_THRESHOLD),
            ({}, PlanTrigger(is_due=lambda item: item.debt_sources >= 2), None, LeftOutReason.BELOW_THRESHOLD),
            ({}, PlanTrigger(is_due=lambda item: item.debt_bytes >= 50 and item.debt_sources >= 1), None, None),
            ({}, PlanTrigger(suspended=True), None, LeftOutReason.SUSPENDED),
            ({}, PlanTrigger(), TargetHistory(has_unfinished_job=True), LeftOutReason.JOB_UNFINISHED),
            ({}, PlanTrigger(), TargetHistory(finished_monotonic=100.0), LeftOutReason.SCAN_OUTDATED),
            ({}, PlanTrigger(), TargetHistory(finished_monotonic=99.0), None),
            ({}, PlanTrigger(cooldown=60), TargetHistory(finished_at=NOW - 59), LeftOutReason.COOLDOWN),
            ({}, PlanTrigger(cooldown=60), TargetHistory(finished_at=NOW - 60), None),
        ],
    )
    def test_reasons(
        self,
        change: dict[str, object],
        trigger: PlanTrigger,
        history: TargetHistory | None,
        reason: LeftOutReason | None,
    ) -> None:
        result = plan(
            replace(candidate(), **change),  # type: ignore[arg-type]
            using=planner(trigger=trigger),
            history={"/ra/a": history} if history else {},
        )
        assert reasons(result) == ({reason: 1} if reason else {})
        assert bool(result.jobs) is (reason is None)

    def test_parts_the_store_leaves_alone_are_counted_with_an_example(self) -> None:
        parts = (LeftAlonePart("1.segment", "DenseEnough"), LeftAlonePart("2.segment", "DenseEnough"))
        (row,) = plan(replace(candidate(), left_alone=parts)).left_out
        assert (row.reason, row.count, row.example) == ("DenseEnough", 2, "/ra/a/1.segment")

    def test_a_clock_that_jumped_back_never_prolongs_a_cooldown(self) -> None:
        assert cooldown_left(PlanTrigger(cooldown=60), TargetHistory(finished_at=NOW + 9999), now=NOW + 60) == 0

    def test_a_job_that_exists_is_not_planned_again(self) -> None:
        name = plan(candidate()).jobs[0].name
        result = plan(candidate(), inventory=JobInventory(names=frozenset({name})))
        assert (result.jobs, reasons(result)) == ((), {LeftOutReason.JOB_FINISHED: 1})


class TestFaulty:
    def test_parked_until_something_changes(self) -> None:
        name = plan(candidate()).jobs[0].name
        faulty = JobInventory(names=frozenset({name}), faulty=frozenset({name}), splittable=frozenset({name}))
        result = plan(candidate(), inventory=faulty)
        assert (result.jobs, reasons(result)) == ((), {LeftOutReason.FAULTY_JOB: 1})
        assert plan(replace(candidate(), base_version="8"), inventory=faulty).jobs, "a new snapshot is worth a new try"

    def test_bisected_until_the_culprit_is_alone(self) -> None:
        """One bad group of eight: the seven others get through (docs/design/scheduling.md#faulty-jobs)."""
        whole = candidate(groups=8, obsolete=2)
        bad = whole.groups[5]
        faulty: set[str] = set()
        done: set[tuple[str, ...]] = set()
        for _ in range(10):
            result = plan(
                whole,
                using=planner(max_bytes=10_000),
                inventory=JobInventory(names=frozenset(faulty), faulty=frozenset(faulty), splittable=frozenset(faulty)),
            )
            fresh = [job for job in result.jobs if not {g.sources for g in job.groups} <= done or job.obsolete]
            if not fresh:
                break
            for job in fresh:
                if bad in job.groups:
                    faulty.add(job.name)
                else:
                    done |= {g.sources for g in job.groups}
                    faulty.discard(job.name)
        assert done == {g.sources for g in whole.groups if g is not bad}

    def test_not_split_when_the_whole_log_is_at_fault(self) -> None:
        name = plan(candidate(groups=4)).jobs[0].name
        result = plan(candidate(groups=4), inventory=JobInventory(names=frozenset({name}), faulty=frozenset({name})))
        assert result.jobs == ()
        assert reasons(result) == {LeftOutReason.FAULTY_JOB: 1}


class TestQueue:
    def candidates(self, count: int) -> list[Candidate]:
        return [candidate(f"/ra/{i}") for i in range(count)]

    def test_s13_no_more_than_the_limit(self) -> None:
        result = plan(*self.candidates(3), using=planner(queued=2))
        assert len(result.jobs) == 2
        assert reasons(result) == {LeftOutReason.QUEUE_FULL: 1}

    def test_a_queue_at_its_limit_evicts_parked_jobs(self) -> None:
        """The reference (§2.5) evicts above the limit and adds below it, so at the limit it does neither."""
        result = plan(
            *self.candidates(2), using=planner(queued=3), inventory=JobInventory(evictable=("f1", "f2"), queue_size=3)
        )
        assert (len(result.jobs), result.evict) == (2, ("f1", "f2"))

    def test_s14_s15_above_the_limit(self) -> None:
        inventory = JobInventory(evictable=("f1", "f2", "f3"), queue_size=4)
        result = plan(candidate(), using=planner(queued=2), inventory=inventory)
        assert (len(result.jobs), result.evict) == (1, ("f1", "f2", "f3"))

    @pytest.mark.parametrize("limit", [5, 1000])
    def test_s16_s17_no_eviction_while_there_is_room(self, limit: int) -> None:
        inventory = JobInventory(evictable=("f1", "f2", "f3"), queue_size=3)
        result = plan(candidate(), using=planner(queued=limit), inventory=inventory)
        assert (len(result.jobs), result.evict) == (1, ())

    def test_nothing_is_evicted_for_nothing(self) -> None:
        assert plan(using=planner(queued=1), inventory=JobInventory(evictable=("f1",), queue_size=5)).evict == ()

    def test_what_was_evicted_does_not_come_back_at_once(self) -> None:
        name = plan(candidate()).jobs[0].name
        result = plan(candidate(), inventory=JobInventory(recently_evicted=frozenset({name})))
        assert (result.jobs, reasons(result)) == ((), {LeftOutReason.RECENTLY_EVICTED: 1})


candidates_strategy = st.lists(
    st.builds(
        candidate,
        target=st.sampled_from([f"/ra/{c}" for c in "abcdef"]),
        groups=st.integers(0, 9),
        obsolete=st.integers(0, 3),
        level=st.integers(0, 2),
    ),
    max_size=6,
    unique_by=lambda item: item.target,
)


@given(candidates=candidates_strategy, max_bytes=st.sampled_from([1, 150, 300, 10_000]), seed=st.integers(0, 9))
def test_every_part_is_in_exactly_one_job_whatever_the_order(
    candidates: list[Candidate], max_bytes: int, seed: int
) -> None:
    result = plan(*candidates, using=planner(max_bytes=max_bytes, queued=10_000))
    for item in candidates:
        jobs = [job for job in result.jobs if job.target == item.target]
        assert [g for job in jobs for g in job.groups] == list(item.groups)
        assert [u for job in jobs for u in job.obsolete] == list(item.obsolete)
        assert all(job.cost_bytes <= max_bytes or len(job.groups) == 1 for job in jobs)
    assert len({job.name for job in result.jobs}) == len(result.jobs)
    shuffled = list(candidates)
    random.Random(seed).shuffle(shuffled)
    assert plan(*shuffled, using=planner(max_bytes=max_bytes, queued=10_000)) == result


@pytest.mark.parametrize(("path", "tenant"), [("/ra/a", ""), ("/ra/t1/a", "t1"), ("/ra/t1/x/a", "t1"), ("/ra", "")])
def test_tenant(path: str, tenant: str) -> None:
    assert tenant_of("/ra", path) == tenant


PATHS = st.lists(st.sampled_from(["", ".", "a", "b", "ab"]), max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(root=PATHS, path=PATHS)
def test_paths_are_compared_as_pathlib_does(root: str, path: str) -> None:
    """But ten times as fast."""
    known, pure = PurePosixPath(root), PurePosixPath(path)
    # Two slashes in front, and only two, are something of their own for POSIX; nobody means that.
    known, pure = (PurePosixPath("/" + str(item).lstrip("/")) for item in (known, pure))
    expected = str(pure.relative_to(known)) if pure.is_relative_to(known) else None
    found = relative_to(root, path)
    assert found == ("" if expected == "." else expected)
    assert tenant_of(root, path) == (found.split("/")[0] if found and "/" in found else "")


# The queue at its limit: one below, exactly there, one above.

LIMIT = 3


def queued_candidate(number: int) -> Candidate:
    return Candidate(
        target=f"/ra/{number}",
        tenant="",
        base_version="7",
        groups=(GroupCandidate(("1.segment", "2.segment"), ("id-1", "id-2"), copy_bytes=100, gain_bytes=50),),
        obsolete=(),
        debt_bytes=50,
        debt_sources=1,
        sensed_at=100.0,
    )


@dataclass(frozen=True)
class Queue:
    """`parked` of the `size` jobs are Faulty and may be evicted."""

    size: int
    parked: int = 0

    def planned(self, candidates: int, *, limit: int = LIMIT) -> Plan:
        planner = Planner("policy", "uid", PlanLimits(max_bytes_per_job=1000, max_jobs_queued=limit), PlanTrigger())
        inventory = JobInventory(evictable=tuple(f"f{i}" for i in range(self.parked)), queue_size=self.size)
        return planner.plan([queued_candidate(number) for number in range(candidates)], {}, inventory, now=10_000.0)


@pytest.mark.parametrize(("size", "jobs"), [(LIMIT - 1, 1), (LIMIT, 0), (LIMIT + 1, 0)])
def test_jobs_that_must_stay_leave_exactly_the_room_that_is_left(size: int, jobs: int) -> None:
    result = Queue(size).planned(2)
    assert (len(result.jobs), result.evict) == (jobs, ())
    assert [(out.reason, out.count) for out in result.left_out] == [(LeftOutReason.QUEUE_FULL, 2 - jobs)]


@pytest.mark.parametrize(("size", "evicted"), [(LIMIT - 1, 0), (LIMIT, 1), (LIMIT + 1, 1)])
def test_a_parked_job_makes_room_from_the_limit_on_and_not_before(size: int, evicted: int) -> None:
    assert len(Queue(size, parked=1).planned(1).evict) == evicted


@given(limit=st.integers(1, 8), size=st.integers(0, 12), parked=st.integers(0, 12), candidates=st.integers(0, 8))
def test_never_above_the_limit_and_never_idle_below_it(limit: int, size: int, parked: int, candidates: int) -> None:
    parked = min(parked, size)
    result = Queue(size, parked).planned(candidates, limit=limit)
    before = size - len(result.evict)
    assert len(result.jobs) <= max(0, limit - before)
    assert len(result.jobs) == min(candidates, max(0, limit - before)), "room is used while there is work"
    assert len(result.jobs) + sum(out.count for out in result.left_out) == candidates, "what got no job has a reason"


# Sums of debt, speed and arrival; the state machine of a job.

ONE = Candidate(
    target="/ra/a",
    tenant="",
    base_version="1",
    groups=(GroupCandidate(("1",), ("i",), copy_bytes=30, gain_bytes=70),),
    obsolete=(),
    debt_bytes=70,
    debt_sources=1,
    sensed_at=0.0,
    oldest_debt_at=50.0,
)


def test_debt_by_level_with_its_oldest_age() -> None:
    debt = total_debt(
        [ONE, replace(ONE, level=1, debt_bytes=5, oldest_debt_at=20.0), replace(ONE, groups=(), debt_bytes=0)]
    )
    assert debt.levels == (LevelDebt(0, 70, 1), LevelDebt(1, 5, 1))
    assert (debt.bytes, debt.sources, debt.targets, debt.oldest_at, debt.copy_bytes) == (75, 2, 2, 20.0, 60)


def test_no_debt() -> None:
    assert total_debt([]).oldest_at is None


def test_speed_is_of_the_newest_receipts() -> None:
    old = [FinishedWork(1, 100.0, float(i)) for i in range(5)]
    new = [FinishedWork(1000, 1.0, 100.0 + i) for i in range(20)]
    assert bytes_per_second(new + old) == 1000.0


@pytest.mark.parametrize("work", [[], [FinishedWork(10, 0.1, 1.0)], [FinishedWork(0, 10.0, 1.0)]])
def test_no_speed_from_too_little(work: list[FinishedWork]) -> None:
    assert bytes_per_second(work) is None


def test_many_small_jobs_have_a_speed_and_it_includes_what_a_job_costs_at_least() -> None:
    assert bytes_per_second([FinishedWork(10, 0.0, float(i)) for i in range(20)]) == pytest.approx(100.0)


def test_eta() -> None:
    assert eta_seconds(0, None, parallel=2) == 0.0
    assert eta_seconds(100, None, parallel=2) is None
    assert eta_seconds(100, 10.0, parallel=2) == 5.0


def test_every_pair_is_in_the_table_or_refused() -> None:
    for state, event in itertools.product(JobState, JobEvent):
        if (state, event) in TRANSITIONS:
            assert next_state(state, event) is TRANSITIONS[state, event]
        else:
            with pytest.raises(IllegalTransitionError):
                next_state(state, event)


def test_succeeded_is_final_and_every_other_state_can_reach_it() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is JobState.SUCCEEDED]
    reach = {JobState.SUCCEEDED}
    for _ in JobState:
        reach |= {state for (state, _), after in TRANSITIONS.items() if after in reach}
    assert reach == set(JobState)
