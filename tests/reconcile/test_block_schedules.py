"""Any order of arrivals, attempts, losses and crashes of the coordinator: no block is in two jobs, and no row is lost.

Sizes stand for rows: what is made of blocks has the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.enums import JobState
from compaction.blocks.planning.batches import QueuedBlock
from support.cluster.block_world import SIZE, PlainBlockCluster
from support.cluster.world import Crash, P
from support.depth import examples

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
