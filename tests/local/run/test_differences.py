"""What sets `compactor run` apart from the watch: it begins at once, ends by itself, leaves to others what they have,
and does nothing that needs an approval.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.base import ObjectMeta
from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.api.job.job_status import JobReport
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.local.policy_file import PolicyFile, load_policies
from compaction.cli.local.run_view import problems_of
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.debt import HeldJob, ScanResult, TargetProblem
from compaction.core.planning.planner import PlannedJob
from compaction.core.reconcile.observations import ClaimProblem, Memory, PlanMemory, Unmade, frozen
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
from compaction.kube.errors import PlanNotApprovedError
from compaction.local.run.job import RunResult
from compaction.local.run.once import LocalRun, RunState, SharedStore, at_once
from compaction.local.run.workers import ThreadEngine
from compaction.segments.commit import fence
from compaction.segments.directory import lock
from compaction.segments.generate import Pattern, generate_log
from compaction.storage.adapter import Sensed, SenseRequest, Swept, open_store
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.errors import EngineLostError, EngineStartError, TaskCancelledError
from compaction.worker.ports import Assignment, HeldLease, JobRunner
from support.blocks.block_commands import BlockCommands, in_folder, policy_file
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import content

Opening = Callable[[], AbstractContextManager[JobRunner]]
NEVER = {"schedule": "0 0 1 1 *", "windows": [{"schedule": "0 0 29 2 *", "duration": "1m"}], "cooldown": "24h"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        generate_log(
            tmp_path / "ra" / name,
            pattern=Pattern.STRIDED,
            segments=9,
            entries_per_segment=64,
            payload_bytes=128,
            sync=False,
        )
    return tmp_path / "ra"


def logs_policy(root: Path, **spec: Any) -> CompactionPolicy:
    store = {"segmentLogs": {"root": str(root), "maxEntriesPerSegment": 64}}
    kind = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "metadata": {"name": "logs"}}
    (policy,) = load_policies(yaml.safe_dump(kind | {"spec": {"store": store} | spec}), source="test")
    return policy


@contextmanager
def threads(secrets: Secrets = NO_SECRETS) -> Iterator[JobRunner]:
    with ThreadEngine(2) as engine:
        yield RunnerOfAllKinds(engine, holder="local", secrets=secrets)


def run(policy: CompactionPolicy, opening: Opening = threads, secrets: Secrets = NO_SECRETS) -> RunResult:
    with closing(open_store(policy.spec, holder="local", secrets=secrets, lock_timeout=0.1)) as store:
        return LocalRun(policy, store=store, open_runner=opening).run()


def test_it_does_not_wait_for_schedule_windows_and_cooldown(root: Path) -> None:
    result = run(logs_policy(root, trigger=NEVER))
    assert result.succeeded
    assert len(result.jobs) == 2


def test_it_takes_the_rest_of_the_policy_as_it_stands(root: Path) -> None:
    policy = logs_policy(root, trigger=NEVER, limits={"maxAttempts": 7}, approval="Manual", suspend=True)
    meant, own = at_once(policy).spec, {"trigger", "successful_jobs_history_limit", "failed_jobs_history_limit"}
    assert meant.model_dump(exclude=own) == policy.spec.model_dump(exclude=own)
    assert (meant.trigger.schedule, meant.trigger.windows, meant.trigger.cooldown) == (None, (), 0.0)


def test_a_locked_log_is_left_to_its_holder_and_named(root: Path) -> None:
    before = content(root / "a")
    policy = logs_policy(root)
    with lock.hold(root / "a", holder="somebody"):
        result = run(policy)
    assert {job.target: job.state for job in result.jobs} == {
        str(root / "a"): JobState.FAULTY,
        str(root / "b"): JobState.SUCCEEDED,
    }
    assert not result.succeeded
    (line,) = problems_of(policy, result)
    assert ": LockHeld: " in line
    assert content(root / "a") == before
    assert run(policy).succeeded


def test_an_engine_that_does_not_start_ends_it(root: Path) -> None:
    @contextmanager
    def broken() -> Iterator[JobRunner]:
        raise EngineStartError("no memory")
        yield

    with pytest.raises(EngineStartError, match="no memory"):
        run(logs_policy(root), broken)
    assert all(fence.read(log).jobs == {} for log in root.iterdir())


def test_an_engine_that_is_lost_ends_it_and_claims_are_given_up(root: Path) -> None:
    class Dying:
        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            raise EngineLostError("Spark went away")

    with pytest.raises(EngineLostError, match="Spark went away"):
        run(logs_policy(root), lambda: nullcontext(Dying()))
    for log in root.iterdir():
        assert all(claim.retired for claim in fence.read(log).jobs.values())
    assert run(logs_policy(root)).succeeded


def test_what_comes_of_an_approved_plan_needs_an_approval_of_its_own(tmp_path: Path) -> None:
    """Outputs of a merge are merged again: by another plan, which has not been reviewed."""
    blocks: BlockCommands = in_folder(tmp_path / "store")
    blocks.add(1, 2, 3, 4)
    levels = [{"maxBlocks": 2, "maxAge": "1h"}] * 2
    path = policy_file(tmp_path / "policy.yaml", blocks, levels=levels, spec={"approval": "Manual"})

    def approved(plan: str | None) -> RunResult:
        with path.open() as source:
            file = PolicyFile(source, approved=plan)
        return run(file.policy, lambda: threads(file), file)

    with pytest.raises(PlanNotApprovedError, match=r"--approve [0-9a-f]{16}$") as refused:
        approved(None)
    first = approved(str(refused.value).rpartition(" ")[2])
    assert [job.state for job in first.jobs] == [JobState.SUCCEEDED] * 2
    assert first.unapproved
    assert not first.succeeded
    with path.open() as source:
        (line,) = problems_of(PolicyFile(source).policy, first)
    assert line.endswith(f"run with --approve {first.unapproved}")
    last = approved(first.unapproved)
    assert last.succeeded
    assert [item["level"] for item in blocks.data("list")["items"]] == [2]


# When `compactor run` ends: a function of the objects, what the reconciler remembers, and the last scan.

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


# Jobs of other processes beside those of a run: `test_block_runs.py` and `tests/crash` have real ones.

THEIRS = HeldJob("b", 0, ("b1", "b2"))
REQUEST = SenseRequest(1, 1, 0.0, jobs={"mine": HeldJob("a", 0, ("a1",))})
SPEC = CompactionJobSpec.model_construct()


def candidate(target: str) -> Candidate:
    names = (f"{target}1", f"{target}2")
    return Candidate(target, "", "", (GroupCandidate(names, names, 8, 4),), (), 8, 2, sensed_at=0.0)


class Store:
    """Offers two targets, and remembers tokens."""

    def __init__(self, outdated: frozenset[str] = frozenset()) -> None:
        self.outdated = outdated
        self.tokens: dict[str, int] = {}
        self.retired: list[str] = []
        self.asked: list[set[str]] = []

    def sense(self, request: SenseRequest) -> Sensed:
        self.asked.append(set(request.jobs))
        reading = ScanResult(1, 1, 0.0, 0.0, 0.0, candidates=(candidate("a"), candidate("b")))
        return Sensed(replace(reading, outdated=self.outdated & request.jobs.keys()), None)

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        return Swept(0, 0, (), None)

    def high_water(self, target: str, job: str) -> int:
        return self.tokens.get(job, 0)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        self.tokens[job] = token

    def retire(self, target: str, job: str) -> None:
        self.retired.append(job)

    def close(self) -> None:
        """Nothing is open."""


def test_what_others_have_is_debt_and_in_no_candidate() -> None:
    store = Store()
    reading = SharedStore(store, lambda: {"theirs": THEIRS}).sense(REQUEST).reading
    assert [item.target for item in reading.candidates] == ["a"]
    assert [(item.sources, item.bytes) for item in reading.beyond] == [(2, 8)]
    assert [(row.reason, row.count, row.example) for row in reading.left_out] == [("JobUnfinished", 2, "theirs")]
    assert store.asked == [{"mine", "theirs"}]


def test_what_a_job_of_others_cannot_have_any_more_is_offered() -> None:
    store = Store(outdated=frozenset({"theirs", "mine"}))
    reading = SharedStore(store, lambda: {"theirs": THEIRS}).sense(REQUEST).reading
    assert len(reading.candidates) == 2
    assert store.asked == [{"mine", "theirs"}, {"mine"}]
    assert reading.outdated == {"mine"}, "the reconciler is told of its own"


def test_others_that_cannot_be_asked_for_are_a_problem_of_the_scan() -> None:
    def away() -> Mapping[str, HeldJob]:
        raise CompactionError("the index is away")

    problem = SharedStore(Store(), away).sense(REQUEST).reading.problem
    assert problem is not None
    assert problem.message == "the index is away"


def test_a_job_that_another_process_has_claimed_since_is_left_to_it() -> None:
    store = Store()
    shared = SharedStore(store, dict)
    assert shared.high_water("a", "mine") == 0
    shared.claim(SPEC, job="mine", token=1)
    assert shared.high_water("a", "mine") == 1
    store.claim(SPEC, job="mine", token=2)
    with pytest.raises(ClaimRefusedError, match="another process has claimed it with token 2") as refused:
        shared.high_water("a", "mine")
    assert refused.value.refusal is ClaimRefusal.BUSY
    with pytest.raises(ClaimRefusedError):
        shared.retire("a", "mine")
    assert store.retired == []


def test_only_own_claims_are_retired() -> None:
    store = Store()
    shared = SharedStore(store, dict)
    shared.retire("b", "theirs")
    shared.claim(SPEC, job="mine", token=1)
    shared.retire("a", "mine")
    assert store.retired == ["mine"]


# The engine of threads: what `worker.ports.Engine` promises, as far as threads can.


def double(number: int) -> int:
    return 2 * number


def test_tasks_run_and_what_they_raise_arrives() -> None:
    with ThreadEngine(2) as engine:
        assert engine.parallelism == 2
        futures = [engine.submit(double, number, tag="a") for number in range(10)]
        assert [future.result() for future in futures] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
        failing = engine.submit(int, "no number", tag="a")
        with pytest.raises(ValueError, match="no number"):
            failing.result()


def test_cancelled_tasks_do_not_begin_and_running_ones_are_waited_for() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def wait(name: str) -> None:
        begun.set()
        assert go.wait(PATIENCE_SECONDS)
        done.append(name)

    with ThreadEngine(1) as engine:
        running = engine.submit(wait, "running", tag="a")
        waiting = engine.submit(done.append, "waiting", tag="a")
        other = engine.submit(done.append, "other", tag="b")
        assert begun.wait(PATIENCE_SECONDS)
        canceller = threading.Thread(target=engine.cancel, args=("a",))
        canceller.start()
        go.set()
        canceller.join(PATIENCE_SECONDS)
        assert not canceller.is_alive()
        assert running.done()
        with pytest.raises(TaskCancelledError):
            waiting.result()
        other.result()
    assert done == ["running", "other"]


def test_what_has_not_begun_at_the_end_never_does() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        begun.set()
        assert go.wait(PATIENCE_SECONDS)

    with ThreadEngine(1) as engine:
        engine.submit(wait, "running", tag="a")
        left = engine.submit(double, 1, tag="a")
        assert begun.wait(PATIENCE_SECONDS)
        threading.Timer(0.05, go.set).start()
    with pytest.raises(CancelledError):
        left.result()
