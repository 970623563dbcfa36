"""A snapshot is installed in another log: what it holds afterwards, after restarts and after flushes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.segments.directory import fs
from compaction.segments.errors import (
    BrokenLogError,
    InstallIncompleteError,
    InvalidCutError,
    InvalidInstallError,
    LogClosedError,
    StoreIOError,
    WriteRefusedError,
)
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry, LogPosition, Seq
from compaction.segments.snapshot.directories import encode_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes
from compaction.segments.system.content import CUT_FILE
from compaction.segments.system.installs import Install
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from compaction.segments.writer import SegmentWriter
from support.clocks import PATIENCE_SECONDS

STATE = b"\x83j"


def entries(first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(index, term, b"%d@%d" % (index, term)) for index in range(first, last + 1)]


def flush(system: LogSystem) -> None:
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)


class Pair:
    """The log of a leader, with a snapshot at 20 of which 3, 12, 13 and 20 are live, and one of a follower."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.leading = LogSystem(root / "leader")
        self.following = LogSystem(root / "follower")
        self.leader.append(entries(1, 24, term=2)).result(PATIENCE_SECONDS)
        self.snapshot(20, "3,12-13,20")

    @property
    def leader(self) -> Log:
        return self.leading.open_log("log")

    @property
    def follower(self) -> Log:
        return self.following.open_log("log")

    def snapshot(self, index: int, live: str) -> None:
        self.leader.snapshot(index, 2, STATE, LiveSet.parse(live)).result(PATIENCE_SECONDS)

    def install(self, applied: int | None) -> None:
        install_snapshot(self.leader, self.follower, term=2, transfer=1, applied=applied)

    def begin(self, applied: int | None = None, index: int = 20, indexes_bytes: int | None = None) -> Install:
        size = len(encode_indexes(LiveSet.parse("3,12-13,20"))) if indexes_bytes is None else indexes_bytes
        return self.follower.begin_install(index, 2, applied=applied, indexes_bytes=size, data_bytes=len(self.data))

    @property
    def data(self) -> bytes:
        return encode_snapshot(index=20, term=2, state=STATE)

    def restart(self) -> None:
        self.following.close()
        self.following = LogSystem(self.root / "follower")

    def close(self) -> None:
        self.leading.close()
        self.following.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


LIVE = [*entries(3, 3, 2), *entries(12, 13, 2), *entries(20, 20, 2)]


def nothing() -> None:
    pass


def check_installed(pair: Pair, held: list[LogEntry]) -> None:
    """At once, in segments, and after each restart; and the log goes on behind the snapshot."""
    for act in (nothing, pair.restart, lambda: flush(pair.following), pair.restart):
        act()
        log = pair.follower
        assert (log.last, log.last_written) == (LogPosition(20, 2), LogPosition(20, 2))
        assert log.read(range(99)) == held
        assert log.indexes() == Seq.from_indexes(entry.index for entry in held)
        assert log.row.live == LiveSet.parse("3,12-13,20")
    for index in (21, 22):
        pair.follower.append(entries(index, index, term=3)).result(PATIENCE_SECONDS)
        assert pair.follower.read(range(99)) == [*held, *entries(21, index, term=3)]
        pair.restart()
        assert pair.follower.read(range(99)) == [*held, *entries(21, index, term=3)]
    flush(pair.following)
    pair.restart()
    assert pair.follower.read(range(99)) == [*held, *entries(21, 22, term=3)]
    assert not (pair.follower.directory / CUT_FILE).exists()
    assert not (pair.follower.directory / "install.partial").exists()


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
@pytest.mark.parametrize("tail", [0, 10, 15, 20, 24, 40])
def test_the_follower_holds_the_live_entries_and_the_snapshot(pair: Pair, tail: int, flushed: bool) -> None:
    """`tail`: where the follower's log ends, all but 5 entries of it never committed and of an older term."""
    if tail:
        pair.follower.append(entries(1, 5, term=2)).result(PATIENCE_SECONDS)
        pair.follower.append(entries(6, tail)).result(PATIENCE_SECONDS)
    if flushed:
        flush(pair.following)
    pair.install(applied=5 if tail else None)
    check_installed(pair, LIVE)


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_tail_does_not_come_back_when_no_entry_has_to_be_sent(pair: Pair, truncated: bool, flushed: bool) -> None:
    """Nothing that is written hides it: neither one that the owner has truncated before."""
    pair.snapshot(23, "3")
    pair.follower.append(entries(1, 5, term=2)).result(PATIENCE_SECONDS)
    pair.follower.append(entries(6, 40)).result(PATIENCE_SECONDS)
    if flushed:
        flush(pair.following)
    if truncated:
        pair.follower.truncate(6)
    pair.install(applied=5)
    for act in (nothing, pair.restart, lambda: flush(pair.following), pair.restart, pair.restart):
        act()
        assert pair.follower.last == LogPosition(23, 2)
        assert pair.follower.read(range(99)) == entries(3, 3, 2)
    pair.follower.append(entries(24, 24, term=3)).result(PATIENCE_SECONDS)
    for act in (pair.restart, lambda: flush(pair.following), pair.restart):
        act()
        assert pair.follower.read(range(99)) == [*entries(3, 3, 2), *entries(24, 24, term=3)]
    assert not (pair.follower.directory / CUT_FILE).exists()


