"""What recovery takes for evidence of a commit, what it makes durable first, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import CompactionError
from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.recovery import RaOutcome
from compaction.segments.directory import fs, lock
from compaction.segments.errors import NotALogDirectoryError
from compaction.segments.format import etf, names
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import GroupRanges, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import MUTATING, DyingFilesystem, SuddenDeath
from support.segments.segment_logs import content, leftovers

JOB = "job"
MakeLog = Callable[..., Path]


def seg(number: int) -> str:
    return f"{number:016d}.segment"


@pytest.fixture
def make(tmp_path: Path) -> MakeLog:
    """A log of segments of 10 entries, anew each time: 1..50, snapshot 40, `live` at or below it."""

    def fresh(live: str = "1,2,11,12,21,22,31") -> Path:
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        with LogWriter(directory, max_count=10, sync=False) as writer:
            for index in range(1, 51):
                writer.append(index, 1, b"entry %d" % index * 5)
        write_snapshot(directory, index=40, term=1, live=LiveSet.parse(live), sync=False)
        return directory

    return fresh


def compact(log: Path, *, token: int = 1, now: float = 1000.0) -> None:
    state = open_log(log)
    assert state.live is not None
    fence.claim(log, job=JOB, token=token, holder="test", now=now)
    for group in plan_log(state, SegmentLimits()).groups:
        done = kernel.rewrite_group(
            log, sources=group.sources, live=state.live, limits=SegmentLimits(), job=JOB, token=token
        )
        commit.commit_group(log, job=JOB, token=token, group=done, holder="test", now=now)


def calls_of(make: MakeLog, **kind: Any) -> list[str]:
    log = make(**kind)
    with DyingFilesystem() as counter:
        compact(log)
    return counter.calls


def died(make: MakeLog, at: int, **kind: Any) -> Path:
    """A log whose compaction died before its mutating call number `at`."""
    log = make(**kind)
    with DyingFilesystem(at=at), pytest.raises(SuddenDeath):
        compact(log)
    return log


def position(calls: list[str], beginning: str) -> int:
    return next(number for number, call in enumerate(calls) if call.startswith(beginning))


def test_an_inode_number_alone_is_no_evidence(make: MakeLog) -> None:
    """A directory restored elsewhere: the lowest source got the number that the output once had."""
    calls = calls_of(make)
    log = died(make, position(calls, "rename 0000000000000001-"))
    before = content(log)
    file = log / fence.FENCE_FILE
    record = json.loads(file.read_text())
    lowest = os.stat(log / seg(1))
    record["intents"][0]["identity"] |= {"device": lowest.st_dev, "inode": lowest.st_ino, "size": lowest.st_size}
    file.write_text(json.dumps(record))
    report = recovery.recover(log)
    assert (len(report.finished), len(report.discarded)) == (0, 1)
    assert content(log) == before
    assert not open_log(log).links


def test_an_output_of_another_attempt_is_no_evidence_for_the_intent(make: MakeLog) -> None:
    """`.compacting` is the lowest segment, but not the file that the intent names."""
    calls = calls_of(make)
    log = died(make, position(calls, "rename 0000000000000001-"))
    before = content(log)
    os.link(log / seg(1), log / f"{'-'.join(seg(n)[:16] for n in (1, 2, 3, 4))}.compacting")
    assert not recovery.recover(log).finished
    assert content(log) == before
    assert not open_log(log).links
    assert leftovers(log) == [names.partial_name("-".join(seg(n)[:16] for n in (1, 2, 3, 4)), job=JOB, token=1)]


def test_linking_and_renaming_keep_the_identity_of_the_output(make: MakeLog) -> None:
    """Size and modification time survive the commit, so the intent can be recognised without `.compacting`."""
    log = make()
    seen: list[tuple[int, ...]] = []
    unlink = fs.unlink

    def spy(path: Path) -> None:
        if path.name.endswith(".compacting"):
            pending = json.loads((log / "kept").read_text())["intents"][0]["identity"]
            status = os.stat(log / seg(1))
            seen.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
            assert seen == [tuple(pending[k] for k in ("device", "inode", "size", "mtime_ns"))]
        unlink(path)

    link = fs.link

    def keep(source: Path, target: Path) -> None:
        shutil.copyfile(log / fence.FENCE_FILE, log / "kept")
        link(source, target)

    fs.link, fs.unlink = keep, spy
    try:
        compact(log)
    finally:
        fs.link, fs.unlink = link, unlink
    assert seen


def test_names_linked_late_get_the_whole_grace(make: MakeLog) -> None:
    """Dead for an hour, then recovered: a name that was a file until now is not deleted now."""
    calls = calls_of(make)
    for at in range(position(calls, "link"), len(calls)):
        log = died(make, at)
        files = {path.name for path in log.glob("*.segment") if not path.is_symlink()}
        swept = sweep.sweep(log, now=4600.0, grace_seconds=600)
        assert not files & {item.name for item in swept.deleted}, calls[at]
        if fence.read(log).receipts:
            assert all(t.since >= 4600.0 for t in fence.read(log).tombstones if t.name in files), calls[at]


def test_a_recovery_that_takes_long_shortens_no_grace(make: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are replaced an hour after the sweep began: their grace begins then (found by simulation, seed 19)."""
    log = died(make, position(calls_of(make), "symlink"))
    clock, symlink = [1000.0], fs.symlink

    def slowly(content: str, path: Path) -> None:
        clock[0] += 3600.0
        symlink(content, path)

    monkeypatch.setattr(fs, "symlink", slowly)
    monkeypatch.setattr(fs, "touch", lambda fd: clock[0])
    assert sweep.sweep(log, grace_seconds=600).deleted == ()
    tombstones = fence.read(log).tombstones
    assert tombstones
    assert {t.since for t in tombstones} == {clock[0]}


