"""Many groups of one log in one process: side by side, committed as they come, each by itself."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.errors import StaleTokenError
from compaction.segments.commit import commit, fence
from compaction.segments.commit.commit import GroupOutcome, commit_groups
from compaction.segments.commit.records import GroupReceipt, RewrittenGroup
from compaction.segments.directory import fs
from compaction.segments.errors import CorruptEntryError, SourcesChangedError, VerificationFailedError
from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES
from compaction.segments.planning.plan import GroupCheck, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import CHUNK_BYTES, EntryBatch, picked_batches
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import compact, kernel
from compaction.segments.rewriting.compact import compact_groups
from compaction.segments.rewriting.kernel import partial_file, rewrite_group
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import content, leftovers

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
    began, moved, over, write, preadv = clock(), 0, list[int](), fs.write, os.preadv

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
    monkeypatch.setattr(os, "preadv", counted_read)
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

    monkeypatch.setattr(commit, "commit_groups", interrupted)
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
    sizes = commit_sizes(monkeypatch)

    def late(*args: Any, **kwargs: Any) -> RewrittenGroup:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while kwargs["sources"] == groups[-1] and not sizes and time.monotonic() < deadline:
            time.sleep(0.01)
        return rewrite_group(*args, **kwargs)

    monkeypatch.setattr(compact, "rewrite_group", late)
    monkeypatch.setattr(compact, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(compact, "COMMIT_GROUPS", len(groups) + 1)
    outcomes = compacted(log, threads=2)
    assert all(isinstance(outcome, GroupReceipt) for outcome in outcomes)
    assert len(sizes) > 1


def commit_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each commit from now on has."""
    sizes: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> tuple[GroupOutcome, ...]:
        outcomes = commit_groups(*args, **kwargs)
        sizes.append(len(outcomes))
        return outcomes

    monkeypatch.setattr(commit, "commit_groups", counted)
    return sizes


# What is written is read back: whatever is wrong with an output, and however it came to be, it is thrown away.

SLOT = SLOT_BYTES[2]


@pytest.fixture(scope="module")
def log_of_outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One group of three segments, a quarter live; a rewrite of it changes nothing."""
    made = generate_log(
        tmp_path_factory.mktemp("outputs") / "log",
        pattern="random",
        segments=4,
        entries_per_segment=64,
        payload_bytes=100,
        seed=5,
        sync=False,
    )
    return made.directory


def rewrite(log: Path) -> RewrittenGroup:
    state, limits = open_log(log), SegmentLimits()
    assert state.live is not None
    (group,) = plan_log(state, limits).groups
    return kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=limits, job="job", token=1)


def flipped(at: int) -> Callable[[int], None]:
    """One bit is another one; `at` < 0 counts from the end."""

    def flip(fd: int) -> None:
        place = at if at >= 0 else os.fstat(fd).st_size + at
        os.pwrite(fd, bytes([os.pread(fd, 1, place)[0] ^ 1]), place)

    return flip


def cut(fd: int) -> None:
    os.ftruncate(fd, os.fstat(fd).st_size - 1)


def grown(fd: int) -> None:
    os.ftruncate(fd, os.fstat(fd).st_size + 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped(1), id="magic"),
        pytest.param(flipped(7), id="max_count"),
        *(pytest.param(flipped(HEADER_BYTES + SLOT * 3 + byte), id=f"slot-{byte}") for byte in (7, 15, 23, 27, 31)),
        pytest.param(flipped(-1), id="last-payload"),
        pytest.param(flipped(-4000), id="payload"),
        pytest.param(cut, id="cut"),
        pytest.param(grown, id="grown"),
    ],
)
def test_what_a_disk_changes_is_found(
    log_of_outputs: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[int], None]
) -> None:
    """Between the sync and the reading back; index, term, offset, length and CRC of a slot among it."""
    sync = fs.sync

    def lying_sync(fd: int) -> None:
        sync(fd)
        damage(fd)

    monkeypatch.setattr(fs, "sync", lying_sync)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log_of_outputs)
    assert leftovers(log_of_outputs) == []


def swapped(values: np.ndarray) -> np.ndarray:
    """Two neighbours stand in each other's place."""
    changed = values.copy()
    changed[[3, 4]] = values[[4, 3]]
    return changed


