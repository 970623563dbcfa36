"""What Ra's suites check of installations (ra_log_2, ra_snapshot, ra_server, ra_kv), with real logs: a test each."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.errors import InstallStoppedError, LogGapError, WriteRefusedError
from compaction.segments.install.driver import SnapshotReceiver, SnapshotSender, install_snapshot
from compaction.segments.install.messages import Chunk, Entries, Refused, decode
from compaction.segments.install.sender import SenderPhase, SendLimits, StopReason
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import INDEXES_FILE
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import compact_log, live_set

LIMITS = SystemLimits(segments=NewSegments(max_count=16))
COMPACTION = SegmentLimits(max_entries=16)
LIVE = LiveSet.parse("3,10-12,17,20-60,90")


def entries(first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(index, term, b"%d@%d" % (index, term)) for index in range(first, last + 1)]


def flush(system: LogSystem) -> None:
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)


@pytest.fixture
def directories(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[LogSystem]:
    """Its log has 120 entries, and a snapshot at 100 with 47 live ones."""
    with LogSystem(tmp_path / "leader", limits=LIMITS) as system:
        log = system.open_log("log")
        log.append(entries(1, 120)).result(PATIENCE_SECONDS)
        log.snapshot(100, 1, b"\x83j", LIVE).result(PATIENCE_SECONDS)
        yield system


@pytest.fixture
def following(tmp_path: Path) -> Iterator[LogSystem]:
    with LogSystem(tmp_path / "follower", limits=LIMITS) as system:
        yield system


@pytest.fixture
def leader(leading: LogSystem) -> Log:
    return leading.open_log("log")


@pytest.fixture
def follower(following: LogSystem) -> Log:
    return following.open_log("log")


def live_entries(leader: Log) -> list[LogEntry]:
    return leader.read(leader.row.live or ())


def test_snapshot_installation_with_live_indexes(leader: Log, follower: Log) -> None:
    follower.append(entries(1, 15)).result(PATIENCE_SECONDS)
    snapshot = install_snapshot(leader, follower, term=1, transfer=1, applied=15)
    assert snapshot == follower.newest_snapshot
    assert follower.read(range(200)) == live_entries(leader)
    assert follower.last == follower.last_written == LogPosition(100, 1)
    assert snapshot is not None
    assert leader.newest_snapshot is not None
    for name in ("snapshot.dat", INDEXES_FILE):
        assert (snapshot.path / name).read_bytes() == (leader.newest_snapshot.path / name).read_bytes()


def test_append_after_snapshot_installation_with_live_indexes(
    leader: Log, follower: Log, following: LogSystem, directories: Path
) -> None:
    install_snapshot(leader, follower, term=1, transfer=1, applied=None)
    with pytest.raises(LogGapError, match="the next entry is index 101"):
        follower.append(entries(102, 102))
    with pytest.raises(WriteRefusedError, match="index 100 is not above"):
        follower.append(entries(100, 100))
    follower.append(leader.read(range(101, 121))).result(PATIENCE_SECONDS)
    for _ in range(2):
        assert follower.read(range(200)) == leader.read(range(200))
        flush(following)
    following.close()
    with LogSystem(directories / "follower", limits=LIMITS) as again:
        assert again.open_log("log").read(range(200)) == leader.read(range(200))


def test_snapshot_installation_overtakes_written(leader: Log, follower: Log) -> None:
    """Entries wait in the queue while the installation begins: they are acknowledged later, and no part of the log."""
    futures = [follower.append(entries(index, index + 9, term=9)) for index in range(1, 150, 10)]
    install_snapshot(leader, follower, term=9, transfer=1, applied=None)
    assert [future.result(PATIENCE_SECONDS).index for future in futures] == list(range(10, 151, 10))
    assert follower.last == follower.last_written == LogPosition(100, 1)
    assert follower.read(range(200)) == live_entries(leader)


def test_concurrent_snapshot_install_and_compaction(leader: Log, follower: Log, following: LogSystem) -> None:
    """A major compaction runs while a snapshot is installed, and what died then goes in the one after it."""
    install_snapshot(leader, follower, term=1, transfer=1, applied=None)
    follower.append(leader.read(range(101, 111))).result(PATIENCE_SECONDS)
    flush(following)
    leader.snapshot(118, 1, b"\x83j", LiveSet.parse("3,20,50-60,90,110")).result(PATIENCE_SECONDS)
    receiver = SnapshotReceiver(follower, term=1)
    with SnapshotSender(leader, term=1, transfer=2, limits=SendLimits(chunk_bytes=16, window=1)) as sender:
        messages = sender.start()
        compacted = False
        while messages:
            answers = [answer for message in messages for answer in receiver.receive(message, applied=105)]
            if sender.state.phase is SenderPhase.CHUNKS and not compacted:
                assert receiver.is_receiving
                compact_log(follower.directory, COMPACTION, job="major", now=1000.0, ownership=Ownership.STOPPED)
                compacted = True
            messages = [message for answer in answers for message in sender.receive(answer)]
        assert sender.state.applied == 118
    assert compacted
    expected = live_entries(leader)
    assert follower.read(range(200)) == expected
    flush(following)
    compact_log(follower.directory, COMPACTION, job="minor", now=2000.0, ownership=Ownership.STOPPED)
    assert follower.read(range(200)) == expected
    state = open_log(follower.directory)
    assert state.live == leader.row.live


def test_sparse_write_resend(leader: Log, follower: Log, following: LogSystem) -> None:
    """A write of the installation gets lost before the write-ahead log: the gap is found, and filled."""
    follower.append(entries(1, 2)).result(PATIENCE_SECONDS)
    queue = following._wal.queue
    put, lost = queue.put_reserved, []

    def lose_one(write: Any) -> None:
        if write.entries[0].index == 10:
            lost.append(write)
            queue.release(write.size)
        else:
            put(write)

    queue.put_reserved = lose_one  # type: ignore[method-assign]
    try:
        install_snapshot(leader, follower, term=1, transfer=1, applied=2)
    finally:
        queue.put_reserved = put  # type: ignore[method-assign]
    assert len(lost) == 1
    flush(following)
    assert follower.read(range(200)) == live_entries(leader)


def test_sparse_write_after_reset(leader: Log, follower: Log) -> None:
    """Aborted, and begun again from further down."""
    follower.append(entries(1, 15)).result(PATIENCE_SECONDS)
    for applied in (15, 10, 2):
        install = follower.begin_install(100, 1, applied=applied, indexes_bytes=1, data_bytes=1)
        assert install.base == applied
        install.write(leader.read([17])[0], applied).result(PATIENCE_SECONDS)
        with pytest.raises(WriteRefusedError, match="follows 2, but the log's last index is 17"):
            install.write(leader.read([20])[0], 2)
        install.abort()
        assert follower.last == LogPosition(applied, 1)
    install_snapshot(leader, follower, term=1, transfer=1, applied=2)
    # The live entry below 2 is none of those that were sent.
    assert follower.read(range(200)) == live_entries(leader)


def test_sparse_read_out_of_range(leader: Log, follower: Log) -> None:
    install_snapshot(leader, follower, term=1, transfer=1, applied=None)
    assert follower.read([0, 2, 61, 101, 5000]) == []
    assert follower.read([2, 3, 61, 90, 101]) == leader.read([3, 90])


@pytest.mark.parametrize("rest", [1, 4])
@pytest.mark.parametrize("interruption", ["a new offer", "a larger term", "an abort", "a restart"])
def test_receive_snapshot_is_interrupted(
    leader: Log, following: LogSystem, directories: Path, interruption: str, rest: int
) -> None:
    """At every message: what was written is no part of the log, and the next attempt succeeds."""
    limits = SendLimits(batch=16, chunk_bytes=64, window=1)
    system, follower = following, following.open_log("log")
    follower.append(entries(1, 15)).result(PATIENCE_SECONDS)
    done, stop_after = False, 0
    transfer = 0
    while not done:
        stop_after += rest
        receiver = SnapshotReceiver(follower, term=1)
        transfer += 1
        with SnapshotSender(leader, term=1, transfer=transfer, limits=limits) as sender:
            messages = sender.start()
            for _ in range(stop_after):
                answers = [answer for message in messages for answer in receiver.receive(message, applied=15)]
                messages = [message for answer in answers for message in sender.receive(answer)]
            done = sender.state.phase is SenderPhase.INSTALLED
            assert done or receiver.is_receiving
            if interruption == "a restart" and not done:
                system.close()
                system = LogSystem(directories / "follower", limits=LIMITS)
                follower = system.open_log("log")
                receiver = SnapshotReceiver(follower, term=1)
            elif interruption == "an abort":
                receiver.abort()
            elif interruption == "a larger term":
                receiver.learn_term(2)
                refused = [decode(m) for message in sender.resend() for m in receiver.receive(message, applied=15)]
                assert all(isinstance(message, Refused) for message in refused)
            elif not done:
                with SnapshotSender(leader, term=1, transfer=transfer + 1) as newer:
                    for message in newer.start():
                        receiver.receive(message, applied=15)
                    receiver.abort()
                transfer += 1
            if not done:
                assert not receiver.is_receiving
                assert follower.last == LogPosition(15, 1)
                assert follower.read(range(200)) == entries(1, 15)
    assert stop_after > 5
    assert follower.read(range(200)) == live_entries(leader)
    system.close()


@pytest.mark.parametrize(("phase", "first"), [(SenderPhase.ENTRIES, 110), (SenderPhase.CHUNKS, 100)])
def test_a_newer_snapshot_overtakes(leader: Log, follower: Log, phase: SenderPhase, first: int) -> None:
    """Of the sender, while its entries are read: it is sent instead; while chunks are sent: it follows."""
    receiver = SnapshotReceiver(follower, term=1)
    newer = LiveSet.parse("3,20-29,90")
    with SnapshotSender(leader, term=1, transfer=1, limits=SendLimits(batch=5, chunk_bytes=16, window=2)) as sender:
        messages, replaced = sender.start(), False
        while messages:
            if sender.state.phase is phase and not replaced:
                leader.snapshot(110, 1, b"\x83j", newer).result(PATIENCE_SECONDS)
                replaced = True
            answers = [answer for message in messages for answer in receiver.receive(message, applied=None)]
            messages = [message for answer in answers for message in sender.receive(answer)]
        assert sender.state.applied == first
    assert follower.row.live == (newer if first == 110 else LIVE)
    assert follower.read(range(200)) == entries_of(follower)
    install_snapshot(leader, follower, term=1, transfer=3, applied=first)
    assert follower.row == leader.row
    assert follower.read(range(200)) == live_entries(leader)


def entries_of(log: Log) -> list[LogEntry]:
    """What is live in a log, as every leader wrote it."""
    return [entry for index in log.row.live or () for entry in entries(index, index)]


def test_more_than_sixteen_live_entries_and_a_snapshot_in_chunks(leader: Log, follower: Log) -> None:
    receiver = SnapshotReceiver(follower, term=1)
    counts, sizes = [], []
    with SnapshotSender(leader, term=1, transfer=1, limits=SendLimits(chunk_bytes=50)) as sender:
        messages = sender.start()
        while messages:
            for message in map(decode, messages):
                if isinstance(message, Entries):
                    counts.append(len(message.entries))
                if isinstance(message, Chunk):
                    sizes.append(len(message.data))
            answers = [answer for message in messages for answer in receiver.receive(message, applied=None)]
            messages = [message for answer in answers for message in sender.receive(answer)]
    assert counts == [16, 16, 15]
    assert set(sizes[:-1]) == {50}
    assert follower.read(range(200)) == live_entries(leader)


def test_a_log_without_a_snapshot_and_a_log_that_misses_entries_send_nothing(
    leader: Log, leading: LogSystem, follower: Log
) -> None:
    with pytest.raises(InstallStoppedError, match="the log has no snapshot"):
        install_snapshot(leading.open_log("other"), follower, term=1, transfer=1, applied=None)
    flush(leading)
    segments = sorted(leader.directory.glob("*.segment"))
    segments[1].unlink()
    leader.refresh()
    with SnapshotSender(leader, term=1, transfer=1) as sender:
        receiver = SnapshotReceiver(follower, term=1)
        messages = sender.start()
        while messages:
            answers = [answer for message in messages for answer in receiver.receive(message, applied=None)]
            messages = [message for answer in answers for message in sender.receive(answer)]
    assert sender.state.stopped is StopReason.UNREADABLE
    assert "is missing: it is neither in memory nor in any segment" in sender.state.detail
    assert not receiver.is_receiving
    assert (follower.last, follower.row.snapshot_index) == (None, None)


@pytest.mark.fixtures
def test_the_snapshot_of_a_log_that_ra_wrote_is_installed(
    manifest: Callable[[str], dict[str, Any]],
    restored: Callable[[str, list[dict[str, Any]]], Path],
    follower: Log,
    tmp_path: Path,
) -> None:
    facts = manifest("03a-major-module")
    directory = restored("03a-major-module/after", facts["after_files"])
    source = tmp_path / "ra"
    source.mkdir()
    shutil.move(str(directory), source / directory.name)
    with LogSystem(source) as system:
        log = system.open_log(directory.name)
        install_snapshot(log, follower, term=9, transfer=1, applied=None)
        assert follower.row == log.row
    expected = [
        (row["idx"], row["term"], row["sha256"]) for row in facts["after_ra_readback"] if row["idx"] <= 1714
        and row["idx"] in live_set(facts["live_indexes"])
    ]  # fmt: skip
    found = [(e.index, e.term, hashlib.sha256(e.payload).hexdigest()) for e in follower.read(range(1715))]
    assert found == expected
