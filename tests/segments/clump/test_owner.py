"""A running owner appends the copies itself: what it must answer, and what is noticed when it does not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compaction.errors import StaleTokenError
from compaction.segments import sweep
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.clump_run import ClumpResult, clump_log
from compaction.segments.clump.moves import Moves, read_moves
from compaction.segments.clump.running_owner import Appended, EntryCopy, LogOwner, clump_through_owner
from compaction.segments.commit import fence, recovery
from compaction.segments.errors import ClumpRefusedError, CorruptEntryError, VerificationFailedError
from compaction.segments.generate import corrupt_entry
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.storage.pace import UNLIMITED, Pace, counting_bytes
from support.faults.sudden_death import DyingFilesystem, SuddenDeath
from support.segments.log_owners import KeyValueOwner, live_payloads, under_the_maps
from support.segments.segment_logs import compact_log
from support.timing import examples

JOB = "online"
SPARSE = tuple(range(3, 60, 5))
REQUEST = ClumpOptions(shorter_than=3, min_ranges=2)


def _fill(owner: KeyValueOwner) -> None:
    """Twelve values lie alone among dead entries; the snapshot is below a few newer entries."""
    for number in range(64):
        owner.put(f"key{number}" if number in SPARSE else "scratch", f"value {number}")
    owner.snapshot()
    owner.put("key3", "newer")
    owner.put("more", "above the snapshot")


@pytest.fixture
def owner(tmp_path: Path) -> KeyValueOwner:
    owner = KeyValueOwner(tmp_path / "log")
    _fill(owner)
    return owner


def _clump(owner: LogOwner, *, token: int = 1, claim: bool = True, pace: Pace = UNLIMITED) -> ClumpResult:
    if claim:
        fence.claim(owner.directory, job=JOB, token=token, holder="test")
    return clump_through_owner(
        owner,
        request=REQUEST,
        limits=SegmentLimits(max_entries=7),
        job=JOB,
        token=token,
        holder="test",
        pace=pace,
        now=5.0,
    )


def test_what_is_read_handed_over_and_read_back_is_paid_for(owner: KeyValueOwner) -> None:
    with counting_bytes() as moved:
        result = _clump(owner, pace=Pace())
    copied = sum(receipt.payload_bytes for receipt in result.receipts)
    assert moved.written == copied > 0
    assert moved.read >= 2 * copied


def test_the_owner_keeps_its_values_and_its_live_set_becomes_dense(owner: KeyValueOwner) -> None:
    values = owner.values()
    result = _clump(owner)
    assert owner.values() == values
    assert [receipt.entries for receipt in result.receipts] == [7, 6]
    assert [receipt.output for receipt in result.receipts] == ["", ""]
    maps = read_moves(owner.directory)
    assert [moves.receipt for moves in maps] == list(result.receipts)
    state = open_log(owner.directory)
    assert state.live is not None
    moved = {index for moves in maps for index in moves.old_set}
    assert not moved & set(state.live)
    assert len(state.live.ranges) < result.plan.ranges_before / 2
    owner.stop()
    again = KeyValueOwner(owner.directory)
    assert again.values() == values
    again.stop()


def test_what_the_owner_does_meanwhile_is_kept(owner: KeyValueOwner) -> None:
    """Values that were changed or deleted after their copy was asked for are not brought back."""

    def crowd() -> None:
        owner.put("key8", "changed meanwhile")
        owner.put("key58", "changed meanwhile")
        if "key13" in owner.state:
            owner.delete("key13")

    owner.crowd = crowd
    expected = owner.values() | {"key8": "changed meanwhile", "key58": "changed meanwhile"}
    del expected["key13"]
    _clump(owner)
    assert owner.values() == expected
    owner.stop()
    again = KeyValueOwner(owner.directory)
    assert again.values() == expected
    again.stop()


class Faulty(KeyValueOwner):
    """An owner that answers, or does, something else than it was asked."""

    fault = ""

    def append(self, copies: Sequence[EntryCopy], *, job: str, token: int) -> Sequence[Appended]:
        if self.fault == "changes a payload":
            copies = [*copies[:-1], EntryCopy(copies[-1].old, copies[-1].payload + b"!")]
        answer = list(super().append(copies, job=job, token=token))
        match self.fault:
            case "leaves one out":
                return answer[:-1]
            case "changes the order":
                return [answer[1], answer[0], *answer[2:]]
            case "names old indexes":
                return [Appended(copy.old, 1) for copy in copies]
            case "lowers the term":
                return [Appended(item.index, 0) for item in answer]
        return answer

    def adopt(self, moves: Moves, *, job: str, token: int) -> None:
        if self.fault == "adopts nothing":
            self.snapshot()
        elif self.fault != "does nothing":
            super().adopt(moves, job=job, token=token)


@pytest.mark.parametrize(
    "fault", ["changes a payload", "leaves one out", "changes the order", "names old indexes", "lowers the term"]
)
def test_copies_that_are_none_are_not_adopted(tmp_path: Path, fault: str) -> None:
    owner = Faulty(tmp_path / "log")
    _fill(owner)
    values, live = owner.values(), open_log(owner.directory).live
    owner.fault = fault
    with pytest.raises(VerificationFailedError):
        _clump(owner)
    assert read_moves(owner.directory) == ()
    assert open_log(owner.directory).live == live
    assert owner.values() == values


@pytest.mark.parametrize("fault", ["does nothing", "adopts nothing"])
def test_an_owner_that_did_not_adopt_is_noticed_and_nothing_is_lost(tmp_path: Path, fault: str) -> None:
    owner = Faulty(tmp_path / "log")
    _fill(owner)
    values = owner.values()
    owner.fault = fault
    with pytest.raises(ClumpRefusedError, match="still has index"):
        _clump(owner)
    assert owner.values() == values
    owner.stop()
    # The map is true all the same: the owner applies it when it opens the log again.
    again = KeyValueOwner(owner.directory)
    assert again.values() == values
    again.snapshot()
    again.stop()
    state = open_log(owner.directory)
    assert state.live is not None
    assert not set(state.live) & {index for moves in read_moves(owner.directory) for index in moves.old_set}


def test_an_owner_that_dies_before_it_adopts_finds_its_values(tmp_path: Path) -> None:
    class Dies(KeyValueOwner):
        def adopt(self, moves: Moves, *, job: str, token: int) -> None:
            raise ConnectionError("the owner is gone")

    owner = Dies(tmp_path / "log")
    _fill(owner)
    values = owner.values()
    with pytest.raises(ConnectionError):
        _clump(owner)
    owner.stop()
    again = KeyValueOwner(tmp_path / "log")
    assert again.values() == values
    again.stop()


def test_copies_without_a_map_are_not_commands(tmp_path: Path) -> None:
    """The compactor died right after the owner had appended them: the owner's own mark tells."""
    owner = KeyValueOwner(tmp_path / "log")
    _fill(owner)
    stale = EntryCopy(4, b"Pkey3=value 3")
    owner.append([stale], job=JOB, token=1)
    values = owner.values()
    assert values["key3"] == "newer"
    owner.stop()
    again = KeyValueOwner(tmp_path / "log")
    assert again.values() == values
    again.stop()


