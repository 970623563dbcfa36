"""Jobs that were given up although their work is not done: for a while others go first.

Remembered in status, too: were it forgotten with each restart, a queue smaller than the number of failing jobs would
try the same few again and again, and the others never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from compaction.api.policy.status import CompactionPolicyStatus, EvictedJob
from compaction.api.text.times import timestamp_from_epoch
from compaction.core.reconcile.memory import PlanMemory, frozen
from compaction.core.reconcile.observations import Moment

EVICTED_FOR: Final = 600.0
"""Seconds before what was evicted, or forgotten while Faulty, is planned again."""


def known(memory: PlanMemory, status: CompactionPolicyStatus, now: Moment) -> PlanMemory:
    """The memory with the evictions that still hold. None for longer than EVICTED_FOR, whatever clock wrote it."""
    found = memory.evicted
    if found is None:
        found = {one.job: one.until.timestamp() for one in status.evicted}
    latest = now.wall + EVICTED_FOR
    return replace(
        memory, evicted=frozen({name: min(until, latest) for name, until in found.items() if until > now.wall})
    )


def added(memory: PlanMemory, names: Iterable[str], now: Moment) -> PlanMemory:
    """The memory of jobs that are given up now."""
    new = dict.fromkeys(names, now.wall + EVICTED_FOR)
    return replace(memory, evicted=frozen({**(memory.evicted or {}), **new})) if new else memory


def rows(memory: PlanMemory) -> tuple[EvictedJob, ...]:
    """The evictions for the status, the newest last."""
    ordered = sorted((memory.evicted or {}).items(), key=lambda item: (item[1], item[0]))
    return tuple(EvictedJob(job=name, until=timestamp_from_epoch(until)) for name, until in ordered)
