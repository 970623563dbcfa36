"""Reading a whole log, at one revision and in pages (docs/design/catalogs.md#recovery-of-the-log)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from compaction.catalogs.errors import CatalogLogCutError, CatalogLogUnavailableError, CorruptCatalogLogError
from compaction.catalogs.log import requests
from compaction.catalogs.log.etcd.port import EtcdClient, Get, KeyValue
from compaction.catalogs.log.layout import Keys, Stored, shown, unpack
from compaction.catalogs.log.port import LogEvent, Recovered
from compaction.catalogs.log.position import Position
from compaction.catalogs.log.surveys import Survey, surveyed
from compaction.catalogs.model.entries import Snapshot

ATTEMPTS: Final = 5
"""etcd keeps five minutes of history where it is compacted every five minutes: one reading has far more than it needs.
"""
FIRST_PAGE: Final = 64
MOST_KEYS: Final = 2_048
PAGE_BYTES: Final = 4 << 20
"""About so much memory does a page take."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A log as it was recovered, and where a watch of it begins."""

    recovered: Recovered
    end: Position


def read_log(client: EtcdClient, keys: Keys) -> Reading:
    """Everything from the snapshot, or from version 1, to exactly the last version.

    Raises CorruptCatalogLogError, which names the key, for a gap, a value that does not decode, versions whose
    activation times do not ascend, and the log of another product.
    """
    for _ in range(ATTEMPTS):
        answer = client.transaction(requests.survey(keys))
        survey = surveyed(keys, answer.found)
        if survey is None:
            return Reading(Recovered((), 0, answer.revision), Position(answer.revision, 0, 1))
        try:
            return _walk(client, keys, survey)
        except CatalogLogCutError:
            # etcd's history was compacted past the revision of this reading: what is there now has another.
            continue
    raise CatalogLogUnavailableError(client.name, f"its history was compacted during each of {ATTEMPTS} readings")


def _walk(client: EtcdClient, keys: Keys, survey: Survey) -> Reading:
    if survey.snapshot > max(survey.version, 1):
        raise CorruptCatalogLogError(shown(keys.snapshot), f"is {survey.snapshot}, the last version {survey.version}")
    expected, active, last = survey.snapshot, 0, None
    events: list[LogEvent] = []
    for stored, revision in stored_from(client, keys, survey.snapshot, survey.revision):
        version = stored.event.version
        name = shown(keys.update(expected))
        if version != expected:
            raise CorruptCatalogLogError(name, f"is missing, and version {version} exists")
        if isinstance(stored.event, Snapshot) and version != survey.snapshot:
            raise CorruptCatalogLogError(name, f"holds a snapshot, and the log's is version {survey.snapshot}")
        if not isinstance(stored.event, Snapshot) and version == survey.snapshot > 1:
            raise CorruptCatalogLogError(name, "holds an update where the log's snapshot should be")
        if stored.activation <= active:
            raise CorruptCatalogLogError(name, "is not active later than the version before it")
        events.append(stored.seen(revision))
        expected, active, last = version + 1, stored.activation, stored
    if expected != survey.version + 1:
        there = f"the last version is {survey.version}"
        raise CorruptCatalogLogError(
            shown(keys.update(min(expected, survey.version + 1))),
            f"{'is missing' if expected <= survey.version else 'exists'}, and {there}",
        )
    if last is not None and active != survey.activation:
        raise CorruptCatalogLogError(
            shown(keys.version), f"says {survey.activation}, and the last version is active at {active}"
        )
    stamp = b"" if last is None else last.stamp
    end = Position(survey.revision, survey.version, survey.snapshot, stamp)
    return Reading(Recovered(tuple(events), survey.version, survey.revision, survey.token), end)


def stored_from(client: EtcdClient, keys: Keys, version: int, revision: int) -> Iterator[tuple[Stored, int]]:
    """Values from a version on, ascending, at one revision of the store; each with the revision that wrote it. Errors
    as `pairs_from` and `unpack`.
    """
    for pair in pairs_from(client, keys, version, revision):
        yield unpack(keys, pair.key, pair.value), pair.revision


def pairs_from(client: EtcdClient, keys: Keys, version: int, revision: int) -> Iterator[KeyValue]:
    """As `stored_from`, the values as they are. Raises CatalogLogCutError when etcd forgets that revision
    meanwhile.
    """
    start, end = keys.update(version), keys.updates[1]
    limit = FIRST_PAGE
    while True:
        page = client.range(Get(start, end, limit), revision)
        yield from page.pairs
        if not page.more or not page.pairs:
            return
        start = page.pairs[-1].key + b"\0"
        held = sum(len(pair.value) for pair in page.pairs) // len(page.pairs) + 1
        limit = max(1, min(MOST_KEYS, 4 * limit, PAGE_BYTES // held))
