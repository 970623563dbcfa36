"""The version to cut a history to (docs/design/catalog-compaction.md#version)."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import START, History, recovered
from compaction.catalogs.model.catalog import Catalog


def history_of(events: Iterable[LogEvent]) -> History:
    """The versions that a recovered log leads to, without version 0, which it does not hold; START for an empty log.

    Raises InapplicableEntryError when events contradict themselves.
    """
    versions = [one for one in recovered(events) if one.version]
    return History(versions) if versions else START


def is_shortest(history: History) -> bool:
    """Whether no time at all allows another cut: the last version and the one before it always stay."""
    return history.latest.version - 1 <= history.earliest.version


def snapshot_candidate(history: History, required: int) -> Catalog | None:
    """The version to make the snapshot when the catalog is needed from `required` on: the one before the version active
    then. None when that is not later than the earliest: nothing would be cut.
    """
    active = history.find_active(required)
    candidate = None if active is None else history.find(active.version - 1)
    return candidate if candidate is not None and candidate.version > history.earliest.version else None
