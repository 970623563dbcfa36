"""Damaged sources that are set aside, so that their siblings can be compacted; and when that ends.

A segment is quarantined with the identity of the file that the worker read. Once a look at the store finds another
file under the name (replaced, repaired) or none, the quarantine is over and the segment is planned again (DESIGN §4
"Faulty").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from compaction.api.job import SkippedSource
from compaction.api.policy import QuarantinedSource
from compaction.api.policy_status import MAX_QUARANTINED
from compaction.reconcile.observations import Moment, Reading


def by_log(quarantined: Iterable[QuarantinedSource]) -> Mapping[str, frozenset[str]]:
    """Segment names by log directory, as planning wants them."""
    logs: dict[str, set[str]] = {}
    for entry in quarantined:
        logs.setdefault(entry.log, set()).add(entry.segment)
    return {log: frozenset(names) for log, names in logs.items()}


def is_released(value: str, log: str, segment: str) -> bool:
    """True when this value of annotation compaction.dev/release (`<log>/<segment>,...`, `all`) names the segment. A
    block is named by its id alone, too: no other one has it, and a tenant may hold any character.
    """
    named = {part.strip() for part in value.split(",")}
    alone = not segment.endswith(".segment") and segment in named
    return "all" in named or alone or str(PurePosixPath(log) / segment) in named


def unmatched(value: str, known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The parts of a value of annotation compaction.dev/release that name none of the `known` sources (log, name)."""
    sources = tuple(known)
    parts = dict.fromkeys(part.strip() for part in value.split(","))
    return tuple(part for part in parts if not any(is_released(part, log, name) for log, name in sources))


def released(quarantined: Iterable[QuarantinedSource], value: str) -> frozenset[tuple[str, str]]:
    """Which of these sources (lane, name) that value of the annotation names."""
    if not value:
        return frozenset()
    return frozenset((one.log, one.segment) for one in quarantined if is_released(value, one.log, one.segment))


def updated(
    before: Sequence[QuarantinedSource],
    *,
    found: Iterable[tuple[str, SkippedSource]],
    reading: Reading | None,
    now: Moment,
) -> tuple[QuarantinedSource, ...]:
    """The quarantine after newly `found` damage (log, source) and a reading, newest last; at most `MAX_QUARANTINED`."""
    entries = {(entry.log, entry.segment): entry for entry in _still_damaged(before, reading)}
    for log, source in found:
        known = entries.pop((log, source.segment), None)
        entries[log, source.segment] = QuarantinedSource(
            log=log,
            segment=source.segment,
            index=source.index,
            offset=source.offset,
            reason=source.reason,
            message=source.message,
            since=known.since if known is not None else now.time,
            identity=source.identity,
        )
    return tuple(entries.values())[-MAX_QUARANTINED:]


def _still_damaged(before: Sequence[QuarantinedSource], reading: Reading | None) -> Iterable[QuarantinedSource]:
    """What the reading does not lift. An entry for which the worker gave no identity gets the one found by the first
    reading after it.
    """
    for entry in before:
        looked_at = reading is not None and (entry.log, entry.segment) in reading.identities
        if reading is None or not looked_at:
            yield entry
            continue
        identity = reading.identity(entry.log, entry.segment)
        if not entry.identity and identity:
            yield entry.model_copy(update={"identity": identity})
        elif identity and identity == entry.identity:
            yield entry
