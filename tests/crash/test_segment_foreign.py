"""We die at any step of a commit; then somebody else acts; then we recover. Nothing live is lost, whoever it was.

The others: Ra as the log's owner (support/segments/ra_owner.py) with its start, its minor and its major compaction,
under the same snapshot and under later ones; whoever restores the directory from a copy, wholly or in part, or mounts
it again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, evidence, fence, recovery
from compaction.segments.commit.evidence import Stays
from compaction.segments.commit.records import GroupReceipt
from compaction.segments.errors import SegmentLogError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.model import FileIdentity
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem, SuddenDeath, before_call, points, steps
from support.segments.ra_owner import RaOwner
from support.segments.segment_logs import Content, compact_log, content, leftovers
from support.timing import one_of_each

JOB = "job"
LIMITS = SegmentLimits(max_entries=64, max_bytes=1_000_000)
LAST = 110
LIVE = {
    80: "1-3,12,20,28,33-43,58,66,75",
    LAST: "1-3,20,28,34,41-43,66,75,84,92,100,108",
    LAST + 60: "2-3,28,42-43,75,92,108,110-112,120,130,140,150,170",
}
"""What is live under each snapshot, less with each. A first source that holds half of its group's live entries leaves
an output that the owner does not take for worth compacting, and what lies above it becomes a group of the owner's own.
"""


def payload(index: int) -> bytes:
    return b"entry %d " % index * (1 + index % 4)


def append(log: Path, first: int, last: int) -> None:
    with LogWriter(log, max_count=8, sync=False) as writer:
        for index in range(first, last + 1):
            writer.append(index, 1, payload(index))


def take_snapshot(log: Path, index: int) -> None:
    shutil.rmtree(log / "snapshots", ignore_errors=True)
    write_snapshot(log, index=index, term=1, live=LiveSet.parse(LIVE[index]), sync=False)


def wanted(log: Path) -> Content:
    """What must be readable under the snapshot in force, by what was once written."""
    state = open_log(log)
    assert state.live is not None
    assert state.snapshot_index is not None
    last = state.segment(state.newest).last
    kept = [i for i in range(1, last + 1) if i > state.snapshot_index or i in state.live]
    return {i: (1, hashlib.sha256(payload(i)).hexdigest()) for i in kept}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen segments of 8: 1 to 4 become one group, 5 is dense, 6 to 10 another one around the dead 7."""
    log = tmp_path_factory.mktemp("template") / "log"
    log.mkdir()
    append(log, 1, LAST)
    take_snapshot(log, 80)
    return log


def attempt(log: Path, *, token: int = 1) -> None:
    """Claim, plan, rewrite and commit all groups together."""
    recovery.recover(log, now=1000.0)
    fence.claim(log, job=JOB, token=token, holder="test", now=1.0)
    state = open_log(log)
    assert state.live is not None
    waiting = frozenset(t.name for t in fence.read(log).tombstones)
    groups = [
        kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=LIMITS, job=JOB, token=token)
        for group in plan_log(state, LIMITS, awaiting_deletion=waiting).groups
    ]
    if groups:
        commit.commit_groups(log, job=JOB, token=token, groups=groups, holder="test", now=1000.0)


def major(log: Path) -> None:
    owner = RaOwner(log, max_count=24)
    owner.start()
    owner.major()


def minor(log: Path) -> None:
    owner = RaOwner(log, max_count=24)
    owner.start()
    owner.minor()


def snapshot_and_minor(log: Path) -> None:
    append(log, LAST + 1, LAST + 30)
    take_snapshot(log, LAST)
    minor(log)


def snapshot_and_major(log: Path) -> None:
    """The ninth ordinary snapshot."""
    append(log, LAST + 1, LAST + 30)
    take_snapshot(log, LAST)
    major(log)


def years_of_use(log: Path) -> None:
    snapshot_and_major(log)
    append(log, LAST + 31, LAST + 90)
    take_snapshot(log, LAST + 60)
    major(log)


def restored_from_a_copy(log: Path) -> None:
    """New inodes and times, hard links become files of their own."""
    os.rename(log, log.with_name("old"))
    shutil.copytree(log.with_name("old"), log, symlinks=True, copy_function=shutil.copyfile)
    shutil.rmtree(log.with_name("old"))


def restored_with_times(log: Path) -> None:
    os.rename(log, log.with_name("old"))
    shutil.copytree(log.with_name("old"), log, symlinks=True)
    shutil.rmtree(log.with_name("old"))


def restored_and_compacted(log: Path) -> None:
    restored_with_times(log)
    snapshot_and_major(log)


def without_the_fence(log: Path) -> None:
    (log / fence.FENCE_FILE).unlink(missing_ok=True)


def major_without_the_fence(log: Path) -> None:
    without_the_fence(log)
    snapshot_and_major(log)


