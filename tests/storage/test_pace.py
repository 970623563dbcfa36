"""The limit on bytes per second: never exceeded at any moment, nothing saved up, and still stopped at once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.directory import fs
from compaction.segments.generate import generate_log
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading import reader
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting.kernel import rewrite_group
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import STEP_SECONDS, UNLIMITED, Pace, TokenBucket, counting_bytes


class Clock:
    """Time passes only in sleeps, and where a test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.naps.append(seconds)
        self.now += seconds


@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 1000)), min_size=1, max_size=40),
)
def test_in_no_span_of_time_passes_more_than_the_rate_and_one_request(
    rate: int, requests: list[tuple[int, float]]
) -> None:
    """Requests after pauses of any length; each passes as soon as the bucket says."""
    bucket, now = TokenBucket(rate, 0.0), 0.0
    passed: list[tuple[float, int]] = []
    for count, pause in requests:
        now += pause
        bucket, wait = bucket.take(count, now=now)
        assert wait >= 0
        now += wait
        passed.append((now, count))
    total = list(accumulate(count for _, count in passed))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            moved = total[last] - total[first]
            assert moved <= rate * (passed[last][0] - passed[first][0]) * (1 + 1e-9) + 1e-3 * rate
    assert total[-1] <= rate * now * (1 + 1e-9) + 1e-3 * rate


def test_who_asks_without_pause_gets_the_whole_rate() -> None:
    bucket, now = TokenBucket(1000, 5.0), 5.0
    for _ in range(100):
        bucket, wait = bucket.take(250, now=now)
        now += wait
    assert now == pytest.approx(5.0 + 25.0)


def test_a_wait_is_made_of_short_naps_and_ends_when_asked_to_stop() -> None:
    clock = Clock()
    stop_at = clock.now + 1.0
    pace = Pace(should_stop=lambda: clock.now >= stop_at, bytes_per_second=10, clock=clock, sleep=clock.sleep)
    with pytest.raises(RewriteStoppedError):
        pace(10_000)
    assert clock.now < stop_at + 2 * STEP_SECONDS
    assert max(clock.naps) <= STEP_SECONDS


def test_without_a_limit_nobody_waits_but_everybody_stops() -> None:
    clock = Clock()
    Pace(clock=clock, sleep=clock.sleep)(10**12)
    assert clock.naps == []
    with pytest.raises(RewriteStoppedError):
        Pace(should_stop=lambda: True)(1)


def test_threads_that_share_a_pace_share_its_rate() -> None:
    """Of two that ask at once, one waits for the bytes of both."""
    clock, both = Clock(), threading.Barrier(2)

    class Meeting(int):
        """A count whose price is computed by both threads at once, unless only one of them can."""

        def __truediv__(self, other: float) -> float:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            return int(self) / other

    pace, began = Pace(bytes_per_second=1000, clock=clock, sleep=clock.sleep), clock.now
    threads = [threading.Thread(target=pace, args=(Meeting(1000),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now >= began + 2.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return generate_log(
        tmp_path / "log", segments=5, entries_per_segment=256, payload_bytes=1000, live_fraction=0.25, sync=False
    ).directory


def rewrite(log: Path, pace: Pace) -> int:
    """Rewrite the log's one group; the bytes that are read and written for it, at least."""
    state, limits = open_log(log), SegmentLimits()
    assert state.live is not None
    (group,) = plan_log(state, limits).groups
    done = rewrite_group(
        log,
        sources=group.sources,
        live=state.live,
        limits=limits,
        job="job",
        token=1,
        pace=pace,
    )
    index_areas = sum(state.segment(name).data_start for name in group.sources)
    return index_areas + done.live_bytes + 2 * done.bytes_after


def test_a_rewrite_stays_below_its_limit_from_beginning_to_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read and write of payloads is measured where it happens, against virtual time."""
    monkeypatch.setattr(reader, "CHUNK_BYTES", 20_000)
    clock, rate = Clock(), 50_000
    began, moved = clock.now, 0
    preadv, write = os.preadv, fs.write

    def count(size: int) -> None:
        nonlocal moved
        moved += size
        assert moved <= rate * (clock.now - began) * (1 + 1e-9)

    def counted_read(fd: int, buffers: list[memoryview], offset: int) -> int:
        got = preadv(fd, buffers, offset)
        count(got)
        return got

    def counted_write(fd: int, buffers: list[bytes]) -> None:
        count(sum(map(len, buffers)))
        write(fd, buffers)

    monkeypatch.setattr(os, "preadv", counted_read)
    monkeypatch.setattr(fs, "write", counted_write)
    least = rewrite(log, Pace(bytes_per_second=rate, clock=clock, sleep=clock.sleep))
    assert moved > 500_000
    assert clock.now - began >= least / rate


def test_what_is_asked_for_is_what_is_moved(log: Path) -> None:
    """Reads with the gaps between live entries, writes, and the reading back, index areas included."""
    asked: list[int] = []
    least = rewrite(log, Pace(moved=asked.append))
    gaps = sum(asked) - least
    assert 0 <= gaps <= 4 * 256 * 1000


def test_a_piece_of_work_counts_what_its_paces_read_and_write_in_whichever_thread(log: Path) -> None:
    with counting_bytes() as counted:
        pace = Pace()
        rewriting = threading.Thread(target=lambda: rewrite(log, pace))
        rewriting.start()
        rewriting.join()
        UNLIMITED(1000)
    Pace()(1000)
    written = sum(path.stat().st_size for path in log.iterdir() if path.name.endswith(".partial"))
    assert counted.written == written > 0
    assert 2 * written <= counted.read < 2 * written + 4 * 256 * 1000, "sources, and the output read back"
