"""Many groups of one log in one process: side by side, committed as they come, each by itself."""

from __future__ import annotations

import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import StaleTokenError
from compaction.segments.commit import fence
from compaction.segments.commit.commit import GroupOutcome
from compaction.segments.commit.records import GroupReceipt, RewrittenGroup
from compaction.segments.directory import fs
from compaction.segments.errors import CorruptEntryError, SourcesChangedError
from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.planning.plan import GroupCheck, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading import reader
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import compact
from compaction.segments.rewriting.compact import compact_groups
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace
from support.stores.segment_logs import content, leftovers

LIMITS = SegmentLimits(max_entries=64)
JOB = "job"
Groups = list[tuple[str, ...]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty segments of 64 entries, a quarter live: five groups (the newest segment is the owner's)."""
    made = generate_log(
        tmp_path_factory.mktemp("compact") / "log",
        pattern="random",
        segments=20,
        entries_per_segment=64,
        payload_bytes=100,
        seed=3,
        sync=False,
    )
    return made.directory


@pytest.fixture
def log(template: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(template, tmp_path / "log")
    fence.claim(copy, job=JOB, token=1, holder="test")
    return copy


def groups_of(log: Path) -> Groups:
    return [group.sources for group in plan_log(open_log(log), LIMITS).groups]


def compacted(log: Path, groups: Groups | None = None, **options: object) -> tuple[GroupOutcome, ...]:
    """The outcomes of these groups, or of all that are worth it."""
    state = open_log(log)
    assert state.live is not None
    return compact_groups(
        log,
        groups=groups_of(log) if groups is None else groups,
        check=GroupCheck(state, state.live),
        live=state.live,
        limits=LIMITS,
        job=JOB,
        token=1,
        holder="test",
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_every_group_is_committed_once_and_in_its_place(log: Path, threads: int) -> None:
    before, groups = content(log), groups_of(log)
    assert len(groups) >= 5
    outcomes = compacted(log, threads=threads)
    assert [outcome.sources for outcome in outcomes if isinstance(outcome, GroupReceipt)] == groups
    assert {r.group for r in fence.read(log).receipts} == {o.group for o in outcomes if isinstance(o, GroupReceipt)}
    assert content(log) == before
    assert leftovers(log) == []
    assert not plan_log(open_log(log), LIMITS).groups


class SharedClock:
    """Virtual time of several threads: a sleep ends at its own time, also while others sleep."""

    def __init__(self) -> None:
        self.now = 100.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            return self.now

    def sleep(self, seconds: float) -> None:
        ends = self() + seconds
        with self._lock:
            self.now = max(self.now, ends)


def test_one_limit_holds_over_all_threads(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all threads have read and written at any moment, against virtual time."""
    clock, rate, counting = SharedClock(), 20_000, threading.Lock()
    began, moved, over, write, preadv = clock(), 0, list[int](), fs.write, reader.os.preadv

    def count(size: int) -> None:
        nonlocal moved
        with counting:
            moved += size
            if moved > rate * (clock() - began) * (1 + 1e-9):
                over.append(moved)

    def counted_write(fd: int, buffers: list[bytes]) -> None:
        if threading.current_thread().name.startswith("rewrite"):
            count(sum(map(len, buffers)))
        write(fd, buffers)

    def counted_read(fd: int, buffers: list[memoryview], offset: int) -> int:
        got = preadv(fd, buffers, offset)
        if threading.current_thread().name.startswith("rewrite"):
            count(got)
        return got

    monkeypatch.setattr(compact, "Pace", partial(Pace, clock=clock, sleep=clock.sleep))
    monkeypatch.setattr(fs, "write", counted_write)
    monkeypatch.setattr(reader.os, "preadv", counted_read)
    outcomes = compacted(log, threads=3, bytes_per_second=rate)
    receipts = [outcome for outcome in outcomes if isinstance(outcome, GroupReceipt)]
    assert len(receipts) == len(outcomes)
    least = sum(receipt.live_bytes + 2 * receipt.bytes_after for receipt in receipts)
    assert over == []
    assert clock() - began >= least / rate


def test_a_damaged_group_holds_back_no_other(log: Path) -> None:
    groups = groups_of(log)
    state = open_log(log)
    assert state.live is not None
    segment = state.segment(groups[2][0])
    row = next(row for row, index in enumerate(segment.idx.tolist()) if index in state.live)
    damaged = corrupt_entry(log, segment=segment.name, record=row)
    outcomes = compacted(log)
    assert [isinstance(outcome, GroupReceipt) for outcome in outcomes] == [at != 2 for at in range(len(groups))]
    error = outcomes[2]
    assert isinstance(error, CorruptEntryError)
    assert (error.file, error.index) == (str(log / segment.name), damaged.index)
    assert leftovers(log) == []
    assert not any((log / name).is_symlink() for name in groups[2])


def test_a_group_that_may_not_be_rewritten_is_an_outcome(log: Path) -> None:
    (outcome,) = compacted(log, [(open_log(log).newest,)])
    assert isinstance(outcome, SourcesChangedError)


def test_a_stale_token_commits_nothing_and_leaves_nothing(log: Path) -> None:
    before = content(log)
    fence.claim(log, job=JOB, token=2, holder="next")
    outcomes = compacted(log)
    assert all(isinstance(outcome, StaleTokenError) for outcome in outcomes)
    assert content(log) == before
    assert leftovers(log) == []


def test_asked_to_stop_it_ends_with_what_is_committed(log: Path) -> None:
    before, before_groups = content(log), len(groups_of(log))
    asked = iter([False] * 8)
    with pytest.raises(RewriteStoppedError):
        compacted(log, threads=1, should_stop=lambda: next(asked, True))
    assert len(fence.read(log).receipts) < before_groups
    assert content(log) == before
    assert leftovers(log) == []


def test_interrupted_it_leaves_no_thread_and_no_output(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a commit."""
    before = content(log)

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compact.commit, "commit_groups", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compacted(log)
    assert content(log) == before
    assert leftovers(log) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rewrite")]


def test_several_groups_share_a_commit(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of(log)
    sizes = commit_sizes(monkeypatch)
    monkeypatch.setattr(compact, "COMMIT_GROUPS", 2)
    monkeypatch.setattr(compact, "COMMIT_SECONDS", 3600.0)
    outcomes = compacted(log, threads=1)
    assert all(isinstance(outcome, GroupReceipt) for outcome in outcomes)
    assert sum(sizes) == len(groups)
    # While one is committed, more become ready.
    assert all(size >= 2 for size in sizes[:-1])


def test_what_is_ready_does_not_wait_long_for_others(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last group is rewritten only after others were committed."""
    groups = groups_of(log)
    sizes, rewrite = commit_sizes(monkeypatch), compact.rewrite_group

    def late(*args: Any, **kwargs: Any) -> RewrittenGroup:
        deadline = time.monotonic() + 120
        while kwargs["sources"] == groups[-1] and not sizes and time.monotonic() < deadline:
            time.sleep(0.01)
        return rewrite(*args, **kwargs)

    monkeypatch.setattr(compact, "rewrite_group", late)
    monkeypatch.setattr(compact, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(compact, "COMMIT_GROUPS", len(groups) + 1)
    outcomes = compacted(log, threads=2)
    assert all(isinstance(outcome, GroupReceipt) for outcome in outcomes)
    assert len(sizes) > 1


def commit_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each commit from now on has."""
    sizes: list[int] = []
    commit = compact.commit.commit_groups

    def counted(*args: Any, **kwargs: Any) -> tuple[GroupOutcome, ...]:
        outcomes = commit(*args, **kwargs)
        sizes.append(len(outcomes))
        return outcomes

    monkeypatch.setattr(compact.commit, "commit_groups", counted)
    return sizes