OTHERS: tuple[Callable[[Path], None], ...] = (
    major, minor, snapshot_and_minor, snapshot_and_major, years_of_use, restored_from_a_copy, restored_with_times,
    restored_and_compacted, without_the_fence, major_without_the_fence,
)  # fmt: skip


def kill_points(fresh: Callable[[], Path]) -> Iterator[int]:
    """Every call of the commit that changes a name: before any other nothing is different from the one before."""
    log = fresh()
    with DyingFilesystem() as counter:
        attempt(log)
    begin = next(n for n, call in enumerate(counter.calls) if call.startswith("rename") and "compacting" in call)
    names = [n for n, call in enumerate(counter.calls) if n >= begin - 3 and not call.startswith(("sync", "write"))]
    assert len(names) > 30
    each = steps(counter.calls)
    yield from one_of_each(names, lambda number: each[number])
    yield len(counter.calls)


def died(fresh: Callable[[], Path], at: int) -> Path:
    log = fresh()
    with DyingFilesystem(at=at), suppress(SuddenDeath):
        attempt(log)
    return log


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_every_kill_point_then_somebody_else_then_recovery(
    fresh: Callable[[], Path], other: Callable[[Path], None]
) -> None:
    for at in kill_points(fresh):
        log = died(fresh, at)
        other(log)
        assert content(log) == wanted(log), f"{at}: lost by the other alone"
        report = recovery.recover(log, now=1000.0)
        assert content(log) == wanted(log), f"{at}: {report}"
        assert not recovery.is_needed(log), at
        assert not recovery.recover(log, now=1000.0).changed
        assert [name for name in leftovers(log) if not name.endswith(".partial")] == []
        compact_log(log, LIMITS, job="next", now=1000.0)
        sweep.sweep(log, now=5000.0, grace_seconds=600, active=frozenset())
        assert content(log) == wanted(log), f"{at}: lost by the next compaction"
        major(log)
        assert content(log) == wanted(log), f"{at}: lost by the owner's next one"