def test_the_last_entry_has_the_term_of_the_snapshot_while_the_entry_that_it_replaced_waits_for_the_segment_writer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.snapshot(23, "3")
    pair.follower.append(entries(1, 5, term=2)).result(PATIENCE_SECONDS)
    pair.follower.append(entries(6, 40)).result(PATIENCE_SECONDS)
    monkeypatch.setattr(SegmentWriter, "_next", lambda _self: None)
    pair.restart()
    pair.install(applied=5)
    for act in (nothing, pair.restart, pair.restart):
        act()
        assert pair.follower.last == LogPosition(23, 2)


def test_a_log_that_holds_the_entry_of_the_snapshot_keeps_what_follows(pair: Pair) -> None:
    """It matches the sender's up to there, so nothing needs to be sent but the snapshot."""
    pair.follower.append(entries(1, 23, term=2)).result(PATIENCE_SECONDS)
    pair.install(applied=5)
    for act in (nothing, pair.restart, lambda: flush(pair.following), pair.restart):
        act()
        assert pair.follower.last == LogPosition(23, 2)
        assert pair.follower.read(range(99)) == [*LIVE, *entries(21, 23, 2)]


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("sent", [0, 2])
def test_an_installation_that_ends_early_leaves_the_log_as_it_was_up_to_its_base(
    pair: Pair, sent: int, restarted: bool, flushed: bool
) -> None:
    pair.follower.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    install = pair.begin(applied=10)
    assert install.base == 10
    for before, index in [(10, 12), (12, 13)][:sent]:
        install.write(entries(index, index, 2)[0], before).result(PATIENCE_SECONDS)
    install.chunk(b"x")
    if flushed:
        flush(pair.following)
    if not restarted:
        install.abort()
    pair.restart()
    for _ in range(2):
        assert pair.follower.last == LogPosition(10, 2)
        assert pair.follower.read(range(99)) == entries(1, 10, 2)
        flush(pair.following)
        pair.restart()
    pair.follower.append(entries(11, 11, term=4)).result(PATIENCE_SECONDS)
    pair.restart()
    assert pair.follower.read(range(99)) == [*entries(1, 10, 2), *entries(11, 11, 4)]
    pair.install(applied=11)
    check_installed(pair, LIVE)