def test_a_tombstone_of_a_former_life_does_not_shorten_the_grace(make: MakeLog) -> None:
    """Without an intent: the name had a tombstone already when recovery links it."""
    calls = calls_of(make)
    log = died(make, position(calls, "symlink"))
    file = log / fence.FENCE_FILE
    file.write_text(json.dumps({"version": 1, "tombstones": [{"name": seg(2), "kind": "Linked", "since": 1.0}]}))
    assert recovery.recover(log, now=4600.0).finished
    assert {t.name: t.since for t in fence.read(log).tombstones} == {seg(n): 4600.0 for n in (2, 3, 4)}


class Order:
    """Records the mutating calls by name and file."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in MUTATING:
            patch.setattr(fs, name, self._spy(name, getattr(fs, name)))

    def _spy(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            target = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[-1])
            self.calls.append(f"{name} {os.path.basename(target)}")
            return original(*args, **kwargs)

        return call


def test_the_commit_point_is_durable_before_recovery_replaces_a_source(
    make: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Died between the rename of the commit point and its sync: after a power cut the rename may be gone again."""
    calls = calls_of(make)
    log = died(make, position(calls, f"rename 0000000000000001.link {seg(1)}") + 2)
    assert (log / seg(1)).stat().st_nlink == 2
    with monkeypatch.context() as patch:
        order = Order(patch)
        assert recovery.recover(log).finished
    first = position(order.calls, "symlink")
    assert f"sync {log.name}" in order.calls[:first]
    assert f"sync {seg(1)}" in order.calls[: order.calls.index(f"sync {log.name}")]
    replaced = [call for call in order.calls if call in {f"rename {seg(n)}" for n in (2, 3, 4)}]
    assert replaced == [f"rename {seg(n)}" for n in (2, 3, 4)]
    assert (
        f"sync {log.name}"
        in order.calls[order.calls.index(replaced[-1]) : order.calls.index("rename compaction.fence")]
    )


def ra_compacted(log: Path) -> None:
    """As Ra leaves it when it dies after the rename: the marker, the leader compacted, the members untouched."""
    live = open_log(log).live
    assert live is not None
    sources = [seg(1), seg(2), seg(3)]
    done = kernel.rewrite_group(log, sources=sources, live=live, limits=SegmentLimits(), job="ra", token=1)
    os.rename(log / done.partial, log / seg(1))
    (log / f"{seg(1)[:16]}.compaction_group").write_bytes(etf.encode([name.encode() for name in sources]))