def test_a_recovery_that_trusts_names_would_be_found(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect of which this is the test: a commit finished over what the owner has compacted since."""
    monkeypatch.setattr(evidence._Walk, "_why_not", lambda *_: None)
    losing = 0
    for at in kill_points(fresh):
        log = died(fresh, at)
        snapshot_and_major(log)
        recovery.recover(log, now=1000.0)
        losing += content(log) != wanted(log)
    assert losing


def at_the_commit_point(fresh: Callable[[], Path]) -> Path:
    """Died right behind the commit point of the first group: nothing is linked yet."""
    log = fresh()
    with DyingFilesystem() as counter:
        attempt(log)
    point = next(n for n, call in enumerate(counter.calls) if call.startswith("rename") and ".link" in call)
    return died(fresh, point + 1)


def test_the_receipt_names_what_was_replaced(fresh: Callable[[], Path]) -> None:
    whole = fresh()
    attempt(whole)
    full = fence.read(whole).receipts[0]
    log = at_the_commit_point(fresh)
    snapshot_and_major(log)
    files = {path.name: path.lstat().st_ino for path in log.glob("*.segment")}
    report = recovery.recover(log, now=1000.0)
    assert report.finished == (full.group,)
    assert {item.reason for item in report.stayed} == {Stays.CHANGED}
    assert files == {path.name: path.lstat().st_ino for path in log.glob("*.segment")}
    receipt = fence.read(log).receipts[0]
    assert receipt.linked == ()
    assert (receipt.output, receipt.entries) == (full.output, full.entries)
    assert receipt.bytes_before < full.bytes_before
    assert fence.read(log).tombstones == ()


def test_it_ends_below_the_first_name_that_changed(fresh: Callable[[], Path]) -> None:
    """The third source was replaced; the second is linked, the fourth stays although it is what it was."""
    log = at_the_commit_point(fresh)
    names = list(fence.read(log).intents[0].receipt.linked)
    other = open_log(log).segment(names[1])
    data = bytearray(other.path.read_bytes())
    data[int(other.offset[other.idx == 20][0])] ^= 1
    (log / "copy").write_bytes(data)
    os.replace(log / "copy", other.path)
    report = recovery.recover(log, now=1000.0)
    assert [item.segment for item in report.stayed] == names[1:]
    assert [name for name in names if (log / name).is_symlink()] == names[:1]
    assert fence.read(log).receipts[0].linked == (names[0],)


def test_another_device_number_is_no_other_file(fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems have one per mount: the commit is finished as if nothing had happened."""
    log = at_the_commit_point(fresh)
    of = FileIdentity.of

    def elsewhere(stat: os.stat_result) -> FileIdentity:
        found = of(stat)
        return FileIdentity(found.device + 7, found.inode, found.size, found.mtime_ns)

    monkeypatch.setattr(FileIdentity, "of", staticmethod(elsewhere))
    report = recovery.recover(log, now=1000.0)
    assert report.finished
    assert not report.stayed
    assert content(log) == wanted(log)


def test_a_restored_directory_is_finished_by_its_content(fresh: Callable[[], Path]) -> None:
    """New inodes, and everything is there: each name is compared with the output, byte for byte."""
    log = at_the_commit_point(fresh)
    linked = fence.read(log).intents[0].receipt.linked
    restored_from_a_copy(log)
    report = recovery.recover(log, now=1000.0)
    assert report.finished
    assert not report.stayed
    assert [name for name in linked if (log / name).is_symlink()] == list(linked)
    assert content(log) == wanted(log)


def test_an_output_that_was_restored_with_other_bytes_proves_nothing(fresh: Callable[[], Path]) -> None:
    """Size, index and stored checksums are those of the intent; a payload never reached the disk."""
    log = at_the_commit_point(fresh)
    intent = fence.read(log).intents[0]
    restored_from_a_copy(log)
    (log / f"{intent.group}.compacting").unlink()
    with open(log / intent.receipt.output, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\0\0\0")
    report = recovery.recover(log, now=1000.0)
    assert {item.reason for item in report.stayed} == {Stays.NOT_COVERED}
    last = intent.receipt.linked[-1]
    assert not (log / last).is_symlink()
    assert content(log) == wanted(log)


def test_the_only_copy_is_kept_and_reported(fresh: Callable[[], Path]) -> None:
    """All names were linked when we died; then the directory was restored without the output's own name."""
    log = fresh()
    with DyingFilesystem() as counter:
        attempt(log)
    end = next(n for n, call in enumerate(counter.calls) if call.startswith("unlink") and "compacting" in call)
    log = died(fresh, end)
    receipt: GroupReceipt = fence.read(log).receipts[0]
    compacting = f"{receipt.group}.compacting"
    everything = wanted(log)
    (log / receipt.output).unlink()
    report = recovery.recover(log, now=1000.0)
    assert [kept.name for kept in report.kept] == [compacting]
    assert "which no segment of the log provides" in report.kept[0].reason
    assert recovery.is_needed(log)
    assert recovery.outlook(log)[0].kept == report.kept
    os.link(log / compacting, log / receipt.output)
    assert not recovery.recover(log, now=1000.0).kept
    assert content(log) == everything
    assert not recovery.is_needed(log)


def test_an_outlook_says_what_a_recovery_does(fresh: Callable[[], Path]) -> None:
    for other in (lambda _: None, snapshot_and_major, major_without_the_fence):
        log = at_the_commit_point(fresh)
        other(log)
        before = {path.name: path.lstat().st_mtime_ns for path in log.iterdir()}
        outlook = recovery.outlook(log)
        assert {path.name: path.lstat().st_mtime_ns for path in log.iterdir()} == before
        report = recovery.recover(log, now=1000.0)
        assert sorted(group for item in outlook for group in item.finished) == sorted(report.finished)
        assert sorted(group for item in outlook for group in item.discarded) == sorted(report.discarded)
        assert [stayed for item in outlook for stayed in item.stayed] == list(report.stayed)


def test_an_owner_that_starts_while_a_commit_sleeps_is_noticed_at_each_name(fresh: Callable[[], Path]) -> None:
    """We hold the lock, and are stopped before any system call; the owner compacts; we go on."""
    log = fresh()
    with before_call("write", -1, lambda: None) as counted:
        attempt(log)
    for number in points(counted.names):
        log = fresh()
        event = partial(snapshot_and_major, log)
        with before_call("write", number, event) as struck, suppress(SegmentLogError):
            attempt(log)
        if struck.struck.startswith("rename") and ".link" in struck.struck:
            continue  # the moment between the last look at a name and the call that replaces it
        assert content(log) == wanted(log), struck.struck
        assert [name for name in leftovers(log) if not name.endswith(".partial")] == []


def test_a_link_that_somebody_else_made_since_has_a_grace_of_its_own(fresh: Callable[[], Path]) -> None:
    """The name was restored as a file, and the owner's major made it a link again: old readers are of that file."""
    log = fresh()
    attempt(log)
    linked = fence.read(log).receipts[0].linked
    (log / linked[0]).unlink()
    (log / linked[0]).symlink_to((log / fence.read(log).receipts[0].output).absolute())
    first = sweep.sweep(log, now=1700.0, grace_seconds=600, active=frozenset())
    assert linked[0] not in {item.name for item in first.deleted}
    assert set(linked[1:]) <= {item.name for item in first.deleted}
    assert fence.read(log).tombstone(linked[0]).since == 1700.0  # type: ignore[union-attr]
    second = sweep.sweep(log, now=2300.0, grace_seconds=600, active=frozenset())
    assert linked[0] in {item.name for item in second.deleted}
