"""Random histories of a policy: workers die, renew, report late or wrongly; the coordinator dies at any micro-step.

After every step the store's invariants hold; at the end of a fair run every job has ended and the totals are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compaction.api.enums import JobState
from compaction.api.names import ANNOTATION_PREVIEW, LABEL_PLAN
from compaction.api.preview import preview_value
from compaction.api.text.printing import mark_of
from compaction.blocks.planning.batches import QueuedBlock
from compaction.core.reconcile.timing import OpenWindow, window_state
from support.cluster.block_world import SIZE, PlainBlockCluster
from support.cluster.world import Crash, P, PlainCluster
from support.timing import examples

BYTES_PER_SECOND = 90
EVERY_OTHER_MINUTE = {"schedule": "*/2 * * * *", "duration": "1m"}
FINISHED = (JobState.SUCCEEDED, JobState.FAULTY)


class ReconcileMachine(RuleBasedStateMachine):
    @initialize(
        logs=st.integers(1, 4),
        groups=st.integers(1, 3),
        slots=st.integers(1, 2),
        history=st.integers(0, 2),
        controls=st.sets(st.sampled_from(["windows", "approval", "rate"])),
    )
    def begin(self, logs: int, groups: int, slots: int, history: int, controls: set[str]) -> None:
        self.controls = controls
        self.approved: set[str] = set()
        self.world = PlainCluster(
            workers={"max": 2, "slots": slots},
            limits={"maxConcurrentJobs": 3, "maxBytesPerJob": 100}
            | ({"bytesPerSecond": BYTES_PER_SECOND} if "rate" in controls else {}),
            trigger={"windows": [EVERY_OTHER_MINUTE]} if "windows" in controls else {},
            approval="Manual" if "approval" in controls else "Auto",
            successfulJobsHistoryLimit=history,
        )
        for i in range(logs):
            self.world.add_log(f"/ra/{i}", groups)
        self.tokens: dict[str, int] = {}
        self.stale: list[tuple[str, int]] = []

    @rule(crash_after=st.one_of(st.none(), st.integers(1, 15)))
    def reconcile(self, crash_after: int | None) -> None:
        before = self._assignments()
        window = window_state([OpenWindow("*/2 * * * *", 60)], "Etc/UTC", now=self.world.wall)
        with suppress(Crash):
            self.world.reconcile(crash_after=crash_after)
        if "windows" in self.controls and not window.is_open:
            assert self._assignments() <= before, "a job was started outside the window"

    def _assignments(self) -> set[tuple[str, int]]:
        return {(name, lease.token) for name, lease in self.world.leases.items()}

    @precondition(lambda self: "approval" in self.controls)
    @rule()
    def somebody_approves(self) -> None:
        self._approve()

    def _approve(self) -> None:
        plan = self.world.status.plan
        if plan is not None and plan.hash:
            self.world.annotate(approve=plan.hash)
            self.approved.add(plan.hash)

    @rule(number=st.integers(0, 2))
    def a_preview_is_asked_for(self, number: int) -> None:
        """Of a spec that needs no approval, no window and no rate: nothing of it may come true."""
        assert self.world.policy is not None
        store = self.world.policy.spec.to_object()["store"]
        self.world.annotate(preview=preview_value(str(number), {"store": store}))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 16.0, 61.0]), renewing=st.booleans())
    def time_passes(self, seconds: float, renewing: bool) -> None:
        self.world.wall += seconds
        if renewing:
            self._renew()

    def _renew(self) -> None:
        for worker in self.world.workers.values():
            worker.changed_at = self.world.wall
        for job, lease in self.world.leases.items():
            holder = self.world.workers.get(lease.holder)
            # A worker's last word is its last: from then on its Lease is silent.
            if holder is not None and holder.process == "running" and lease.report is None:
                self.world.renew(job, progress=50)

    @rule()
    def workers_announce(self) -> None:
        self.world.announce()

    @precondition(lambda self: self.world.workers)
    @rule(pick=st.integers(0, 9), known=st.booleans())
    def worker_dies(self, pick: int, known: bool) -> None:
        name = sorted(self.world.workers)[pick % len(self.world.workers)]
        self.world.die(name, known=known)
        if not known:
            self.world.workers[name].has_lease = False

    @precondition(lambda self: self.world.leases)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["done", "commit only", "failed", "stopped", "wrong token"]))
    def worker_acts(self, pick: int, how: str) -> None:
        job = sorted(self.world.leases)[pick % len(self.world.leases)]
        lease = self.world.leases[job]
        self.stale.append((job, lease.token))
        match how:
            case "done":
                if self.world.commit(job, lease.token):
                    self.world.report(job)
            case "commit only":
                self.world.commit(job, lease.token)
            case "failed":
                self.world.report(job, outcome="Failed")
            case "stopped":
                self.world.report(job, outcome="Failed", reason="WorkerStopped", charged=False)
            case _:
                self.world.report(job, token=lease.token + 1)

    @precondition(lambda self: self.stale)
    @rule(pick=st.integers(0, 99))
    def zombie_commits(self, pick: int) -> None:
        job, token = self.stale[pick % len(self.stale)]
        newest = max((log.claimed.get(job, 0) for log in self.world.logs.values()), default=0)
        assert not (self.world.commit(job, token) and token < newest)

    @invariant()
    def tokens_only_grow(self) -> None:
        for name, job in self.world.jobs.items():
            token = job.status.fencing_token
            assert token >= self.tokens.get(name, 0)
            self.tokens[name] = token

    @invariant()
    def each_group_is_committed_once(self) -> None:
        for log in self.world.logs.values():
            groups = [group for _, _, group in log.commits]
            assert len(groups) == len(set(groups))

    @invariant()
    def never_too_many_at_once(self) -> None:
        running = self.world.in_state(JobState.IN_PROGRESS)
        assert len(running) <= 3
        logs = [self.world.jobs[name].spec.sources.segment_log for name in running]
        assert len({log.path for log in logs if log is not None}) == len(running)

    @invariant()
    def shares_stay_within_the_limit(self) -> None:
        running = [self.world.jobs[name].status.attempts[-1] for name in self.world.in_state(JobState.IN_PROGRESS)]
        if "rate" in self.controls:
            assert sum(attempt.bytes_per_second or 0 for attempt in running) <= BYTES_PER_SECOND

    @invariant()
    def only_approved_plans_have_jobs(self) -> None:
        if "approval" in self.controls:
            assert {job.metadata.labels[LABEL_PLAN] for job in self.world.jobs.values()} <= self.approved

    @invariant()
    def totals_never_exceed_what_was_given_back(self) -> None:
        assert self.world.policy is not None
        assert self.world.policy.status.bytes_reclaimed <= self.world.committed

    def teardown(self) -> None:
        world = self.world
        for _ in range(400):
            world.announce()
            self._approve()
            for job, lease in list(world.leases.items()):
                if lease.report is not None or job not in world.jobs:
                    continue
                if world.commit(job, lease.token):
                    world.report(job)
                else:  # fenced off: a larger token was claimed by a coordinator that died before it wrote the Lease
                    world.report(job, outcome="Failed", reason="StaleToken", charged=False)
            world.reconcile()
            world.wall += 3
            self._renew()
        assert all(world.state(name) in FINISHED for name in world.jobs), "a job never ended"
        assert world.leases == {}
        assert world.policy is not None
        status = world.policy.status
        assert (status.active, status.queued) == (0, 0)
        assert status.last_handled_preview == mark_of(world.policy.metadata.annotations.get(ANNOTATION_PREVIEW, ""))
        parked = {name for name in world.jobs if world.state(name) is JobState.FAULTY}
        if not parked and not any(log.groups for log in world.logs.values()):
            assert status.bytes_reclaimed == world.committed


ReconcileMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestReconcileMachine = ReconcileMachine.TestCase


# Any order of arrivals, attempts, losses and crashes of the coordinator: no block is in two jobs, and no row is lost.
#
# Sizes stand for rows: what is made of blocks has the sum of theirs.

STEPS = (
    *("arrive", "arrive", "look", "look", "look", "wait"),
    *("finish", "fail", "corrupt", "differ", "expire", "crash", "worker dies"),
)
Step = tuple[str, int, int]


class Story:
    """A world in which things happen, and the sum of what went away by itself."""

    def __init__(self, *, attempts: int, queued: int, history: int) -> None:
        self.world = PlainBlockCluster(
            trigger={"interval": "10s"},
            limits={"maxAttempts": attempts, "maxJobsQueued": queued},
            failedJobsHistoryLimit=history,
            workers={"slots": 3},
        )
        self.world.scatter = 379
        self.arrived = self.gone = 0

    def happen(self, step: Step) -> None:
        what, one, other = step
        world = self.world
        match what:
            case "arrive":
                world.add_blocks(1 + one % 6, "ab"[other % 2])
                self.arrived += (1 + one % 6) * SIZE
            case "look":
                self.turn()
            case "crash":
                world.wall += 11
                with suppress(Crash):
                    world.reconcile(crash_after=1 + one % 8)
            case "wait":
                world.wall += 61
                world.renew_all()
            case "worker dies" if world.workers:
                world.die(sorted(world.workers)[one % len(world.workers)])
            case "expire" if world.live:
                self.gone += self.take(one).bytes
            case "finish" | "fail" | "corrupt" | "differ":
                self.attempt(what, one)
        self.check()

    def take(self, number: int) -> QueuedBlock:
        return self.world.live.pop(sorted(self.world.live)[number % len(self.world.live)])

    def turn(self) -> None:
        world = self.world
        world.wall += 11
        world.renew_all()
        for _ in range(2):
            for _ in range(4):
                world.reconcile()
                self.check()
            world.announce()

    def attempt(self, what: str, number: int) -> None:
        """A worker ends its attempt, if the store lets it."""
        running = [job for job in self.world.in_state(P) if job in self.world.leases]
        if not running:
            return
        job = running[number % len(running)]
        if what == "finish" and self.world.commit(job, self.world.leases[job].token):
            self.world.report(job)
        elif what == "finish":
            self.world.report(job, outcome="Skipped", reason="SourcesChanged")
        elif what == "corrupt":
            culprit = self.world.blocks_of(job)[0]
            self.world.set_aside.add(culprit)
            aside = [{"source": culprit, "reason": "SourceCorrupt", "message": "damaged"}]
            self.world.report(job, outcome="Failed", reason="SourceCorrupt", skipped=aside)
        else:
            self.world.report(job, outcome="Failed", reason="SourcesDiffer" if what == "differ" else "InternalError")

    def check(self) -> None:
        open_jobs = [
            name for name in self.world.jobs if self.world.state(name) not in (JobState.SUCCEEDED, JobState.FAULTY)
        ]
        blocks = [block for name in open_jobs for block in self.world.blocks_of(name)]
        assert len(blocks) == len(set(blocks)), "a block is in two jobs that may both run"
        assert sum(item.bytes for item in self.world.live.values()) + self.gone == self.arrived
        for name in open_jobs:
            mine = [self.world.live[block].kin for block in self.world.blocks_of(name) if block in self.world.live]
            assert len({kin.tenant for kin in mine}) < 2

    def end(self) -> Iterator[None]:
        """Nothing goes wrong any more: everything that is due is done, also what a full queue or a short history gives
        up for ten minutes.
        """
        for number in range(35):
            if number == 25:
                self.world.wall += 601
                self.world.renew_all()
            self.turn()
            for job in [job for job in self.world.in_state(P) if job in self.world.leases]:
                self.attempt("finish", self.world.in_state(P).index(job))
            yield


@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20), st.integers(0, 20)), min_size=20, max_size=50),
    attempts=st.integers(1, 3),
    queued=st.integers(1, 6),
    history=st.integers(0, 3),
)
@settings(max_examples=examples(8))
def test_whatever_happens_no_block_is_in_two_jobs_and_all_that_can_be_done_is_done(
    steps: list[Step], attempts: int, queued: int, history: int
) -> None:
    story = Story(attempts=attempts, queued=queued, history=history)
    for step in steps:
        story.happen(step)
    for _ in story.end():
        pass
    world = story.world
    unfinished = [name for name in world.jobs if world.state(name) not in (JobState.SUCCEEDED, JobState.FAULTY)]
    assert unfinished == [], "a job waits for ever"
    parked = {block for name in world.in_state(JobState.FAULTY) for block in world.blocks_of(name)}
    for tenant in "ab":
        left = [item for item in world.live.values() if item.kin.tenant == tenant and item.level < 2]
        free = [item for item in left if item.id not in parked | world.set_aside]
        assert len(free) < 2, "blocks that could be merged are left alone"
