"""What an owner compacts itself: phase 1 after each snapshot, whole compactions by call, ratio, size and timer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.api.policy.segment_logs import Ownership
from compaction.segments import sweep
from compaction.segments.commit import fence
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import regular_segments, segment_links
from compaction.segments.errors import LogClosedError, StoreIOError, WriteRefusedError
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.model import segment_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting.compact import CompactionRequest, compact_log
from compaction.segments.snapshot.directories import LogSnapshot, encode_snapshot, snapshot_name
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes
from compaction.segments.system import compactions as compactions_module
from compaction.segments.system import installs as installs_module
from compaction.segments.system import log as log_module
from compaction.segments.system.compactions import OWNER, OwnerCompaction
from compaction.segments.system.content import write_partial
from compaction.segments.system.log import Log
from compaction.segments.system.rules import Due, DueRules
from compaction.segments.system.segment_changes import SegmentChanges
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments
from compaction.storage.errors import RewriteStoppedError
from support.clocks import PATIENCE_SECONDS

STATE = b"\x83j"


def limits(**rules: Any) -> SystemLimits:
    return SystemLimits(segments=NewSegments(max_count=8), compaction=OwnerCompaction(**rules))


def names(*numbers: int) -> list[str]:
    return [segment_name(number) for number in numbers]


def entries(first: int, last: int) -> list[LogEntry]:
    return [LogEntry(index, 1, b"entry %d " % index * 5) for index in range(first, last + 1)]


def filled(system: LogSystem, last: int = 60) -> Log:
    """Eight entries in each segment."""
    log = system.open_log("a")
    log.append(entries(1, last)).result(PATIENCE_SECONDS)
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)
    return log


def snapshot(system: LogSystem, log: Log, index: int, live: str) -> None:
    """Taken, and the log worker has done with it: the next task of its one thread is the proof."""
    log.snapshot(index, 1, STATE, LiveSet.parse(live) if live else LiveSet.empty()).result(PATIENCE_SECONDS)
    system._snapshots.submit(int).result(PATIENCE_SECONDS)


def test_dead_segments_go_after_each_snapshot(tmp_path: Path) -> None:
    reported: list[SegmentChanges] = []
    present: list[list[str]] = []

    def report(changes: SegmentChanges) -> None:
        reported.append(changes)
        present.append(regular_segments(tmp_path / "system" / "a"))

    with LogSystem(tmp_path / "system", limits=limits(), on_change=report) as system:
        log = filled(system)
        assert reported[-1].new == tuple(names(*range(1, 9)))
        snapshot(system, log, 40, "9-16,33")
        assert regular_segments(log.directory) == names(2, 5, 6, 7, 8)
        # First the report, with the files still there; then they go.
        obsolete, gone = reported[-2:]
        assert (obsolete.obsolete, obsolete.gone) == (tuple(names(1, 3, 4)), ())
        assert present[-2] == names(*range(1, 9))
        assert (gone.obsolete, gone.gone) == ((), tuple(names(1, 3, 4)))
        assert fence.read(log.directory).tombstones == ()
        assert [entry.index for entry in log.read(range(99))] == [*range(9, 17), 33, *range(41, 61)]
        # All of it is dead but the newest segment, which is the owner's.
        snapshot(system, log, 60, "")
        assert regular_segments(log.directory) == names(8)
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        assert system.open_log("a").read(range(99)) == []


def test_phase_one_can_be_switched_off(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "system", limits=limits(phase_one=False)) as system:
        log = filled(system)
        snapshot(system, log, 40, "")
        assert regular_segments(log.directory) == names(*range(1, 9))


def test_what_a_job_has_marked_waits_for_the_grace_of_its_policy(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "system", limits=limits(phase_one=False)) as system:
        log = filled(system)
        snapshot(system, log, 40, "17")
        compact_log(log.directory, CompactionRequest("job", SegmentLimits(), rewriting=False))
        assert {tombstone.name for tombstone in fence.read(log.directory).tombstones} == set(names(1, 2, 4, 5))
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        log = system.open_log("a")
        snapshot(system, log, 50, "41")
        # Segment 3 has died since: that one is the owner's to delete.
        assert regular_segments(log.directory) == names(1, 2, 4, 5, 6, 7, 8)
        sweep.sweep(log.directory, grace_seconds=0)
        assert regular_segments(log.directory) == names(6, 7, 8)


@pytest.mark.parametrize("installed", [False, True], ids=["taken", "installed"])
def test_a_compaction_that_goes_by_a_snapshot_before_its_owner_does_takes_nothing_from_it(
    tmp_path: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is visible before it is in force: a worker of a job may compact by it in between, and readers, the
    owner's own compaction and the ends of the log meet what it left.
    """
    module: Any = installs_module if installed else log_module
    publish = module.publish
    seen: list[int] = []

    with LogSystem(tmp_path / "system", limits=limits(grace=0.0)) as system:
        log = filled(system)
        snapshot(system, log, 40, "9-16,33")

        def publish_and_compact(partial: Path, **what: Any) -> LogSnapshot:
            made: LogSnapshot = publish(partial, **what)
            for _ in range(2):
                compact_log(log.directory, CompactionRequest("job", SegmentLimits(), ownership=Ownership.STOPPED))
                sweep.sweep(log.directory, grace_seconds=0, ownership=Ownership.STOPPED)
            log.refresh()
            seen.extend(entry.index for entry in log.read(range(99)))
            assert not log.segments.view.state(log.row, log.waiting).missing
            own = system.compact("a").result(PATIENCE_SECONDS)
            assert own.done.failures == ()
            with pytest.raises(WriteRefusedError):
                log.truncate(50)
            if not installed:
                log.truncate(51)
                assert log.last == LogPosition(50, 1)
                log.append(entries(51, 60))
            return made

        monkeypatch.setattr(module, "publish", publish_and_compact)
        if installed:
            indexes = encode_indexes(LiveSet.parse("10-12"))
            data = encode_snapshot(index=70, term=1, state=STATE)
            install = log.begin_install(70, 1, applied=60, indexes_bytes=len(indexes), data_bytes=len(data))
            install.chunk(indexes + data)
            install.finish().result(PATIENCE_SECONDS)
            expected = [10, 11, 12]
        else:
            snapshot(system, log, 50, "10-12")
            expected = [10, 11, 12, *range(51, 61)]
        assert [index for index in seen if index <= 40] == [10, 11, 12]
        assert [entry.index for entry in log.read(range(99))] == expected
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        assert [entry.index for entry in system.open_log("a").read(range(99))] == expected


