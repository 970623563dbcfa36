"""The worker's loop and heartbeat against leases in memory: every way a worker ends, and what happens to its jobs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.errors import CompactionError
from compaction.worker.attempt import EndReason, HeldJobLease, Inbox, JobEnded
from compaction.worker.errors import (
    EngineLostError,
    ExecutorsOutOfMemoryError,
    JobStoppedError,
    LeaseLostError,
    PortUnavailableError,
)
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import Worker, WorkerExit
from compaction.worker.ports import Assignment, HeldLease
from support.clocks import PATIENCE_SECONDS
from support.processes.worker_ports import Cluster, assignment, small_spec, wait_until
from support.processes.worker_ports import small_spec as spec

LONG = 60.0
"""A lease that does not end during a test; tests of silence use a short one and expect the loss."""


def success(token: int) -> JobReport:
    return JobReport(token=token, outcome=ReportOutcome.SUCCEEDED, reason=JobReason.COMPLETED, message="done")


@dataclass
class ScriptedRunner:
    """Runs `steps` commits per job; between two it waits for the test's permission (unless `free`)."""

    free: bool = True
    steps: int = 1
    committed: list[tuple[str, int]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    most: int = 0
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: Exception | None = None
    deaf: bool = False
    held: list[HeldLease] = field(default_factory=list)

    @contextmanager
    def stubborn(self) -> Iterator[None]:
        """Its jobs do not reach a point at which they could stop."""
        self.deaf = True
        try:
            yield
        finally:
            self.deaf = False

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        self.held.append(lease)
        self.running.add(assignment.job_name)
        self.most = max(self.most, len(self.running))
        try:
            for _ in range(self.steps):
                while self.deaf or (not self.free and not self.permits.acquire(timeout=0.02)):
                    if self.deaf:
                        time.sleep(0.01)
                    else:
                        lease.ensure_held()
                if self.error is not None:
                    raise self.error
                lease.ensure_held()
                self.committed.append((assignment.job_name, assignment.token))
            return success(assignment.token)
        finally:
            self.running.discard(assignment.job_name)


@dataclass
class Running:
    """A worker in a thread."""

    cluster: Cluster
    runner: ScriptedRunner
    inbox: Inbox
    exits: queue.SimpleQueue[WorkerExit | CompactionError] = field(default_factory=queue.SimpleQueue)

    def exit(self) -> WorkerExit | CompactionError:
        return self.exits.get(timeout=PATIENCE_SECONDS)


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    threads: list[tuple[threading.Thread, Running]] = []

    def start(
        cluster: Cluster | None = None,
        *,
        runner: ScriptedRunner | None = None,
        slots: int = 2,
        idle: float = 0.2,
        lease: float = LONG,
    ) -> Running:
        cluster, runner = cluster or Cluster(), runner or ScriptedRunner()
        inbox: Inbox = queue.SimpleQueue()
        running = Running(cluster, runner, inbox)
        worker = Worker(
            heartbeat=Heartbeat(cluster.connect(), inbox=inbox, slots=slots, lease_seconds=lease),
            inbox=inbox,
            runner=runner,
            slots=slots,
            idle_seconds=idle,
            stop_seconds=10,
        )

        def run() -> None:
            try:
                running.exits.put(worker.run())
            except CompactionError as error:
                running.exits.put(error)

        thread = threading.Thread(target=run)
        threads.append((thread, running))
        thread.start()
        return running

    yield start
    for thread, running in threads:
        running.runner.free = True
        running.cluster.down = running.cluster.hang = False
        running.inbox.put(JobEnded(EndReason.TERMINATED))
        thread.join(timeout=PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_idle_worker_leaves_and_its_lease_is_gone(start: Start) -> None:
    worker = start()
    assert worker.exit() is WorkerExit.IDLE
    assert worker.cluster.announced.is_set()
    assert worker.cluster.workers == {}


def test_jobs_are_run_and_reported(start: Start) -> None:
    cluster = Cluster()
    for number in range(5):
        cluster.assign(f"job-{number}", spec(), token=number + 1)
    worker = start(cluster)
    reports = [cluster.wait_for_report(f"job-{number}") for number in range(5)]
    assert [report.token for report in reports] == [1, 2, 3, 4, 5]
    assert all(report.outcome is ReportOutcome.SUCCEEDED for report in reports)
    assert worker.exit() is WorkerExit.IDLE
    assert sorted(worker.runner.committed) == [(f"job-{n}", n + 1) for n in range(5)]


def test_never_more_jobs_at_a_time_than_slots(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    for number in range(4):
        cluster.assign(f"job-{number}", spec())
    start(cluster, runner=runner, slots=2)
    wait_until(lambda: len(runner.running) == 2)
    wait_until(lambda: all(lease.renewals for lease in cluster.leases.values()), what="leases of waiting jobs as well")
    for _ in range(4):
        runner.permits.release()
    for number in range(4):
        cluster.wait_for_report(f"job-{number}")
    assert runner.most == 2


def test_leases_are_renewed_and_carry_progress_while_a_job_runs(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=3)
    start(cluster, runner=runner, lease=3)
    lease = cluster.leases["job"]
    wait_until(lambda: len(lease.renewals) >= 4 and len(cluster.worker_renewals) >= 3)
    gaps = [later - earlier for earlier, later in pairwise(lease.renewals)]
    assert min(gaps) > 0.5, "renewed every third of the duration, not all the time"
    runner.permits.release()
    assert cluster.wait_for_report("job").outcome is ReportOutcome.SUCCEEDED


def test_a_running_job_learns_of_a_raised_share(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=3)
    cluster.leases["job"].granted = 500
    start(cluster, runner=runner, lease=3)
    wait_until(lambda: runner.held and runner.held[0].bytes_per_second == 500)
    cluster.leases["job"].granted = 1000
    wait_until(lambda: runner.held[0].bytes_per_second == 1000)
    runner.permits.release()
    assert cluster.wait_for_report("job").outcome is ReportOutcome.SUCCEEDED


def test_lease_taken_before_the_commit_means_no_commit_and_no_report(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=1.5)
    worker = start(cluster, runner=runner)
    wait_until(lambda: runner.running)
    cluster.take_away("job")
    wait_until(lambda: not runner.running)
    runner.permits.release()
    assert worker.exit() is WorkerExit.IDLE
    assert runner.committed == []
    assert cluster.leases["job"].report is None


def test_lease_with_another_token_for_the_same_worker_is_a_new_attempt(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=1.5)
    start(cluster, runner=runner)
    wait_until(lambda: runner.running)
    cluster.take_away("job", worker="w", token=7)
    wait_until(lambda: len(cluster.leases["job"].renewals) > 0, what="the new attempt's lease")
    runner.free = True
    assert cluster.wait_for_report("job").token == 7
    assert ("job", 7) in runner.committed


def test_silence_longer_than_the_lease_stops_the_job_before_its_commit(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=0.6)
    start(cluster, runner=runner, lease=LONG)
    wait_until(lambda: runner.running)
    cluster.down = True
    wait_until(lambda: not runner.running)
    cluster.down = False
    report = cluster.wait_for_report("job")
    assert (report.reason, report.charged) == (JobReason.LEASE_EXPIRED, False)
    assert runner.committed == []


def test_hung_connection_counts_as_silence(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec(), lease=0.6)
    start(cluster, runner=runner, lease=0.6)
    wait_until(lambda: runner.running)
    cluster.hang = True
    wait_until(lambda: not runner.running)
    assert runner.committed == []


def test_report_whose_reply_was_lost_is_sent_again(start: Start) -> None:
    cluster = Cluster()
    cluster.lost_replies = ["announce", "renew_job", "report"]
    cluster.assign("job", spec())
    worker = start(cluster)
    assert cluster.wait_for_report("job").outcome is ReportOutcome.SUCCEEDED
    assert worker.exit() is WorkerExit.IDLE
    assert worker.runner.committed == [("job", 1)]
    assert cluster.lost_replies == []


def test_report_is_kept_until_the_server_is_back(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec())
    start(cluster, runner=runner)
    wait_until(lambda: runner.running)
    cluster.down = True
    runner.permits.release()
    wait_until(lambda: runner.committed)
    time.sleep(0.3)
    assert cluster.leases["job"].report is None
    cluster.down = False
    assert cluster.wait_for_report("job").outcome is ReportOutcome.SUCCEEDED


@pytest.mark.parametrize(
    ("reason", "code"), [(EndReason.TERMINATED, WorkerExit.TERMINATED), (EndReason.ENGINE_LOST, WorkerExit.ENGINE_LOST)]
)
def test_terminated_worker_stops_before_the_commit_and_says_so(
    start: Start, reason: EndReason, code: WorkerExit
) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("running", spec())
    cluster.assign("waiting", spec())
    worker = start(cluster, runner=runner, slots=1)
    wait_until(lambda: runner.running and all(lease.renewals for lease in cluster.leases.values()))
    worker.inbox.put(JobEnded(reason))
    assert worker.exit() is code
    for name in ("running", "waiting"):
        report = cluster.leases[name].report
        assert report is not None
        assert (report.reason, report.charged) == (JobReason.WORKER_STOPPED, False)
    assert runner.committed == []
    assert cluster.workers == {}


def test_a_worker_that_ends_offers_no_slot_from_then_on(start: Start) -> None:
    """Its next renewal would say so a third of a lease later, and what it hands back would come again meanwhile."""
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("running", spec())
    worker = start(cluster, runner=runner, slots=2, lease=LONG)
    wait_until(lambda: runner.running)
    assert cluster.workers == {"w": 2}
    with runner.stubborn():
        worker.inbox.put(JobEnded(EndReason.TERMINATED))
        wait_until(lambda: cluster.workers == {"w": 0}, seconds=LONG / 4, what="no slots while its job still stops")
    assert worker.exit() is WorkerExit.TERMINATED


def test_stop_annotation_ends_the_worker(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec())
    worker = start(cluster, runner=runner, lease=1.5)
    wait_until(lambda: runner.running)
    cluster.stop_asked = True
    assert worker.exit() is WorkerExit.STOP_REQUESTED
    assert cluster.leases["job"].report is not None
    assert runner.committed == []


def test_worker_whose_lease_was_deleted_aborts(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(free=False)
    cluster.assign("job", spec())
    worker = start(cluster, runner=runner, lease=1.5)
    wait_until(lambda: runner.running)
    cluster.workers.clear()
    assert worker.exit() is WorkerExit.LEASE_GONE
    assert runner.committed == []


def test_worker_gives_up_when_nobody_answers_for_four_leases(start: Start) -> None:
    cluster = Cluster()
    worker = start(cluster, lease=0.3, idle=LONG)
    cluster.announced.wait(PATIENCE_SECONDS)
    cluster.down = True
    assert worker.exit() is WorkerExit.UNREACHABLE


def test_worker_that_cannot_announce_itself_says_why(start: Start) -> None:
    cluster = Cluster()
    cluster.down = True
    worker = start(cluster, lease=0.2)
    assert isinstance(worker.exit(), PortUnavailableError)


def test_dead_engine_is_not_the_jobs_fault_and_ends_the_worker(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(error=EngineLostError("the JVM ended"))
    cluster.assign("job", spec())
    worker = start(cluster, runner=runner)
    report = cluster.wait_for_report("job")
    assert (report.reason, report.charged) == (JobReason.ENGINE_LOST, False)
    assert worker.exit() is WorkerExit.ENGINE_LOST


def test_executors_without_enough_memory_are_charged_and_end_the_worker(start: Start) -> None:
    """Only another worker's can be larger."""
    cluster, runner = Cluster(), ScriptedRunner(error=ExecutorsOutOfMemoryError("executors were killed"))
    cluster.assign("job", spec())
    worker = start(cluster, runner=runner)
    report = cluster.wait_for_report("job")
    assert (report.reason, report.charged) == (JobReason.WORKER_OUT_OF_MEMORY, True)
    assert worker.exit() is WorkerExit.EXECUTORS_OUT_OF_MEMORY


def test_defect_of_ours_is_reported_and_charged(start: Start) -> None:
    cluster, runner = Cluster(), ScriptedRunner(error=ZeroDivisionError("oops"))
    cluster.assign("job", spec())
    worker = start(cluster, runner=runner)
    report = cluster.wait_for_report("job")
    assert (report.reason, report.charged) == (JobReason.INTERNAL_ERROR, True)
    assert "ZeroDivisionError: oops" in report.message
    assert worker.exit() is WorkerExit.IDLE


def test_assignment_at_the_last_moment_keeps_the_worker(start: Start) -> None:
    cluster = Cluster()
    worker = start(cluster, idle=1)
    wait_until(lambda: cluster.looks)
    cluster.assign("job", spec(), quietly=True)  # the watch has not told yet; only the look before leaving sees it
    wait_until(lambda: cluster.looks_before_leaving >= 2)
    wait_until(lambda: cluster.workers == {"w": 2}, what="the slots to be offered again")
    cluster.wake()
    assert cluster.wait_for_report("job").outcome is ReportOutcome.SUCCEEDED
    assert worker.exit() is WorkerExit.IDLE


# A held lease is judged by the local monotonic clock, from the moment a renewal was sent.

DURATION = 15.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> HeldJobLease:
    return HeldJobLease(assignment(small_spec(), lease=DURATION), sent_at=clock.now, clock=clock)


def test_held_until_the_duration_after_the_sent_renewal(lease: HeldJobLease, clock: Clock) -> None:
    clock.now += DURATION - 0.001
    lease.ensure_held()
    clock.now += 0.001
    assert lease.should_stop()
    with pytest.raises(LeaseLostError, match="not renewed for 15 s"):
        lease.ensure_held()


def test_a_renewal_answered_in_the_instant_of_expiry_counts_unless_somebody_has_asked(
    lease: HeldJobLease, clock: Clock
) -> None:
    clock.now += DURATION
    lease.renewed(sent_at=clock.now - 1)
    lease.ensure_held()
    clock.now += DURATION - 1
    assert lease.should_stop(), "asked first: the job may have stopped because of the answer"
    lease.renewed(sent_at=clock.now - 1)
    assert lease.should_stop()


def test_a_renewal_raises_the_share_of_a_job_that_has_one(clock: Clock) -> None:
    given = replace(assignment(small_spec()), bytes_per_second=100)
    lease = HeldJobLease(given, sent_at=clock.now, clock=clock)
    assert lease.bytes_per_second == 100
    lease.renewed(sent_at=clock.now, granted=250)
    assert lease.bytes_per_second == 250
    lease.renewed(sent_at=clock.now, granted=None)
    assert lease.bytes_per_second == 250, "a Lease that names no share (any more) changes nothing"


def test_a_job_that_began_without_a_limit_stays_without(lease: HeldJobLease, clock: Clock) -> None:
    lease.renewed(sent_at=clock.now, granted=250)
    assert lease.bytes_per_second is None


def test_a_slow_answer_does_not_prolong_the_lease(lease: HeldJobLease, clock: Clock) -> None:
    sent = clock.now + 5
    clock.now += 14
    lease.renewed(sent_at=sent)
    clock.now = sent + DURATION
    assert lease.should_stop()


def test_a_process_that_slept_finds_its_lease_lost_and_never_gets_it_back(lease: HeldJobLease, clock: Clock) -> None:
    clock.now += 3600
    assert lease.should_stop()
    lease.renewed(sent_at=clock.now)
    with pytest.raises(LeaseLostError):
        lease.ensure_held()
    assert not lease.taken, "nobody is known to have it: a report may still be welcome"


def test_taken_by_another_is_lost_at_once(lease: HeldJobLease) -> None:
    lease.lose("holder other")
    assert lease.taken
    with pytest.raises(LeaseLostError, match="holder other"):
        lease.ensure_held()


def test_a_stop_keeps_the_lease(lease: HeldJobLease) -> None:
    lease.request_stop("SIGTERM")
    assert lease.should_stop()
    assert lease.why_lost is None
    with pytest.raises(JobStoppedError, match="SIGTERM"):
        lease.ensure_held()


@given(steps=st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=20))
def test_held_exactly_while_every_look_was_in_time(steps: list[tuple[float, bool]]) -> None:
    clock = Clock()
    lease = HeldJobLease(assignment(small_spec(), lease=DURATION), sent_at=clock.now, clock=clock)
    sent, lost = clock.now, False
    for pause, renew in steps:
        clock.now += pause
        if renew:
            lease.renewed(sent_at=clock.now)
            sent = clock.now
        lost = lost or clock.now >= sent + DURATION
        assert lease.should_stop() is lost


def test_progress_never_goes_back(lease: HeldJobLease) -> None:
    for percent in (10, 40, 30, 150, -1):
        lease.set_progress(percent)
    assert lease.progress == 100