def test_entries_that_are_flushed_beside_an_open_installation_stay(pair: Pair) -> None:
    """After an aborted one, whose cut goes with that flush; the new one has written nothing yet."""
    aborted = pair.begin()
    aborted.write(entries(3, 3, 2)[0], None).result(PATIENCE_SECONDS)
    aborted.abort()
    pair.follower.append(entries(1, 5, term=2)).result(PATIENCE_SECONDS)
    assert pair.begin(applied=5).base == 5
    flush(pair.following)
    pair.restart()
    assert pair.follower.last == LogPosition(5, 2)
    assert pair.follower.read(range(99)) == entries(1, 5, 2)
    pair.install(applied=5)
    check_installed(pair, LIVE)


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
def test_a_snapshot_without_all_its_live_entries_is_not_published(pair: Pair, flushed: bool) -> None:
    """An entry that did not arrive is never taken for dead, and never for the one that the log holds in its place."""
    pair.follower.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    pair.follower.append(entries(11, 19)).result(PATIENCE_SECONDS)
    if flushed:
        flush(pair.following)
    install = pair.begin(applied=10)
    install.write(entries(13, 13, 2)[0], 10)
    install.chunk(encode_indexes(LiveSet.parse("3,12-13,20")) + pair.data)
    with pytest.raises(InstallIncompleteError, match="2 live entries are missing, the first one is index 12"):
        install.finish().result(PATIENCE_SECONDS)
    install.abort()
    assert pair.follower.row.snapshot_index is None
    assert pair.follower.read(range(99)) == entries(1, 10, 2)
    pair.install(applied=10)
    check_installed(pair, LIVE)


def test_a_snapshot_whose_files_are_damaged_is_not_published(pair: Pair) -> None:
    indexes = encode_indexes(LiveSet.parse("3,12-13,20"))
    for stream, index, error in (
        (indexes + pair.data[:-1] + b"\0", 20, "checksum"),
        (indexes[:-1] + b"\xff" + pair.data, 20, "checksum"),
        (indexes + pair.data[:-1], 20, "the header"),
        (indexes + pair.data, 19, "it is of index 20, term 2, not 19, 2"),
    ):
        install = pair.begin(index=index)
        install.chunk(stream)
        with pytest.raises(InvalidInstallError, match=error):
            install.finish().result(PATIENCE_SECONDS)
        install.abort()
    assert pair.follower.last is None
    pair.install(applied=None)
    check_installed(pair, LIVE)


def test_an_open_installation_keeps_other_writes_out(pair: Pair) -> None:
    log = pair.follower
    log.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    install = pair.begin(applied=10)
    for act in (
        lambda: log.append(entries(11, 11)),
        lambda: log.write_sparse(entries(12, 12)[0], 10),
        lambda: log.truncate(5),
        lambda: log.snapshot(5, 2, STATE, LiveSet.empty()),
        lambda: pair.begin(applied=10),
    ):
        with pytest.raises(WriteRefusedError, match="the snapshot of index 20 is being installed"):
            act()
    with pytest.raises(WriteRefusedError, match="entry 21 is above the index 20"):
        install.write(entries(21, 21)[0], 10)
    with pytest.raises(WriteRefusedError, match="bytes or more"):
        install.chunk(bytes(10_000))
    install.abort()
    install.abort()
    assert log.append(entries(11, 11)).result(PATIENCE_SECONDS) == LogPosition(11, 1)


@pytest.mark.parametrize(
    ("applied", "index", "message"),
    [(None, 8, "not above the one at 8"), (20, 20, "not above the applied index 20"), (15, 20, "not in the log")],
)
def test_an_installation_that_contradicts_the_log_is_refused(
    pair: Pair, applied: int | None, index: int, message: str
) -> None:
    log = pair.follower
    log.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    log.snapshot(8, 2, STATE, LiveSet.parse("3")).result(PATIENCE_SECONDS)
    with pytest.raises(WriteRefusedError, match=message):
        pair.begin(applied=applied, index=index)
    assert log.read(range(99)) == [*entries(3, 3, 2), *entries(9, 10, 2)]
    assert log.row.snapshot_index == 8


