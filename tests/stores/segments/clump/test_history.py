"""Random lives of a key-value machine in a log that is clumped, compacted and swept, against a model: one dictionary.

The owner writes, takes snapshots, stops and starts; its log is clumped while it is stopped (the process dies at any
system call; somebody recovers the log then, or the owner simply starts), or by itself while it runs. After every step
the owner finds every value.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compaction.segments import sweep
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.clump_run import clump_log
from compaction.segments.clump.moves import read_moves
from compaction.segments.clump.running_owner import clump_through_owner
from compaction.segments.commit import fence, recovery
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from support.depth import examples
from support.faults.sudden_death import DyingFilesystem, SuddenDeath
from support.stores.log_owner import KeyValueOwner, live_payloads, under_the_maps
from support.stores.segment_logs import compact_log

REQUESTS = st.builds(ClumpOptions, st.integers(2, 4), st.integers(1, 3), st.integers(20, 2000))


class OwnedLog(RuleBasedStateMachine):
    """`values`: what the owner was told. `job`: number of the next job, so that each has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="owned-"))
        self.values: dict[str, str] = {}
        self.job = 0
        self.now = 1000.0

    @initialize(max_count=st.integers(2, 7), entries=st.integers(1, 9), size=st.integers(60, 400))
    def begin(self, max_count: int, entries: int, size: int) -> None:
        self.max_count = max_count
        self.limits = SegmentLimits(max_entries=entries, max_bytes=size, max_sources=4)
        self.owner = KeyValueOwner(self.root / "log", max_count=max_count)
        self.fill(range(12))
        self.snapshot()

    def teardown(self) -> None:
        self.owner.stop()
        shutil.rmtree(self.root)

    @rule(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=8), noise=st.integers(0, 3))
    def fill(self, numbers: list[int] | range, noise: int = 1) -> None:
        """Values that live long, among others that die at once."""
        for number in numbers:
            self._put(f"key{number}", f"{self.owner.last}")
            for _ in range(noise):
                self._put("scratch", "x" * (number % 5))

    def _put(self, key: str, value: str) -> None:
        self.owner.put(key, value)
        self.values[key] = value

    @rule(number=st.integers(0, 30))
    def delete(self, number: int) -> None:
        if self.values.pop(f"key{number}", None) is not None:
            self.owner.delete(f"key{number}")

    @rule()
    def snapshot(self) -> None:
        self.owner.snapshot()

    @rule()
    def restart(self) -> None:
        self.owner.stop()
        self.owner = KeyValueOwner(self.root / "log", max_count=self.max_count)

    @rule(request=REQUESTS)
    def clump_while_it_runs(self, request: ClumpOptions) -> None:
        clump_through_owner(self.owner, request=request, limits=self.limits, now=self.now, **self._claimed())

    @rule(
        request=REQUESTS,
        at=st.none() | st.integers(0, 60),
        when=st.sampled_from(["before", "after", "during"]),
        recovers=st.booleans(),
    )
    def clump_while_it_is_stopped(self, request: ClumpOptions, at: int | None, when: str, recovers: bool) -> None:
        self.owner.stop()
        directory = self.owner.directory
        before, job = live_payloads(directory), self._claimed()
        # The death may also come while the job is closed.
        with suppress(SuddenDeath), DyingFilesystem(at=at, when=when):  # type: ignore[arg-type]
            clump_log(directory, request=request, limits=self.limits, owner_stopped=True, now=self.now, **job)
            fence.retire(directory, job["job"])
        assert under_the_maps(directory, before) == before
        if recovers:
            recovery.recover(directory, now=self.now)
            assert not recovery.is_needed(directory)
        self.owner = KeyValueOwner(directory, max_count=self.max_count)

    def _claimed(self) -> dict[str, str | int]:
        self.job += 1
        fence.claim(self.owner.directory, job=f"job-{self.job}", token=1, holder="test", now=self.now)
        return {"job": f"job-{self.job}", "token": 1, "holder": "test"}

    @rule()
    def compact(self) -> None:
        self.job += 1
        compact_log(self.owner.directory, self.limits, job=f"job-{self.job}", now=self.now)

    @rule(at=st.none() | st.integers(0, 20))
    def sweep(self, at: int | None) -> None:
        self.now += 10
        with DyingFilesystem(at=at):
            try:
                # Snapshots have the time of the file system's clock, which is later than this one.
                sweep.sweep(self.owner.directory, now=self.now + 4e9, grace_seconds=1, active=frozenset())
            except SuddenDeath:
                return

    @precondition(lambda self: self.job > 0)
    @invariant()
    def terms_and_maps_are_in_order(self) -> None:
        log = open_log(self.owner.directory)
        terms = [term for ref in log.refs for term in log.segment(ref.name).term[log.readable(ref)].tolist()]
        assert terms == sorted(terms)
        news = [index for moves in read_moves(self.owner.directory) for index in moves.new_set]
        assert news == sorted(set(news))

    @invariant()
    def the_owner_finds_every_value(self) -> None:
        if self.values:
            assert self.owner.values() == self.values


OwnedLog.TestCase.settings = settings(
    max_examples=examples(30), stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
TestOwnedLogs = OwnedLog.TestCase
