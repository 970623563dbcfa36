"""Ra 3.1.10 as the owner of a log: its start, its minor and its major compaction, by its own rules, on real files.

The rules are those of docs/design/segment-files.md#log-view and docs/design/segment-planning.md; what it makes is Ra's
to the byte, which is tested with what Ra made (tests/stores/segments/test_ra_owner.py).

It knows nothing of the compactor: no lock, no fence, no identities. It is the foreign compactor that may act between a
crash of ours and our recovery. Its system calls are made directly, so no test's broken disk sees them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np

from compaction.segments.format import etf
from compaction.segments.format.names import link_name, ra_compacting_name
from compaction.segments.format.segment_file import CURRENT_VERSION, encode_header, encode_records, read_segment
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_SIZE,
    SEGMENT_NAME,
    RowArray,
    SegmentIndex,
    data_start,
)
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.snapshot.live_indexes import LiveSet

# Ra 3.1.10 as the owner of a log: its start, its minor and its major compaction, by its own rules, on real files.
#
# The rules are those of docs/design/segment-files.md#log-view and docs/design/segment-planning.md; what it makes is
# Ra's to the byte, which is tested with what Ra made (tests/segments/test_compaction_fixtures.py).
#
# It knows nothing of the compactor: no lock, no fence, no identities. It is the foreign compactor that may act
# between a crash of ours and our recovery. Its system calls are made directly, so no test's broken disk sees them.


@dataclass(frozen=True, slots=True)
class _Ref:
    """A segment and the range that is read from it, after newer files limited it."""

    segment: SegmentIndex
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.segment.name


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A compactable segment with something live: `rows` of the live records in file order of the index."""

    ref: _Ref
    rows: RowArray
    live_bytes: int

    @property
    def qualifies(self) -> bool:
        segment = self.ref.segment
        few = self.rows.size / segment.count < 0.5
        return few or (segment.data_bytes > 0 and self.live_bytes / segment.data_bytes < 0.5)


@dataclass(slots=True)
class RaOwner:
    """The owner of one directory, stopped between two calls. `max_count`, `max_size`: of a compacted segment.

    Without `snapshot` and `live` the directory's own snapshot says what is live; one without an `indexes` file means
    that nothing is, as in Ra.
    """

    directory: Path
    max_count: int = DEFAULT_MAX_COUNT
    max_size: int = DEFAULT_MAX_SIZE

    def start(self) -> None:
        """Open the log: dangling links go, its own half-done compaction is settled by its marker, then files that newer
        ones hide wholly go.
        """
        self._purge_dangling()
        for marker in sorted(self.directory.glob("*.compaction_group")):
            self._believe(marker)
        refs = self._refs()
        kept = {ref.name for ref in refs}
        for name in self._regular():
            if name not in kept and _read(self.directory / name).count:
                os.unlink(self.directory / name)
        self._purge_dangling()

    def minor(self, *, snapshot: int | None = None, live: LiveSet | None = None) -> None:
        """Delete the segments in whose range nothing is live."""
        index, alive = self._state(snapshot, live)
        for ref in self._compactable(index):
            if not alive.count_in(ref.first, ref.last):
                os.unlink(self.directory / ref.name)
        self._purge_dangling()

    def major(self, *, snapshot: int | None = None, live: LiveSet | None = None) -> None:
        """Delete dead segments and orphans, and rewrite groups of adjacent ones that are less than half live."""
        index, alive = self._state(snapshot, live)
        compactable = self._compactable(index)
        if not compactable:
            return
        if not alive:
            self.minor(snapshot=index, live=alive)
            return
        dead = [ref for ref in compactable if not alive.count_in(ref.first, ref.last)]
        groups = list(self._groups([_candidate(ref, alive) for ref in compactable if ref not in dead]))
        names = {ref.name for ref in compactable}
        for name in self._regular():
            if name <= compactable[-1].name and name not in names:
                os.unlink(self.directory / name)
        for group in groups:
            self._rewrite(group)
        for ref in dead:
            os.unlink(self.directory / ref.name)
        self._purge_dangling()

    def _state(self, snapshot: int | None, live: LiveSet | None) -> tuple[int, LiveSet]:
        if snapshot is not None:
            return snapshot, LiveSet.empty() if live is None else live
        newest = find_snapshots(self.directory).newest
        if newest is None:
            return -1, LiveSet.empty()
        return newest.index, LiveSet.empty() if newest.live is None else newest.live

    def _regular(self) -> list[str]:
        with os.scandir(self.directory) as entries:
            return sorted(e.name for e in entries if SEGMENT_NAME.fullmatch(e.name) and not e.is_symlink())

    def _refs(self) -> list[_Ref]:
        """Oldest to newest; a newer file hides older ones from its first index on."""
        refs: list[_Ref] = []
        for name in self._regular():
            segment = _read(self.directory / name)
            if not segment.count:
                continue
            first = min(int(segment.idx.min()), segment.last)
            while refs and refs[-1].first >= first:
                refs.pop()
            if refs and refs[-1].last >= first:
                refs[-1] = _Ref(refs[-1].segment, refs[-1].first, first - 1)
            refs.append(_Ref(segment, first, segment.last))
        return refs

    def _compactable(self, snapshot: int) -> list[_Ref]:
        return [ref for ref in self._refs()[:-1] if ref.last <= snapshot]

    def _groups(self, candidates: list[_Candidate]) -> Iterator[list[_Candidate]]:
        group: list[_Candidate] = []
        count, size = self.max_count, self.max_size
        for candidate in candidates:
            if candidate.qualifies:
                fits = candidate.rows.size <= count and candidate.live_bytes <= size
                if not fits and group:
                    yield group
                    group, count, size = [], self.max_count, self.max_size
                    fits = candidate.rows.size <= count and candidate.live_bytes <= size
                if fits:
                    group.append(candidate)
                    count, size = count - int(candidate.rows.size), size - candidate.live_bytes
            elif group:
                yield group
                group, count, size = [], self.max_count, self.max_size
        if group:
            yield group

    def _rewrite(self, group: list[_Candidate]) -> None:
        leader, *members = (item.ref.name for item in group)
        compacting = self.directory / ra_compacting_name(leader)
        compacting.write_bytes(_segment_of(group))
        os.rename(compacting, self.directory / leader)
        for name in members:
            temporary = self.directory / link_name(name)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to((self.directory / leader).absolute())
            os.rename(temporary, self.directory / name)

    def _believe(self, marker: Path) -> None:
        """No copy beside the marker of several members: so they were committed, and become links (window W1)."""
        leader, *members = (os.fsdecode(name) for name in cast(list[bytes], etf.decode(marker.read_bytes())))
        compacting = self.directory / ra_compacting_name(leader)
        if compacting.exists():
            compacting.unlink()
        else:
            for name in members:
                (self.directory / name).unlink(missing_ok=True)
                (self.directory / name).symlink_to((self.directory / leader).absolute())
        marker.unlink()

    def _purge_dangling(self) -> None:
        for path in sorted(self.directory.glob("*.segment")):
            if path.is_symlink() and not path.exists():
                path.unlink()