def test_ras_leader_is_durable_before_its_members_go(make: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make()
    before = content(log)
    ra_compacted(log)
    with monkeypatch.context() as patch:
        order = Order(patch)
        assert [r.outcome for r in recovery.recover(log).ra] == [RaOutcome.FINISHED]
    first = position(order.calls, "symlink")
    assert order.calls[:first].index(f"sync {seg(1)}") < order.calls[:first].index(f"sync {log.name}")
    assert content(log) == before


def stranding(log: Path) -> None:
    """Ra compacted 2 and 4 around the dead 3 earlier: 2 holds an entry that 3 hides. Then it compacted 1 and 2."""
    live = open_log(log).live
    assert live is not None
    earlier = kernel.rewrite_group(log, sources=[seg(2), seg(4)], live=live, limits=SegmentLimits(), job="ra", token=1)
    os.rename(log / earlier.partial, log / seg(2))
    (log / seg(4)).unlink()
    (log / seg(4)).symlink_to(seg(2))


def test_a_member_that_holds_a_stranded_entry_is_not_linked(make: MakeLog) -> None:
    """The leader covers what is READ from the member; what is hidden in it until the dead one goes is nowhere else."""
    log = make("1,12,31")
    stranding(log)
    assert 31 not in content(log)
    state = open_log(log)
    assert state.live is not None
    readable = LiveSet.parse("1,12")
    leader = kernel.rewrite_group(
        log,
        sources=[seg(1), seg(2)],
        live=readable,
        limits=SegmentLimits(),
        job="ra",
        token=1,
        ranges=GroupRanges(((1, 10), (11, 20)), tuple(state.segment(seg(n)).identity for n in (1, 2))),
    )
    os.rename(log / leader.partial, log / seg(1))
    (log / f"{seg(1)[:16]}.compaction_group").write_bytes(etf.encode([seg(1).encode(), seg(2).encode()]))
    assert [r.outcome for r in recovery.recover(log).ra] == [RaOutcome.UNPROVEN]
    assert not (log / seg(2)).is_symlink()
    assert 31 in open_log(log).segment(seg(2)).idx


MARKER = "0000000000000001.compaction_group"


def big(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


STRANGE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": big,
    "nested": lambda path: path.write_bytes(b"\x83" + b"l\0\0\0\1" * 100_000),
    "long": lambda path: path.write_bytes(etf.encode([seg(1).encode(), seg(2).encode()]) + b"\0" * (2 << 20)),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_marker_is_removed_without_waiting_and_in_bounded_memory(make: MakeLog, kind: str) -> None:
    log = make()
    before = content(log)
    STRANGE[kind](log / MARKER)
    assert recovery.recover(log).ra[0].members == ()
    assert leftovers(log) == []
    assert content(log) == before
    assert not open_log(log).links


def test_a_group_of_one_never_uses_ras_own_name(make: MakeLog) -> None:
    """Ra would open `L.compacting` again and append to it; it may be a hard link to the live segment."""
    live = "1,11-20,21-30,31-40"
    calls = calls_of(make, live=live)
    assert any("0000000000000001-0000000000000001.compacting" in call for call in calls)
    for at in range(len(calls)):
        log = died(make, at, live=live)
        before = content(log)
        assert not (log / "0000000000000001.compacting").exists()
        recovery.recover(log)
        assert content(log) == before, calls[at]
        assert not recovery.is_needed(log)
        if not fence.read(log).receipts:
            compact(log, token=2)
        assert [(r.group, r.linked) for r in fence.read(log).receipts] == [("0000000000000001", ())]
        assert content(log) == before, calls[at]


@pytest.mark.parametrize("linked", [False, True])
def test_a_single_group_of_the_design_note_is_settled_by_its_inode(make: MakeLog, linked: bool) -> None:
    log = make()
    before = content(log)
    compacting = log / "0000000000000001.compacting"
    (os.link if linked else shutil.copyfile)(log / seg(1), compacting)
    report = recovery.recover(log)
    assert (report.finished, report.discarded) == (
        (("0000000000000001",), ()) if linked else ((), ("0000000000000001",))
    )
    assert leftovers(log) == []
    assert content(log) == before


def test_both_names_of_a_single_group_are_settled(make: MakeLog) -> None:
    live = "1,11-20,21-30,31-40"
    calls = calls_of(make, live=live)
    log = died(make, position(calls, "link"), live=live)
    before = content(log)
    (log / "0000000000000001.compacting").write_bytes(b"torn")
    recovery.recover(log)
    assert [name for name in leftovers(log) if not name.endswith(".partial")] == []
    assert fence.read(log).intents == ()
    assert content(log) == before


def test_group_names_are_unambiguous() -> None:
    one, two = "0000000000000001", "0000000000000002"
    assert names.compacting_name(one) == f"{one}-{one}.compacting"
    assert names.parse_compacting(f"{one}-{one}.compacting") == one
    assert names.parse_compacting(f"{one}.compacting") == one
    assert names.parse_compacting(names.compacting_name(f"{one}-{two}")) == f"{one}-{two}"
    for foreign in (f"{two}-{one}", f"{one}-{one}-{one}", f"{one}-{two}-{two}", "1", f"{one}-"):
        assert names.parse_compacting(f"{foreign}.compacting") is None


def test_without_its_intent_nothing_is_linked_across_a_segment_that_hides(make: MakeLog) -> None:
    """The fence was lost in a commit that carried a dead segment along: nobody knows that it should have gone too."""
    live = "1,2,21,22,31"
    calls = calls_of(make, live=live)
    for at in range(position(calls, "link"), len(calls)):
        log = died(make, at, live=live)
        before = content(log)
        (log / fence.FENCE_FILE).unlink()
        recovery.recover(log)
        assert content(log) == before, calls[at]
        assert not recovery.is_needed(log)
        compact(log)
        assert content(log) == before, calls[at]


def test_a_directory_that_is_no_log_is_not_touched(tmp_path: Path) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    for name in ("0000000000000001.link", "0000000000000001.compacting", "1234567890123456.compaction_group"):
        (directory / name).write_text("mine")
    before = sorted(os.listdir(directory))
    with pytest.raises(NotALogDirectoryError, match="other"):
        recovery.recover(directory)
    with pytest.raises(NotALogDirectoryError):
        commit.commit_unreferenced(directory, job=JOB, token=1, names=[], holder="test")
    assert not recovery.is_needed(directory)
    assert sorted(os.listdir(directory)) == before
    with pytest.raises(NotALogDirectoryError):
        recovery.recover(tmp_path / "missing")


def test_a_commit_into_a_directory_that_is_no_log_any_more(make: MakeLog) -> None:
    log = make()
    state = open_log(log)
    assert state.live is not None
    fence.claim(log, job=JOB, token=1, holder="test")
    done = kernel.rewrite_group(
        log, sources=[seg(1), seg(2)], live=state.live, limits=SegmentLimits(), job=JOB, token=1
    )
    for path in log.glob("*.segment"):
        path.unlink()
    (log / lock.LOCK_FILE).unlink()
    with pytest.raises(NotALogDirectoryError):
        commit.commit_group(log, job=JOB, token=1, group=done, holder="test")
    assert not (log / lock.LOCK_FILE).exists()


@pytest.mark.parametrize("lasting", [False, True])
def test_an_error_says_whether_something_was_committed(make: MakeLog, lasting: bool) -> None:
    calls = calls_of(make)
    point = position(calls, f"rename 0000000000000001.link {seg(1)}")
    told: dict[int, str] = {}
    for at in range(position(calls, "unlink compaction.fence.tmp"), len(calls)):
        log = make()
        try:
            with DyingFilesystem(at=at, error=OSError(28, "No space left on device"), lasting=lasting):
                compact(log)
        except CompactionError as error:
            told[at] = str(error)
    assert all(str(log) in message for message in told.values())
    early, late = ([m for at, m in told.items() if (at > point) is after] for after in (False, True))
    assert any("nothing was committed" in message for message in early)
    assert not any("finishes it" in message for message in early)
    assert not any("nothing was committed" in message for message in late)
    # What refuses once is overcome: the settling after it ends the commit.
    assert lasting == bool(late) == any("the next recovery finishes it" in message for message in late)
