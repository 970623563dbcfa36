"""Targets that are more than one parser: a whole log with a hostile segment in it, schedules and their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from compaction.api.policy.cron import Cron
from compaction.api.policy.policy_spec import TimeZone
from compaction.api.text.quantities import Duration
from compaction.core.reconcile.timing import OpenWindow, finished_by, next_time, window_state
from compaction.errors import CompactionError
from compaction.segments.model import segment_name
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import scan_log
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from fuzz.segment_targets import SEGMENTS, segment_bytes
from fuzz.target import Target, check_error
from support.stores.segment_logs import compact_all

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