def test_a_snapshot_is_published_after_its_entries_are_durable(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    renamed = threading.Event()
    sync, rename = fs.sync_data, fs.rename

    def slow_sync(fd: int) -> None:
        # Long enough for a snapshot that does not wait.
        renamed.wait(0.5)
        sync(fd)
        order.append("synced")

    def note_rename(source: Path, target: Path) -> None:
        rename(source, target)
        if target.parent.name == "snapshots":
            order.append("published")
            renamed.set()

    install = pair.begin()
    monkeypatch.setattr(fs, "sync_data", slow_sync)
    monkeypatch.setattr(fs, "rename", note_rename)
    for before, index in ((None, 3), (3, 12), (12, 13), (13, 20)):
        install.write(entries(index, index, 2)[0], before)
    install.chunk(encode_indexes(LiveSet.parse("3,12-13,20")) + pair.data)
    install.finish().result(PATIENCE_SECONDS)
    assert order[-1] == "published"
    assert set(order[:-1]) == {"synced"}
    monkeypatch.undo()
    check_installed(pair, LIVE)


def test_a_system_that_closes_while_a_snapshot_arrives_forgets_it(pair: Pair) -> None:
    pair.follower.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    install = pair.begin(applied=10)
    install.write(entries(12, 12, 2)[0], 10)
    install.chunk(b"x")
    pair.restart()
    for act in (lambda: install.chunk(b"x"), install.finish, lambda: install.write(entries(13, 13, 2)[0], 12)):
        with pytest.raises(LogClosedError, match="the installation is aborted"):
            act()
    install.abort()
    assert pair.follower.read(range(99)) == entries(1, 10, 2)
    assert not (pair.follower.directory / "install.partial").exists()


def test_a_storage_that_refuses_keeps_the_log_as_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the snapshot is published the installation can be aborted; while it is, the disk decides."""
    pair.follower.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    indexes = encode_indexes(LiveSet.parse("3"))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for call, stays in (("sync", True), ("rename", False)):
        install = pair.begin(applied=10, indexes_bytes=len(indexes))
        install.chunk(indexes + pair.data)
        with monkeypatch.context() as patch:
            patch.setattr(fs, call, refuse)
            with pytest.raises(StoreIOError, match="No space left"):
                install.finish().result(PATIENCE_SECONDS)
        assert pair.follower.read(range(99)) == entries(1, 10, 2)
        if stays:
            install.abort()
        else:
            with pytest.raises(LogClosedError, match="close the system of logs and open it again"):
                install.abort()
            with pytest.raises(WriteRefusedError, match="is being installed"):
                pair.follower.append(entries(11, 11))
            pair.restart()
        assert pair.follower.last == LogPosition(10, 2)
    pair.install(applied=10)
    check_installed(pair, LIVE)


def test_a_log_whose_cut_cannot_be_read_is_kept_closed(pair: Pair) -> None:
    """Where the log ends would be a guess."""
    pair.follower.append(entries(1, 10, term=2)).result(PATIENCE_SECONDS)
    pair.begin(applied=10).write(entries(12, 12, 2)[0], 10).result(PATIENCE_SECONDS)
    path = pair.follower.directory / CUT_FILE
    pair.following.close()
    data = path.read_bytes()
    for bad, message in (
        (data[:-1], "it has 24 bytes, not 25"),
        (b"CCUT\2" + data[5:], "it begins with"),
        (data[:-1] + b"\0", "its checksum does not match"),
    ):
        path.write_bytes(bad)
        with (
            LogSystem(pair.root / "follower") as system,
            pytest.raises(BrokenLogError, match=f"{path}: {message}") as e,
        ):
            system.open_log(path.parent.name)
        assert isinstance(e.value.__cause__, InvalidCutError)
    path.write_bytes(data)
    pair.following = LogSystem(pair.root / "follower")
    assert pair.follower.last == LogPosition(10, 2)
