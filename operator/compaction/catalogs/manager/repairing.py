"""Repair of a log that holds a value which no process reads (docs/design/catalogs.md#repair).

A version that does not decode stops every process of the catalog. Its number cannot be left out: versions follow each
other. So its value is replaced by one that changes nothing, and its bytes are kept elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from compaction.catalogs.errors import CatalogRepairError, CorruptCatalogLogError, InapplicableEntryError
from compaction.catalogs.log import layout
from compaction.catalogs.log.etcd.wire import EtcdClient, Get
from compaction.catalogs.log.layout import (
    FIRST_VERSION,
    STAMP_BYTES,
    Keys,
    LogSurvey,
    Stored,
    head_of,
    pack,
    shown,
    surveyed,
    unpack,
)
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.log.watching import pairs_from
from compaction.catalogs.manager.history import recovered
from compaction.catalogs.model.entries import VersionedUpdate

WRITER = "catalogs repair"


@dataclass(frozen=True, slots=True)
class UnreadableVersion:
    """A value that does not decode, and why. `activation`: the time that stands before it, None when that is gone."""

    version: int
    key: str
    reason: str
    activation: int | None
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Repair:
    """Values that are to be replaced, each with the value that takes its place."""

    steps: tuple[tuple[UnreadableVersion, bytes], ...]


class LogRepair:
    """Of one log. Every call raises CatalogLogError when etcd does not answer, CorruptCatalogLogError for a log whose
    numbers or keys are damaged: that is not repaired here.
    """

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._keys = Keys(prefix.rstrip("/"))

    def unreadable(self) -> tuple[UnreadableVersion, ...]:
        """Versions whose values do not decode, ascending."""
        return tuple(value for value in self._values(self._survey()) if isinstance(value, UnreadableVersion))

    def plan(self, versions: Collection[int]) -> Repair:
        """Return the repair that replaces these versions. Raises CatalogRepairError when one of them can be read,
        another one cannot, the snapshot is one of them, or a later version needs what one of them held; nothing has
        been written.
        """
        survey = self._survey()
        values = list(self._values(survey))
        broken = {value.version: value for value in values if isinstance(value, UnreadableVersion)}
        for version in sorted(versions):
            if version not in broken:
                raise CatalogRepairError(version, "it can be read, or the log does not hold it; it stays as it is")
        for version, item in broken.items():
            if version not in versions:
                raise CatalogRepairError(version, f"it cannot be read either ({item.reason}); name it as well")
            if version == survey.snapshot > FIRST_VERSION:
                reason = "it is the snapshot that all others follow; restore the log from a backup of etcd"
                raise CatalogRepairError(version, reason)
        steps: list[tuple[UnreadableVersion, bytes]] = []
        events: list[LogEvent] = []
        active = 0
        for position, found in enumerate(values):
            if isinstance(found, UnreadableVersion):
                later = next((value.activation for value in values[position + 1 :] if isinstance(value, Stored)), None)
                stored = self._replacement(found, active, later, survey)
                steps.append((found, pack(self._keys, stored)))
            else:
                stored = found
            active = stored.activation
            events.append(stored.seen(survey.revision))
        try:
            recovered(events)
        except InapplicableEntryError as error:
            reason = f"a later version needs what it held ({error}); restore the log from a backup of etcd"
            raise CatalogRepairError(min(versions), reason) from error
        return Repair(tuple(steps))

    def replace(self, repair: Repair) -> None:
        """Write the replacements. Raises CatalogRepairError for a value that has changed since the plan."""
        for item, value in repair.steps:
            what = layout.step_over_transaction(self._keys, item.version, item.value, value)
            done = self._client.transaction(what)
            if not done.succeeded and not (done.repeated and self._holds(item.version, value)):
                raise CatalogRepairError(item.version, "its value has changed since; list the versions again")

    def _survey(self) -> LogSurvey:
        found = surveyed(self._keys, self._client.transaction(layout.survey(self._keys)).found)
        if found is None:
            raise CorruptCatalogLogError(shown(self._keys.product), "does not exist: the prefix holds no log")
        return found

    def _values(self, survey: LogSurvey) -> Iterator[Stored | UnreadableVersion]:
        """Every version from the snapshot to the last. A gap is not stepped over: nothing says what was there."""
        expected = survey.snapshot
        for pair in pairs_from(self._client, self._keys, survey.snapshot, survey.revision):
            version, name = self._keys.version_of(pair.key), shown(pair.key)
            if version != expected:
                raise CorruptCatalogLogError(shown(self._keys.update(expected)), "is missing")
            expected += 1
            try:
                yield unpack(self._keys, pair.key, pair.value)
            except CorruptCatalogLogError as error:
                yield UnreadableVersion(version, name, error.reason, head_of(pair.value), pair.value)
        if expected != survey.version + 1:
            missing = shown(self._keys.update(expected))
            raise CorruptCatalogLogError(missing, f"is missing; the last is {survey.version}")

    def _replacement(self, version: UnreadableVersion, before: int, later: int | None, survey: LogSurvey) -> Stored:
        """An update of nothing at the time of the value that it replaces: versions keep their times. A time that may be
        damaged itself, since it is not between those of its neighbours, is not kept.
        """
        active = survey.activation if version.version == survey.version else version.activation
        if active is None or active <= before or (later is not None and active >= later):
            active = before + 1
        return Stored(VersionedUpdate(version.version, 0, ()), active, secrets.token_bytes(STAMP_BYTES), WRITER)

    def _holds(self, version: int, value: bytes) -> bool:
        page = self._client.range(Get(self._keys.update(version)))
        return bool(page.pairs) and page.pairs[0].value == value
