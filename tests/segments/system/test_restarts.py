"""Restarts of a system: after a clean stop, after a kill, and in any history of a log against a model."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.segments.directory.lock import LOCK_FILE
from compaction.segments.errors import InvalidStopError, StoreIOError, WalChangedAfterStopError, WriteRefusedError
from compaction.segments.memtable import LogEntry
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import opening
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import HEADER
from compaction.segments.wal.files import STOP_FILE, WalEnd, read_stop, wal_files
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.wal.wal_reader import read_wal
from compaction.segments.writer import NewSegments
from simulation.logs.steps import SteppedSystem
from support.segments.segment_logs import WAIT, entries, wal_records, write_wal

# After a clean stop the write-ahead log ends where it ended: anything else is damage. After a kill, it may be torn.


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A system that was stopped cleanly: entries 1 to 5 in a file that waits for the segment writer, 6 to 9 in the
    newest.
    """
    stepped = SteppedSystem(tmp_path / "system", SystemLimits(), time.time)
    log = stepped.system.open_log("a")
    for act in (lambda: log.append(entries(1, 5)), stepped.system.roll, lambda: log.append(entries(6, 9))):
        future = act()
        assert stepped.threads["write-ahead log"]()
        future.result(WAIT)
    stepped.close()
    return tmp_path / "system"


def all_files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != LOCK_FILE}


def read_all(directory: Path) -> list[LogEntry]:
    with LogSystem(directory) as system:
        return system.open_log("a").read(range(99))


def test_the_record_says_where_each_file_ends_and_goes_before_anything_is_written(directory: Path) -> None:
    assert read_stop(directory) == {
        path.name: WalEnd(path.stat().st_size, path.stat().st_size) for path in wal_files(directory)
    }
    assert len(read_stop(directory)) == 2
    with LogSystem(directory) as system:
        assert not (directory / STOP_FILE).exists()
        log = system.open_log("a")
        assert log.read(range(99)) == entries(1, 9)
        log.append(entries(10, 12)).result(WAIT)
        # The files of before go while they would be copied.
        assert system.drain(WAIT)
        killed = shutil.copytree(directory, directory.parent / "killed")
    path = wal_files(killed)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    # What a kill has torn stays torn until the segment writer comes to it, over any number of clean stops.
    SteppedSystem(killed, SystemLimits(), time.time).close()
    whole, size = read_stop(killed)[path.name]
    assert whole < size == path.stat().st_size
    assert read_all(killed) == entries(1, 11)
    assert read_all(directory) == entries(1, 12)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_at_a_record(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: wal_records(path)[-1].offset])


def cut_to_its_header(path: Path) -> None:
    path.write_bytes(HEADER)


def zero(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes(40))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes() + path.read_bytes()[len(HEADER) :][:20])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("change", [cut, cut_at_a_record, cut_to_its_header, zero, tear, remove])
def test_another_end_than_at_the_clean_stop_is_damage(
    directory: Path, change: Callable[[Path], None], number: int
) -> None:
    path = wal_files(directory)[number]
    change(path)
    before = all_files(directory)
    with pytest.raises(WalChangedAfterStopError, match=r"when its system was stopped.* delete .*stopped$") as caught:
        LogSystem(directory)
    assert (caught.value.file, caught.value.record) == (str(path), str(directory / STOP_FILE))
    if path.exists():
        # No record of a stop lies beside the copy.
        with read_wal(Path(shutil.copy(path, directory.parent / path.name))) as reader:
            list(reader)
        assert caught.value.offset == reader.end
    assert all_files(directory) == before
    # The remedy of who has no copy: what is left, and the system goes on.
    Path(caught.value.record).unlink()
    left = read_all(directory)
    assert left == [entry for entry in entries(1, 9) if entry in left]
    assert (len(left) == 9) == (change is tear)


def test_an_owner_that_does_not_know_the_record_has_written_since(directory: Path) -> None:
    """As Ra does: its first file has the next number, and what it has moved into segments is gone."""
    first, second = wal_files(directory)
    newer = write_wal(directory, 3, [(b"a", LogEntry(10, 1, b"entry")), (b"a", LogEntry(11, 1, b"entry"))])
    newer.write_bytes(newer.read_bytes()[:-1])
    first.unlink()
    with LogSystem(directory) as system:
        assert [item.index for item in system.open_log("a").read(range(99))] == [6, 7, 8, 9, 10]
        assert system.drain(WAIT)
    assert second.name not in read_stop(directory)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"[" * 4000,
        b'{"0000000000000001.wal": 5}',
        b'{"7.wal": {"whole": 5, "size": 5}}',
        b'{"0000000000000001.wal": {"whole": 5, "size": true}}',
        b'{"0000000000000001.wal": {"whole": 5}}',
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_stays(directory: Path, content: bytes) -> None:
    (directory / STOP_FILE).write_bytes(content)
    with pytest.raises(InvalidStopError, match=f"{STOP_FILE}: not a record of a clean stop: .* delete it to open"):
        LogSystem(directory)
    assert (directory / STOP_FILE).read_bytes() == content
    (directory / STOP_FILE).unlink()
    assert read_all(directory) == entries(1, 9)


def test_a_start_that_is_refused_keeps_the_record_and_a_lost_lock_writes_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = (directory / STOP_FILE).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "recover", full)
        with pytest.raises(StoreIOError):
            LogSystem(directory)
    assert (directory / STOP_FILE).read_bytes() == record
    with LogSystem(directory):
        (directory / LOCK_FILE).unlink()
    assert read_stop(directory) == {}


