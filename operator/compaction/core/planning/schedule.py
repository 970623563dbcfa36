"""When plans are made and jobs may be started: cron times and windows. Pure: the wall clock is passed in.

All times are epoch seconds; cron times are whole minutes. What happens when clocks change is cronsim's rule, which is
Debian cron's: a fixed time in a gap comes right after it, one that occurs twice comes once, and an expression whose
minute or hour begins with `*` follows elapsed time.

Invariants (tests/planning/test_schedule.py): `next_time` is later than its argument, so no loop over times sticks; a
window is open at a moment exactly when one of its times lies within its duration before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

_MINUTE = 60
_OPENINGS_TRIED = 1000
HORIZON_SECONDS = 366 * 86_400.0
"""With windows, an end further away than a year is not computed: those that open every few years would be looked for
decade after decade, in the middle of a decision.
"""


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window: cron expression of its openings, and for how many seconds it stays open."""

    schedule: str
    duration: float


@dataclass(frozen=True, slots=True)
class WindowState:
    """Whether jobs may be started, and when that changes (epoch seconds; None: never).

    `closes_at` is when the windows open now close; another may have opened by then. `opens_at` is None while open.
    """

    is_open: bool
    opens_at: float | None = None
    closes_at: float | None = None


def next_time(expression: str, zone: str, after: float) -> float | None:
    """The first time of a cron expression later than `after`; None when there is none within 50 years."""
    return _next(expression, zone, int(after // _MINUTE))


@lru_cache(maxsize=1024)
def _next(expression: str, zone: str, minute: int) -> float | None:
    after = minute * _MINUTE
    tz = UTC if zone in ("Etc/UTC", "UTC") else ZoneInfo(zone)
    for moment in CronSim(expression, datetime.fromtimestamp(after, tz=tz)):
        # In the second pass of an hour that occurs twice cronsim answers with the first one, which is over.
        if (found := moment.timestamp()) > after:
            return found
    return None


def times(expression: str, zone: str, *, after: float, until: float) -> Iterator[float]:
    """The times of a cron expression in (after, until], in order."""
    found = next_time(expression, zone, after)
    while found is not None and found <= until:
        yield found
        found = next_time(expression, zone, found)


def latest_time(expression: str, zone: str, *, after: float, until: float) -> float | None:
    """The newest time in (after, until], or None. Looks back in growing steps: times long past cost nothing."""
    back = float(_MINUTE)
    while True:
        start = max(after, until - back)
        newest: float | None = None
        for found in times(expression, zone, after=start, until=until):
            newest = found
        if newest is not None or start <= after:
            return newest
        back *= 2


def window_state(windows: Sequence[OpenWindow], zone: str, *, now: float) -> WindowState:
    """Whether any of the windows is open; without windows always."""
    if not windows:
        return WindowState(is_open=True)
    closes = [at for window in windows if (at := _closes_at(window, zone, now)) is not None]
    if closes:
        return WindowState(is_open=True, closes_at=max(closes))
    opens = [at for window in windows if (at := next_time(window.schedule, zone, now)) is not None]
    return WindowState(is_open=False, opens_at=min(opens, default=None))


def _closes_at(window: OpenWindow, zone: str, now: float) -> float | None:
    """When the window that is open now closes; None when it is closed. At its very end it is closed."""
    opened = latest_time(window.schedule, zone, after=now - window.duration, until=now)
    return opened + window.duration if opened is not None else None


def finished_by(windows: Sequence[OpenWindow], zone: str, *, now: float, work: float) -> float | None:
    """When `work` seconds of work are done that goes on only while a window is open; None when it cannot be computed,
    or, with windows, only of a time after HORIZON_SECONDS.

    Work that has begun when a window closes is counted as done in the next one, which errs on the late side.
    """
    moment = now
    for _ in range(_OPENINGS_TRIED):
        if windows and moment + work > now + HORIZON_SECONDS:
            return None
        state = window_state(windows, zone, now=moment)
        if not state.is_open:
            if state.opens_at is None:
                return None
            moment = state.opens_at
            continue
        if state.closes_at is None or moment + work <= state.closes_at:
            return moment + work
        work -= state.closes_at - moment
        moment = state.closes_at
    return None
