"""Damaged sources that are quarantined, so that their siblings can be compacted; and when that ends.

A source is quarantined with the identity of what the worker read. Once a scan of the store finds another one under the
name (replaced, repaired) or none, the quarantine is over and the source is planned again
(docs/design/scheduling.md#faulty-jobs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from compaction.api.job.resource import SkippedSource
from compaction.api.policy.resource import QuarantinedSource
from compaction.api.policy.status import MAX_QUARANTINED
from compaction.core.reconcile.observations import Moment, ScanResult


def by_target(quarantined: Iterable[QuarantinedSource]) -> Mapping[str, frozenset[str]]:
    """Names of sources by target, as planning wants them."""
    targets: dict[str, set[str]] = {}
    for entry in quarantined:
        targets.setdefault(entry.target, set()).add(entry.source)
    return {target: frozenset(names) for target, names in targets.items()}


@dataclass(frozen=True, slots=True)
class Release:
    """A value of annotation compaction.dev/release: `<target>/<source>,...`, or `all`. `alone`: a source may be named
    by itself, as no other one has its name (`Kind.immutable_sources`): a target may hold any character.
    """

    value: str
    alone: bool

    def names(self, target: str, source: str) -> bool:
        """Whether it names the source."""
        named = {part.strip() for part in self.value.split(",")}
        return "all" in named or (self.alone and source in named) or str(PurePosixPath(target) / source) in named

    def unmatched(self, known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """The parts of the value that name none of the `known` sources (target, name)."""
        sources = tuple(known)
        parts = dict.fromkeys(part.strip() for part in self.value.split(","))
        single = (Release(part, self.alone) for part in parts)
        return tuple(part.value for part in single if not any(part.names(target, name) for target, name in sources))

    def of(self, quarantined: Iterable[QuarantinedSource]) -> frozenset[tuple[str, str]]:
        """Which of these sources (target, name) it names."""
        if not self.value:
            return frozenset()
        return frozenset((one.target, one.source) for one in quarantined if self.names(one.target, one.source))


NO_RELEASE: Final = Release("", alone=False)


def updated(
    before: Sequence[QuarantinedSource],
    *,
    found: Iterable[tuple[str, SkippedSource]],
    reading: ScanResult | None,
    now: Moment,
) -> tuple[QuarantinedSource, ...]:
    """The quarantine after newly `found` damage (target, source) and a scan, newest last; at most `MAX_QUARANTINED`."""
    entries = {(entry.target, entry.source): entry for entry in _still_damaged(before, reading)}
    for target, source in found:
        known = entries.pop((target, source.source), None)
        entries[target, source.source] = QuarantinedSource(
            target=target,
            source=source.source,
            index=source.index,
            offset=source.offset,
            reason=source.reason,
            message=source.message,
            since=known.since if known is not None else now.time,
            identity=source.identity,
        )
    return tuple(entries.values())[-MAX_QUARANTINED:]


def repaired(before: Iterable[QuarantinedSource], reading: ScanResult | None) -> frozenset[tuple[str, str]]:
    """The sources (target, name) whose quarantine a reading ends because they are others than those found damaged; not
    those that are gone.
    """
    if reading is None:
        return frozenset()
    entries = [(entry, reading.identity(entry.target, entry.source)) for entry in before]
    changed = [entry for entry, identity in entries if identity and entry.identity not in ("", identity)]
    return frozenset((entry.target, entry.source) for entry in changed)


def _still_damaged(before: Sequence[QuarantinedSource], reading: ScanResult | None) -> Iterable[QuarantinedSource]:
    """What the reading does not lift. An entry for which the worker gave no identity gets the one found by the first
    reading after it.
    """
    for entry in before:
        looked_at = reading is not None and (entry.target, entry.source) in reading.identities
        if reading is None or not looked_at:
            yield entry
            continue
        identity = reading.identity(entry.target, entry.source)
        if not entry.identity and identity:
            yield entry.model_copy(update={"identity": identity})
        elif identity and identity == entry.identity:
            yield entry
