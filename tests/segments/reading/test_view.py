"""The log view against a model of a Raft log, and directories that are not as they should be."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.segments.errors import (
    CorruptIndexesError,
    InvalidSegmentFormatError,
    LiveSetUnknownError,
    LogChangedError,
    NotALogDirectoryError,
    SegmentNameError,
)
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.model import SegmentIndex, segment_name
from compaction.segments.reading import view as scan
from compaction.segments.reading.reader import SegmentFile, iter_entries
from compaction.segments.reading.view import is_log_directory, open_log, scan_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.timing import examples


def write(directory: Path, indexes: list[int], *, term: int = 1, max_count: int = 4) -> None:
    with LogWriter(directory, max_count=max_count, sync=False) as writer:
        for idx in indexes:
            writer.append(idx, term, f"{idx}@{term}".encode())


def content(directory: Path) -> list[tuple[int, int]]:
    return [(entry.index, entry.term) for entry in iter_entries(open_log(directory))]


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=examples(150))
@given(runs, st.integers(1, 7))
def test_view_is_the_log_that_was_written(history: list[tuple[int, int, bool]], max_count: int) -> None:
    """Writing an index drops everything above it: whatever the files look like, the view is that log."""
    model: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for term, (first, count, sparse) in enumerate(history, start=1):
            indexes = [first + position * (3 if sparse else 1) for position in range(count)]
            write(directory, indexes, term=term, max_count=max_count)
            for idx in indexes:
                model = {key: value for key, value in model.items() if key < idx}
                model[idx] = term
        log = open_log(directory)
        assert content(directory) == sorted(model.items())
        assert {ref.name for ref in log.refs}.isdisjoint(log.orphans)
        assert len(log.refs) + len(log.orphans) == sum(1 for segment in log.segments if segment.count)
        for older, newer in zip(log.refs, log.refs[1:], strict=False):
            assert older.first <= older.last < newer.first


def test_refs_are_limited_dropped_or_left(tmp_path: Path) -> None:
    write(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    write(tmp_path, [7, 8], term=2)
    log = open_log(tmp_path)
    assert [(ref.first, ref.last) for ref in log.refs] == [(1, 4), (5, 6), (7, 8)]
    assert log.orphans == (segment_name(3),)
    assert log.newest == segment_name(4)
    assert content(tmp_path) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 2), (8, 2)]


def test_links_are_listed_but_not_read(tmp_path: Path) -> None:
    write(tmp_path, [1, 2, 3, 4, 5])
    (tmp_path / segment_name(2)).rename(tmp_path / segment_name(3))
    (tmp_path / segment_name(2)).symlink_to(tmp_path / segment_name(1))
    log = open_log(tmp_path)
    assert log.links == {segment_name(2): segment_name(1)}
    assert [segment.name for segment in log.segments] == [segment_name(1), segment_name(3)]
    assert is_log_directory(tmp_path)


def test_what_is_no_log_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, says in ((tmp_path, "no segment"), (tmp_path / "x", "not exist"), (tmp_path / "file", "not a directory")):
        assert not is_log_directory(path)
        with pytest.raises(NotALogDirectoryError, match=says):
            open_log(path)


@pytest.mark.parametrize("name", ["00000001.segment", "x.segment", "000000000000000A.segment"])
def test_segments_with_other_names_are_not_ignored(tmp_path: Path, name: str) -> None:
    write(tmp_path, [1])
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SegmentNameError, match=name):
        open_log(tmp_path)


def test_a_corrupt_file_is_named_and_scan_shows_the_others(tmp_path: Path) -> None:
    write(tmp_path, list(range(1, 10)))
    bad = tmp_path / segment_name(2)
    bad.write_bytes(b"junk")
    with pytest.raises(InvalidSegmentFormatError, match=bad.name):
        open_log(tmp_path)
    scan = scan_log(tmp_path)
    assert [segment.name for segment in scan.log.segments] == [segment_name(1), segment_name(3)]
    assert len(scan.errors) == 1
    with pytest.raises(KeyError):
        scan.log.segment(bad.name)


def test_snapshot_and_live_come_from_the_directory_unless_given(tmp_path: Path) -> None:
    write(tmp_path, list(range(1, 10)))
    live = LiveSet.parse("1,3")
    assert open_log(tmp_path).snapshot_index is None
    write_snapshot(tmp_path, index=6, term=1, live=live)
    log = open_log(tmp_path)
    assert (log.snapshot_index, log.live) == (6, live)
    log = open_log(tmp_path, snapshot_index=6)
    assert (log.snapshot_index, log.live) == (6, live)
    log = open_log(tmp_path, snapshot_index=4)
    assert (log.snapshot_index, log.live) == (4, None)
    log = open_log(tmp_path, live=LiveSet.empty())
    assert (log.snapshot_index, log.live) == (6, LiveSet.empty())


def test_what_must_survive(tmp_path: Path) -> None:
    write(tmp_path, list(range(1, 10)))
    every = np.arange(1, 10, dtype=np.uint64)
    assert open_log(tmp_path).live_mask(every).all()
    log = open_log(tmp_path, snapshot_index=6, live=LiveSet.parse("2-3"))
    assert every[log.live_mask(every)].tolist() == [2, 3, 7, 8, 9]
    assert [entry.index for entry in iter_entries(log, live_only=True)] == [2, 3, 7, 8, 9]
    with pytest.raises(LiveSetUnknownError, match=str(tmp_path)):
        open_log(tmp_path, snapshot_index=6).live_mask(every)


def test_corrupt_indexes_stop_everything_but_an_explicit_set(tmp_path: Path) -> None:
    write(tmp_path, list(range(1, 10)))
    path = write_snapshot(tmp_path, index=6, term=1, live=LiveSet.parse("1")).path / "indexes"
    path.write_bytes(b"RASI\x01junk")
    with pytest.raises(CorruptIndexesError, match="indexes"):
        open_log(tmp_path)
    assert open_log(tmp_path, live=LiveSet.parse("1")).live == LiveSet.parse("1")


def test_rejected_snapshots_are_reported(tmp_path: Path) -> None:
    write(tmp_path, [1, 2])
    path = write_snapshot(tmp_path, index=1, term=1, live=LiveSet.empty()).path / "snapshot.dat"
    path.write_bytes(b"")
    log = open_log(tmp_path)
    assert log.snapshot_index is None
    assert [error.file for error in log.rejected_snapshots] == [str(path)]


def test_a_commit_between_listing_and_reading_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, list(range(1, 13)))

    def link_then_read(path: Path, *, newest: bool = False) -> SegmentIndex:
        if path.name == segment_name(2) and not path.is_symlink():
            path.unlink()
            path.symlink_to(segment_name(1))
        return read_segment(path, newest=newest)

    monkeypatch.setattr(scan, "read_segment", link_then_read)
    log = open_log(tmp_path)
    assert log.links == {segment_name(2): segment_name(1)}
    assert [segment.name for segment in log.segments] == [segment_name(1), segment_name(3)]

    def always_gone(path: Path, *, newest: bool = False) -> SegmentIndex:
        raise FileNotFoundError(path)

    monkeypatch.setattr(scan, "read_segment", always_gone)
    with pytest.raises(LogChangedError, match="run again"):
        open_log(tmp_path)


def test_a_replaced_segment_is_noticed_by_its_reader(tmp_path: Path) -> None:
    """The reader looks again, and goes on with what is there now."""
    write(tmp_path, [1, 2, 3])
    log = open_log(tmp_path)
    path = tmp_path / segment_name(1)
    shutil.copyfile(path, tmp_path / "copy")
    (tmp_path / "copy").rename(path)
    with pytest.raises(LogChangedError, match=str(tmp_path)):
        SegmentFile(log.segment(path.name))
    assert [entry.index for entry in iter_entries(log)] == [1, 2, 3]
    path.unlink()
    with pytest.raises(LogChangedError):
        SegmentFile(log.segment(path.name))
    with pytest.raises(NotALogDirectoryError):
        list(iter_entries(log))
