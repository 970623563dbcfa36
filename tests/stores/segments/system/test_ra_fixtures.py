"""Logs that Ra wrote are opened, read, continued and snapshotted; all of it decodes as before, and as Ra's own."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.errors import LiveSetUnknownError
from compaction.segments.memtable import LogEntry
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from support.stores.segment_logs import append_random_steps, live_set

pytestmark = pytest.mark.fixtures
WAIT = 120.0
Restore = Callable[[str, list[dict[str, Any]]], Path]
Manifest = Callable[[str], dict[str, Any]]


def read_back(log: Log) -> list[tuple[int, int, int, str]]:
    return [(e.index, e.term, len(e.payload), hashlib.sha256(e.payload).hexdigest()) for e in log.read(log.indexes())]


def of_ra(rows: list[dict[str, Any]], needs: Callable[[int], bool]) -> list[tuple[int, int, int, str]]:
    return [(row["idx"], row["term"], row["size"], row["sha256"]) for row in rows if needs(row["idx"])]


def added(first: int, count: int, term: int) -> list[LogEntry]:
    return [
        LogEntry(index, term, b"\x83m\x00\x00\x00\x04%4d" % (index % 10000)) for index in range(first, first + count)
    ]


@pytest.mark.parametrize(
    ("part", "files"), [("before", "files"), ("after_minor", "minor_files"), ("after", "after_files")]
)
def test_a_log_with_a_snapshot_is_continued(
    manifest: Manifest, restored: Restore, tmp_path: Path, part: str, files: str
) -> None:
    """Before Ra's compaction, after a minor and after a major one: to one and the same content."""
    facts = manifest("03a-major-module")
    directory = restored(f"03a-major-module/{part}", facts[files])
    live = live_set(facts["live_indexes"])
    with LogSystem(tmp_path) as system:
        log = system.open_log(directory.name)
        row = log.state.row
        assert (row.snapshot_index, row.snapshot_term, row.live) == (1714, 4, live)
        expected = of_ra(facts["after_ra_readback"], row.needs)
        assert read_back(log) == expected
        last, term = log.last or (0, 0)
        more = added(last + 1, 300, term + 1)
        log.append(more).result(WAIT)
        log.append(added(last + 51, 10, term + 2)).result(WAIT)
        log.snapshot(last + 5, term + 1, b"\x83j", live.clip(0, 900)).result(WAIT)
        system.roll().result(WAIT)
        assert system.drain(WAIT)
        after = read_back(log)
    kept = [row for row in expected if row[0] in live.clip(0, 900)]
    own = [*more[5:50], *added(last + 51, 10, term + 2)]
    assert after == kept + [(e.index, e.term, len(e.payload), hashlib.sha256(e.payload).hexdigest()) for e in own]
    with LogSystem(tmp_path) as system:
        assert read_back(system.open_log(directory.name)) == after
    # The bytes are those of a log as this library, which reads Ra's, reads any other.
    state = open_log(directory)
    assert state.snapshot_index == last + 5
    assert [index for index, *_ in after] == _readable(state)


def _readable(state: LogState) -> list[int]:
    found = [int(i) for ref in state.refs for i in state.segment(ref.name).idx[state.readable(ref)]]
    assert state.live is not None
    return [i for i in found if i in (state.live or ()) or i > (state.snapshot_index or 0)]


@pytest.mark.parametrize("name", ["02a-overwrite-same-segment", "02b-overwrite-across-segments", "01b-version1"])
def test_overwritten_and_old_segments_are_continued(
    manifest: Manifest, restored: Restore, tmp_path: Path, name: str
) -> None:
    facts = manifest(name)
    directory = restored(f"{name}/dir", facts["files"])
    with LogSystem(tmp_path) as system:
        log = system.open_log(directory.name)
        expected = of_ra(facts["ra_readback"], lambda index: True)
        assert read_back(log) == expected
        last = log.last
        assert last is not None
        log.append(added(last.index + 1, 40, last.term)).result(WAIT)
        system.roll().result(WAIT)
        assert system.drain(WAIT)
        assert read_back(log)[: len(expected)] == expected
        assert log.indexes().last == last.index + 40


def test_a_crashed_compaction_of_ra_is_read_as_it_was(manifest: Manifest, restored: Restore, tmp_path: Path) -> None:
    """Marker and half a copy beside the segments: the entries are those before the compaction."""
    facts = manifest("04-crashed-compaction/d-compacting-complete")
    directory = restored("04-crashed-compaction/d-compacting-complete/crashed", facts.get("crashed_files", []))
    base = restored("04-crashed-compaction/base-two", [])
    with LogSystem(tmp_path) as system:
        log, before = system.open_log(directory.name), system.open_log(base.name)
        wanted = {row[0]: row for row in read_back(before)}
        found = {row[0]: row for row in read_back(log)}
        live = [index for index in facts.get("live_indexes", wanted) if isinstance(index, int)]
        assert live
        assert [found.get(index) for index in live] == [wanted[index] for index in live]


def test_the_random_histories_are_written_by_the_system(manifest: Manifest, tmp_path: Path) -> None:
    """The first rounds of Ra's histories, through the write-ahead log: the entries that Ra's segments held."""
    for case in manifest("06-random-cases")["cases"][:12]:
        direct = tmp_path / f"direct{case['id']}"
        direct.mkdir()
        append_random_steps(direct, case, case["rounds"][0]["steps"])
        with LogSystem(tmp_path / f"system{case['id']}") as system:
            log = system.open_log("log")
            for first, last, term in case["rounds"][0]["steps"]:
                source = tmp_path / f"step{case['id']}"
                log.append(_step(source, case, [first, last, term])).result(WAIT)
            system.roll().result(WAIT)
            assert system.drain(WAIT)
            expected = [(e.index, e.term, e.payload) for e in _entries(direct)]
            assert [tuple(e) for e in log.read(log.indexes())] == expected


def _step(directory: Path, case: dict[str, Any], step: list[int]) -> list[LogEntry]:
    """The entries of one step, by way of a throw-away log."""
    directory.mkdir()
    append_random_steps(directory, case, [step])
    found = [LogEntry(e.index, e.term, e.payload) for e in _entries(directory)]
    shutil.rmtree(directory)
    return found


def _entries(directory: Path) -> list[LogEntry]:
    return [LogEntry(e.index, e.term, e.payload) for e in iter_entries(open_log(directory))]


def test_a_snapshot_without_indexes_is_refused(manifest: Manifest, restored: Restore, tmp_path: Path) -> None:
    facts = manifest("03a-major-module")
    directory = restored("03a-major-module/before", facts["files"])
    for path in directory.rglob("indexes"):
        path.unlink()
    with LogSystem(tmp_path) as system:
        with pytest.raises(LiveSetUnknownError):
            system.open_log(directory.name)
        log = system.open_log(directory.name, rebuild_live=lambda snapshot: LiveSet.parse("1,9,17"))
        assert log.read([1, 9, 17, 25])[-1].index == 17