@pytest.mark.parametrize("when", ["written", "refused"])
def test_a_snapshot_that_never_became_visible_is_no_bound(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full while its files were written, or the log went back behind it meanwhile: no compaction goes by
    it, so the log is as it was before.
    """
    with LogSystem(tmp_path / "system", limits=limits(phase_one=False)) as system:
        log = filled(system)
        snapshot(system, log, 40, "9-16,33")

        def fail(*given: Any, **what: Any) -> Path:
            partial = write_partial(*given, **what)
            if when == "written":
                raise OSError(28, "No space left on device", str(partial))
            log.truncate(48)
            return partial

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "write_partial", fail)
            with pytest.raises((StoreIOError, WriteRefusedError)):
                snapshot(system, log, 50, "10-12")
        assert log.row.coming is None
        assert not (log.directory / "snapshots" / snapshot_name(term=1, index=50)).exists()
        log.truncate(46)
        assert log.last == LogPosition(45, 1)
        snapshot(system, log, 44, "9-16")
        assert [entry.index for entry in log.read(range(99))] == [*range(9, 17), 45]


@pytest.mark.parametrize("rewriting", [True, False], ids=["rewritten", "marked"])
def test_what_a_compaction_goes_by_is_durable_before_its_commit(
    tmp_path: Path, rewriting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may not have synced it: a power failure would take the snapshot back, and not what it made dead."""
    with LogSystem(tmp_path / "system", limits=limits(phase_one=False)) as system:
        log = filled(system)
        snapshot(system, log, 40, "9-16,33")
    done: list[str] = []

    def record(name: str, kept: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *rest: Path) -> Any:
            done.append(f"{name} {path.name}")
            return kept(path, *rest)

        return call

    for name in ("sync_file", "sync_directory", "rename"):
        monkeypatch.setattr(fs, name, record(name, getattr(fs, name)))
    request = CompactionRequest("job", SegmentLimits(), ownership=Ownership.STOPPED, rewriting=rewriting)
    made = compact_log(tmp_path / "system" / "a", request)
    assert made.receipts if rewriting else made.marked
    (newest,) = os.listdir(tmp_path / "system" / "a" / "snapshots")
    wanted = ["sync_file snapshot.dat", "sync_file indexes", f"sync_directory {newest}", "sync_directory snapshots"]
    first = done.index(wanted[0])
    assert done[first : first + 4] == wanted
    renamed = [[item for item in part if item.startswith("rename")] for part in (done[:first], done[first + 4 :])]
    assert len(renamed[0]) == 1, "the claim of the token"
    assert renamed[1]


@pytest.mark.parametrize("call", ["rename", "unlink", "sync_directory"])
def test_phase_one_that_fails_is_repeated_after_the_next_snapshot(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        log = filled(system)
        original = getattr(fs, call)

        def fail(path: Path, *rest: Path) -> None:
            if path.parent == log.directory and threading.current_thread().name.startswith("snapshots"):
                raise OSError(28, "No space left on device", str(path))
            if path == log.directory and not rest:
                raise OSError(5, "Input/output error", str(path))
            original(path, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(compactions_module, "delete_dead", _with(fs, call, fail, compactions_module.delete_dead))
            snapshot(system, log, 40, "33")
        assert "dead segments cannot be deleted now" in caplog.text
        assert log.read([33, 41]) == [*entries(33, 33), *entries(41, 41)]
        snapshot(system, log, 41, "33")
        assert regular_segments(log.directory) == names(5, 6, 7, 8)
        assert [tombstone for tombstone in fence.read(log.directory).tombstones if tombstone.job == OWNER] == []


def _with(module: Any, name: str, replacement: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a call of `module` replaced for as long as it runs."""

    def call(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, replacement)
            return function(*arguments, **options)

    return call


def test_a_log_that_another_process_works_on_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compactions_module, "_LOCK_SECONDS", 0.01)
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        log = filled(system)
        with lock.hold(log.directory, holder="compactor"):
            snapshot(system, log, 40, "")
            assert log.state.row.snapshot_index == 40, "the snapshot waits for nobody"
        assert "held after 0 s by compactor" in caplog.text
        assert regular_segments(log.directory) == names(*range(1, 9))
        snapshot(system, log, 41, "")
        assert regular_segments(log.directory) == names(6, 7, 8)


def test_a_call_compacts_the_log_while_it_is_written(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "system", limits=limits(grace=0)) as system:
        log = filled(system)
        snapshot(system, log, 40, "1,9,17,20,33")
        future = system.compact("a")
        log.append(entries(61, 64)).result(PATIENCE_SECONDS)
        result = future.result(PATIENCE_SECONDS)
        assert (result.log, result.reason, result.done.failures, result.deleted) == ("a", Due.REQUESTED, (), ())
        assert [receipt.linked for receipt in result.done.receipts] == [tuple(names(2, 3, 5))]
        # Nothing in another process reads the old names any more: the grace is 0 here.
        assert (regular_segments(log.directory), segment_links(log.directory)) == (names(1, 6, 7, 8), [])
        assert [entry.index for entry in log.read(range(99))] == [1, 9, 17, 20, 33, *range(41, 65)]
        assert system.compact("a").result(PATIENCE_SECONDS).done.receipts == ()
        with pytest.raises(KeyError):
            system.compact("b")
        system.open_log("empty")
        assert system.compact("empty").result(PATIENCE_SECONDS).done.receipts == ()
    with pytest.raises(LogClosedError):
        system.compact("a")


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (DueRules(live_share=0.3), Due.SPARSE),
        (DueRules(debt_bytes=1000), Due.LARGE),
        (DueRules(every=0.05), Due.TIMER),
    ],
    ids=["ratio", "size", "timer"],
)
def test_a_log_is_compacted_without_being_asked(tmp_path: Path, rules: DueRules, reason: Due) -> None:
    linked = threading.Event()

    def report(changes: SegmentChanges) -> None:
        if changes.linked:
            linked.set()

    with LogSystem(tmp_path / "system", limits=limits(due=rules), on_change=report) as system:
        log = filled(system)
        # Dense: there is nothing to gain, whatever the timer says.
        snapshot(system, log, 16, "1-16")
        assert segment_links(log.directory) == []
        snapshot(system, log, 40, "1,9,17,20,33")
        assert linked.wait(PATIENCE_SECONDS)
        assert segment_links(log.directory) == names(2, 3, 5)
        assert [entry.index for entry in log.read(range(99))] == [1, 9, 17, 20, 33, *range(41, 61)]
        reasons = {receipt.holder for receipt in fence.read(log.directory).receipts}
        assert reasons == {OWNER}
        assert reason is not Due.REQUESTED


def test_a_timer_that_cannot_read_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with LogSystem(tmp_path / "system", limits=limits(due=DueRules(every=0.05))) as system:
        log, failed = filled(system), threading.Event()
        refresh = log.segments.refresh

        def fail() -> Any:
            if threading.current_thread().name.startswith("compaction") and not failed.is_set():
                failed.set()
                raise OSError(24, "Too many open files")
            return refresh()

        monkeypatch.setattr(log.segments, "refresh", fail)
        assert failed.wait(PATIENCE_SECONDS)
        assert system.compact("a").result(PATIENCE_SECONDS).reason is Due.REQUESTED
    assert "Too many open files" in caplog.text


def test_an_owner_says_how_fast_it_compacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its rules, for triggers and calls; by a call, for that one; of two that wait the lower."""
    entered, go_on, rates = threading.Event(), threading.Event(), list[int | None]()

    def noted(directory: Path, request: CompactionRequest, *, should_stop: Callable[[], bool]) -> Any:
        rates.append(request.bytes_per_second)
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return compact_log(directory, request, should_stop=should_stop)

    monkeypatch.setattr(compactions_module, "compact_log", noted)
    rules = DueRules(live_share=0.3)
    with LogSystem(tmp_path / "system", limits=limits(due=rules, bytes_per_second=90_000)) as system:
        log = filled(system)
        snapshot(system, log, 40, "1,9,17,20,33")
        assert entered.wait(PATIENCE_SECONDS)
        waiting = system.compact("a", bytes_per_second=80_000)
        assert system.compact("a") is waiting
        go_on.set()
        waiting.result(PATIENCE_SECONDS)
        system.compact("a").result(PATIENCE_SECONDS)
        system.compact("a", bytes_per_second=100_000).result(PATIENCE_SECONDS)
    with LogSystem(tmp_path / "system", limits=limits()) as system:
        system.compact("a").result(PATIENCE_SECONDS)
    assert rates == [90_000, 80_000, 90_000, 100_000, None]


def test_closing_stops_a_compaction_that_waits_for_its_bytes(tmp_path: Path) -> None:
    system = LogSystem(tmp_path / "system", limits=limits(bytes_per_second=1))
    log = filled(system)
    snapshot(system, log, 40, "1,9,17,20,33")
    future = system.compact("a")
    # Its outputs are begun: a rewrite is under way, and would take minutes.
    while not list(log.directory.glob("*.partial*")):
        assert not future.done()
        threading.Event().wait(0.01)
    system.close()
    with pytest.raises(RewriteStoppedError):
        future.result(PATIENCE_SECONDS)
    assert segment_links(log.directory) == []


def test_closing_stops_a_compaction_before_its_next_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slowly(directory: Path, request: CompactionRequest, *, should_stop: Callable[[], bool]) -> Any:
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return compact_log(directory, request, should_stop=should_stop)

    monkeypatch.setattr(compactions_module, "compact_log", slowly)
    system = LogSystem(tmp_path / "system", limits=limits())
    log = filled(system)
    snapshot(system, log, 40, "1,9,17,20,33")
    first = system.compact("a")
    assert entered.wait(PATIENCE_SECONDS)
    second = system.compact("a")
    assert system.compact("a") is second, "one waits, whoever asked"
    closing = threading.Thread(target=system.close)
    closing.start()
    with pytest.raises(LogClosedError):
        second.result(PATIENCE_SECONDS)
    go_on.set()
    closing.join(PATIENCE_SECONDS)
    with pytest.raises(Exception, match="was asked to stop"):
        first.result(PATIENCE_SECONDS)
    assert segment_links(log.directory) == []
    with LogSystem(tmp_path / "system") as system:
        assert [entry.index for entry in system.open_log("a").read(range(99))] == [1, 9, 17, 20, 33, *range(41, 61)]