def longer(values: np.ndarray) -> np.ndarray:
    """One byte of an entry is counted for its neighbour."""
    changed = values.copy()
    changed[3], changed[4] = values[3] + 1, values[4] - 1
    return changed


@pytest.mark.parametrize(
    ("what", "change"),
    [("idx", swapped), ("crc", swapped), ("length", longer), ("term", lambda values: values + 1)],
)
def test_an_index_that_says_something_else_of_the_payloads_is_found(
    log_of_outputs: Path, monkeypatch: pytest.MonkeyPatch, what: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    """A mistake of our own: every byte is read back as it was written, and was written wrong."""
    full_head = kernel.full_head

    def wrong(**columns: Any) -> list[bytes]:
        return full_head(**(columns | {what: change(columns[what])}))

    monkeypatch.setattr(kernel, "full_head", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log_of_outputs)
    assert leftovers(log_of_outputs) == []


def test_an_index_that_points_elsewhere_is_found(log_of_outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_head = kernel.full_head

    def wrong(**columns: Any) -> list[bytes]:
        header, records = full_head(**columns)
        changed = bytearray(records)
        changed[SLOT * 3 + 23] ^= 1
        return [header, bytes(changed)]

    monkeypatch.setattr(kernel, "full_head", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log_of_outputs)


def without_last(batches: list[EntryBatch]) -> list[EntryBatch]:
    return batches[:-1]


def twice(batches: list[EntryBatch]) -> list[EntryBatch]:
    return [batches[0], *batches]


def backwards(batches: list[EntryBatch]) -> list[EntryBatch]:
    return batches[::-1]


@pytest.mark.parametrize("change", [without_last, twice, backwards])
def test_payloads_that_are_missing_doubled_or_misplaced_are_found(
    log_of_outputs: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[EntryBatch]], list[EntryBatch]]
) -> None:
    def kept(batch: EntryBatch) -> EntryBatch:
        """Batches are only valid until the next one."""
        return EntryBatch(batch.segment, batch.rows, memoryview(bytes(batch.data)), batch.lengths, batch.crcs)

    def wrong(*args: Any) -> Iterator[EntryBatch]:
        yield from change([kept(batch) for batch in picked_batches(*args)])

    monkeypatch.setattr(kernel, "picked_batches", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log_of_outputs)
    assert leftovers(log_of_outputs) == []


def test_an_output_of_several_chunks_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = generate_log(
        tmp_path / "log", pattern="runs", segments=5, entries_per_segment=256, payload_bytes=20_000, sync=False
    ).directory
    assert rewrite(log).bytes_after > CHUNK_BYTES + 1000
    for at in (-1, -CHUNK_BYTES):
        sync = fs.sync
        with monkeypatch.context() as patch:

            def lying_sync(fd: int, at: int = at, sync: Callable[[int], None] = sync) -> None:
                sync(fd)
                flipped(at)(fd)

            patch.setattr(fs, "sync", lying_sync)
            with pytest.raises(VerificationFailedError, match="does not read back"):
                rewrite(log)


def test_a_source_that_its_owner_deletes_meanwhile_has_changed(tmp_path: Path) -> None:
    """Not an input/output error, which would be a reason to look at the disk; and no file is left."""
    partial = tmp_path / "0000000000000001.job.1.partial"
    with (
        pytest.raises(SourcesChangedError, match=r"0000000000000001.segment: deleted while it was compacted"),
        partial_file(partial, like=tmp_path / "0000000000000001.segment"),
    ):
        pass
    assert not partial.exists()
