"""Targets that are more than one parser: a whole log with a hostile segment in it, schedules and their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from compaction.api.policy.policy_spec import Cron, TimeZone
from compaction.api.text.quantities import Duration
from compaction.core.reconcile.timing import OpenWindow, finished_by, next_time, window_state
from compaction.errors import CompactionError
from compaction.segments.errors import DamagedWalError, InvalidWalFormatError
from compaction.segments.model import segment_name
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import scan_log
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.wal.codec import HEADER, RecordEncoder, Standing, WalRecord, WriterState
from compaction.segments.wal.files import decode_writers, encode_writers
from compaction.segments.wal.wal_reader import WalReader
from fuzz.segment_targets import SEGMENTS, segment_bytes
from fuzz.target import Target, check_error, refusing
from support.segments.segment_logs import compact_all

_LIVE: Final = LiveSet.parse("1-3,7,20,30")
_SNAPSHOT: Final = 45
_NOW: Final = 1_795_000_000.0


def _log(data: bytes, directory: Path) -> None:
    """A log whose second segment is hostile: named, and left alone; or compacted, and then every live entry that could
    be read before can be read as before. Its sibling is seen either way.
    """
    log, sibling = directory / "log", directory / "sibling"
    for place, second in ((log, data), (sibling, segment_bytes([10, 20], payload=9))):
        place.mkdir()
        (place / segment_name(1)).write_bytes(segment_bytes([1, 2, 3, 4, 5, 6, 7, 8], max_count=8))
        (place / segment_name(2)).write_bytes(second)
        (place / segment_name(3)).write_bytes(segment_bytes([30, 31, 32, 33, 40], max_count=8))
        (place / segment_name(4)).write_bytes(segment_bytes([50, 51]))
        write_snapshot(place, index=_SNAPSHOT, term=1, live=_LIVE, sync=False)
    before = readable(log)
    store = SegmentLogStore(directory)
    seen = store.sense()
    assert {found.path for found in seen.logs} | {error.path for error in seen.errors} == {log, sibling}
    assert sibling in {found.path for found in seen.logs}
    for error in seen.errors:
        # What the hostile segment should have held is missing; of which segment, a log without it cannot say.
        missing = error.reason is LogErrorReason.LIVE_ENTRIES_MISSING and error.path == log
        assert missing or segment_name(2) in error.message or error.segment == segment_name(2)
    try:
        compact_all(store, log)
    except CompactionError as error:
        check_error(error, names=str(log))
    assert readable(log) == before
    store.recover(log)
    assert readable(log) == before


def readable(log: Path) -> dict[int, tuple[int, bytes]]:
    """Index -> (term, payload) of every live entry that is not damaged."""
    state = scan_log(log).log
    damaged: list[Any] = []
    return {e.index: (e.term, e.payload) for e in iter_entries(state, live_only=True, on_corrupt=damaged.append)}


def _schedule(data: bytes, _: Path) -> None:
    """A cron expression, a time zone, a duration: refused, or their times are found, in order and in a few steps."""
    cron, zone, duration, *_rest = [*data.decode(errors="replace").split("\n"), "", ""]
    try:
        expression = TypeAdapter[str](Cron).validate_python(cron)
        name = TypeAdapter[str](TimeZone).validate_python(zone)
        seconds = min(max(60.0, float(Duration(duration))), 744 * 3600.0)
    except ValueError as error:
        check_error(error, names="")
        return
    after: float | None = _NOW
    for _step in range(3):
        if after is not None:
            before, after = after, next_time(expression, name, after)
            assert after is None or after > before
    window = [OpenWindow(expression, seconds)]
    state = window_state(window, name, now=_NOW)
    assert not state.is_open or state.opens_at is None
    end = finished_by(window, name, now=_NOW, work=1e9)
    assert end is None or end >= _NOW + 1e9


_CRONS: Final = (
    b"30 2 * * MON-FRI\nEurope/Berlin\n4h",
    b"*/5 0-6,22-23 1,15 JAN-MAR 0\nEtc/UTC\n1h30m",
    b"0 0 29 2 *\nAmerica/New_York\n744h",
    b"0 0 */29 2 MON\nEtc/UTC\n1m",
)
_CRON_TOKENS: Final = (
    b"*/",
    b"-",
    b",",
    b"SUN",
    b"FEB",
    b"31",
    b"L",
    b"#",
    b"?",
    b"Local",
    b"../etc",
    b"posix/UTC",
    b"*",
)

LOG_TARGETS: Final = (
    Target("log", _log, SEGMENTS),
    Target("schedule", _schedule, _CRONS, _CRON_TOKENS),
)


# Targets of the writing side: files of the write-ahead log, and the snapshot of its writers.

FILE: Final = "/system/0000000000000001.wal"
_WRITERS: Final = {b"a": WriterState(7), b"log-2": WriterState(2**63, Standing.OUT_OF_SEQUENCE)}


def wal_bytes(*records: tuple[bytes, int, bytes]) -> bytes:
    """A file with these records: writer, index, payload."""
    encoder = RecordEncoder()
    parts = [HEADER]
    for writer, index, payload in records:
        parts += [encoder.head(writer, index, 1, payload, truncate=index % 3 == 0), payload]
    return b"".join(parts)


def _wal(data: bytes, _: Path) -> None:
    """Every record that is read stands in the file, one behind the other; the rest is zeros, a torn end, or damage."""
    with refusing(FILE, InvalidWalFormatError, DamagedWalError):
        reader = WalReader(data, file=FILE)
        records: list[WalRecord] = list(reader)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(data[: record.offset] and record.payload in data[record.offset :] for record in records)
        assert reader.tail is None or not offsets or reader.tail.offset > offsets[-1]
        again = WalReader(data, file=FILE)
        assert sum(len(run.entries) for run in again.runs()) == len(records)
        assert again.tail == reader.tail


def _writers(data: bytes, _: Path) -> None:
    with refusing("/system/writers.snapshot", InvalidWalFormatError):
        writers = decode_writers(data, file="/system/writers.snapshot")
        assert decode_writers(encode_writers(writers), file="/system/writers.snapshot") == writers


WAL_TARGETS: Final = (
    Target(
        "wal",
        _wal,
        (
            wal_bytes((b"a", 1, b"x"), (b"a", 2, b"y" * 40), (b"log-2", 3, b"z"), (b"a", 3, b"x")),
            wal_bytes((b"a", 2**64 - 1, b"x" * 200)) + bytes(64),
            HEADER,
        ),
        (b"\x00\x00\x00\x00\x01a", b"\x40\x00\x00", b"\xc0\x00\x00", b"\xff\xff\xff\xff", bytes(32)),
    ),
    Target(
        "wal-writers", _writers, (encode_writers(_WRITERS), encode_writers({})), (b"m\x00\x00\x00\x01", b"w\x06in_seq")
    ),
)