def _read(path: Path) -> SegmentIndex:
    return read_segment(path, newest=True)


def _candidate(ref: _Ref, alive: LiveSet) -> _Candidate:
    segment = ref.segment
    mine = alive.clip(ref.first, ref.last)
    rows = np.flatnonzero(segment.effective & mine.mask(segment.idx))
    return _Candidate(ref, rows, int(segment.length[mine.mask(segment.idx)].sum()))


def _segment_of(group: list[_Candidate]) -> bytes:
    """Version 2, exactly full; each record's term, length and stored checksum as they were."""
    parts = [(item.ref.segment, item.rows) for item in group]
    length = np.concatenate([segment.length[rows] for segment, rows in parts])
    offset = np.full(length.size, data_start(CURRENT_VERSION, length.size), dtype=np.uint64)
    offset[1:] += np.cumsum(length[:-1], dtype=np.uint64)
    records = encode_records(
        idx=np.concatenate([segment.idx[rows] for segment, rows in parts]),
        term=np.concatenate([segment.term[rows] for segment, rows in parts]),
        offset=offset,
        length=length,
        crc=np.concatenate([segment.crc[rows] for segment, rows in parts]),
    )
    payloads = []
    for segment, rows in parts:
        data = segment.path.read_bytes()
        payloads += [data[int(segment.offset[r]) : int(segment.offset[r]) + int(segment.length[r])] for r in rows]
    return b"".join([encode_header(max_count=int(length.size)), records, *payloads])


# The files by which a Ra server shows whether it runs: `meta.dets` and a write-ahead log in its data directory.

META: Final = "meta.dets"
WAL: Final = "0000000000000001.wal"


def dets_header(closed: int) -> bytes:
    """As DETS begins a file: free lists, cookie, closed, type `set`, version 9; zeros in place of the table."""
    words = (5453, 0x00ABCDEF, closed, 1, 9)
    return b"".join(word.to_bytes(4, "big") for word in words) + bytes(5000)


def stopped(data: Path, *, wal: bool = True) -> Path:
    """The server was stopped cleanly. Returns `meta.dets`."""
    data.mkdir(parents=True, exist_ok=True)
    (data / META).write_bytes(dets_header(1))
    if wal:
        (data / WAL).write_bytes(b"RAWA\x01")
    return data / META


def killed(data: Path) -> Path:
    """The server was killed, or runs on a machine that cannot be seen. Returns `meta.dets`."""
    meta = stopped(data)
    meta.write_bytes(dets_header(0))
    return meta


@contextmanager
def running(data: Path, *, idle: bool = False) -> Iterator[Path]:
    """The server runs; an idle one, which has saved its table since, leaves the mark of a clean stop."""
    meta = stopped(data) if idle else killed(data)
    with meta.open("r+b"):
        yield meta