def test_a_zombie_is_refused_by_the_store_and_by_the_owner(owner: KeyValueOwner) -> None:
    values, last = owner.values(), owner.last
    fence.claim(owner.directory, job=JOB, token=2, holder="successor")
    with pytest.raises(StaleTokenError):
        _clump(owner, token=1, claim=False)
    assert (owner.last, owner.values()) == (last, values)
    owner.append([], job=JOB, token=2)
    with pytest.raises(StaleTokenError):
        owner.append([], job=JOB, token=1)


def test_an_attempt_replaced_while_it_waits_for_the_owner_writes_no_map(owner: KeyValueOwner) -> None:
    owner.crowd = lambda: fence.claim(owner.directory, job=JOB, token=2, holder="successor")
    values = owner.values()
    with pytest.raises(StaleTokenError):
        _clump(owner)
    assert read_moves(owner.directory) == ()
    assert owner.values() == values


def test_a_damaged_entry_is_never_handed_over(owner: KeyValueOwner) -> None:
    damaged = corrupt_entry(owner.directory, segment=1, record=3)
    last = owner.last
    with pytest.raises(CorruptEntryError, match=f"index {damaged.index}"):
        _clump(owner)
    assert owner.last == last


# Random lives of a key-value machine in a log that is clumped, compacted and swept, against a model: one dictionary.
#
# The owner writes, takes snapshots, stops and starts; its log is clumped while it is stopped (the process dies at any
# system call; somebody recovers the log then, or the owner simply starts), or by itself while it runs. After every
# step the owner finds every value.

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

    def _claimed(self) -> dict[str, Any]:
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