# Any history of a log, through restarts and background flushes, against a model: a dictionary of what it must hold.

LONG = 120.0
LIMITS = SystemLimits(wal=WalLimits(max_entries=9), segments=NewSegments(max_count=6), snapshot_grace=0.0)
Content = dict[int, LogEntry]


class Histories(RuleBasedStateMachine):
    """`held` is what the log holds; `durable` what it holds after a restart, which forgets truncations."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="history"))
        self.system = LogSystem(self.directory, limits=LIMITS)
        self.log = self.system.open_log("log")
        # Another log in the same files.
        self.other = self.system.open_log("other")
        self.others = 0
        self.held: Content = {}
        self.durable: Content = {}
        self.snapshot_index = -1
        self.truncated: int | None = None
        self.hidden = self.doubtful = False
        """Segments may hold entries that only the write-ahead log hides; and the log was opened again since."""
        self.term = 1

    def teardown(self) -> None:
        self.system.close()
        shutil.rmtree(self.directory)

    @property
    def last(self) -> int:
        return max(max(self.held, default=-1), self.snapshot_index)

    def write(self, entries: list[LogEntry]) -> None:
        """In the model."""
        first = entries[0].index
        self.held = {i: e for i, e in self.held.items() if i < first} | {e.index: e for e in entries}
        if self.truncated is not None and first <= self.truncated:
            self.truncated = None
        self.durable = dict(self.held)

    def entries(self, first: int, count: int) -> list[LogEntry]:
        return [LogEntry(i, self.term, b"%d@%d" % (i, self.term)) for i in range(first, first + count)]

    @rule(count=st.integers(1, 7), wait=st.booleans())
    def append(self, count: int, wait: bool) -> None:
        entries = self.entries(self.last + 1, count)
        future = self.log.append(entries)
        self.write(entries)
        if wait:
            assert future.result(LONG) == (entries[-1].index, self.term)

    @precondition(lambda self: self.last > self.snapshot_index)
    @rule(data=st.data(), count=st.integers(1, 4))
    def overwrite(self, data: st.DataObject, count: int) -> None:
        self.term += 1
        entries = self.entries(data.draw(st.integers(self.snapshot_index + 1, self.last)), count)
        self.log.append(entries)
        self.write(entries)
        self.hidden = True

    @precondition(lambda self: self.truncated is None)
    @rule(gap=st.integers(1, 5))
    def write_sparse(self, gap: int) -> None:
        (entry,) = self.entries(self.last + gap, 1)
        try:
            self.log.write_sparse(entry, None if self.last < 0 else self.last)
        except WriteRefusedError:
            # A log that was opened again does not know what hides the entries that its segments still hold: it refuses
            # a gap that could bring them back, and changes nothing.
            assert self.doubtful
        else:
            self.write([entry])

    @precondition(lambda self: self.last > self.snapshot_index)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.snapshot_index + 1, self.last))
        self.log.truncate(index)
        self.held = {i: e for i, e in self.held.items() if i < index}
        self.truncated = index if self.truncated is None else min(index, self.truncated)
        self.hidden = True

    @precondition(lambda self: self.truncated is None and any(i > self.snapshot_index for i in self.held))
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from([i for i in self.held if i > self.snapshot_index]))
        # That of its entry, as an owner gives it: a tail behind it may have been overwritten in a later term.
        term = self.held[index].term
        live = data.draw(st.sets(st.sampled_from([i for i in self.held if i <= index])))
        if data.draw(st.booleans()):
            self.log.append(self.entries(self.last + 1, 1)).result(LONG)
            self.write(self.entries(self.last + 1, 1))
        else:
            # Maybe of the last entry, behind which a tail was overwritten.
            self.system.roll().result(LONG)
        self.log.snapshot(index, term, b"\x83j", LiveSet.from_indexes(live)).result(LONG)
        self.held = {i: e for i, e in self.held.items() if i > index or i in live}
        self.durable = dict(self.held)
        self.snapshot_index = index

    @rule(count=st.integers(1, 9))
    def write_another_log(self, count: int) -> None:
        self.other.append([LogEntry(i, 1, b"other") for i in range(self.others, self.others + count)])
        self.others += count

    @rule()
    def roll(self) -> None:
        self.system.roll()

    @rule()
    def flush(self) -> None:
        self.system.roll().result(LONG)
        assert self.system.drain(LONG)
        assert self.log.state.unflushed == 0
        if self.truncated is None:
            self.hidden = self.doubtful = False
            # What readers of the files alone find.
            state = open_log(self.log.directory) if self.log.state.segments else None
            found = (
                {} if state is None else {e.index: e for e in iter_entries(state, live_only=self.snapshot_index >= 0)}
            )
            assert {i: (e.term, e.payload) for i, e in found.items()} == {
                i: (e.term, e.payload) for i, e in self.held.items()
            }

    @rule()
    def restart(self) -> None:
        self.system.close()
        self.system = LogSystem(self.directory, limits=LIMITS)
        self.log, self.other = self.system.open_log("log"), self.system.open_log("other")
        self.held, self.truncated, self.doubtful = dict(self.durable), None, self.hidden
        assert self.log.last == self.log.last_written

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        assert list(self.log.indexes()) == sorted(self.held)
        assert self.log.read(range(self.last + 3)) == [self.held[i] for i in sorted(self.held)]
        last = self.log.last
        assert (-1 if last is None else last.index) == self.last
        if last is not None and last.index in self.held:
            assert last.term == self.held[last.index].term
        assert len(self.other.indexes()) == self.others


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=30)
