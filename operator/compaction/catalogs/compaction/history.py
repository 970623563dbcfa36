"""The versions that a log still has, and the one to cut to (docs/design/catalog-compaction.md#version)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import recovered
from compaction.catalogs.model.catalog import Catalog

_ACTIVATION = attrgetter("activation_time")


@dataclass(frozen=True, slots=True)
class History:
    """Versions in ascending order without a gap; activation times ascend with them. Empty for an empty log."""

    versions: tuple[Catalog, ...]

    @property
    def earliest(self) -> int:
        """Number of the first retained version, 0 when there is none."""
        return self.versions[0].version if self.versions else 0

    @property
    def latest(self) -> int:
        """Number of the last version, active or not; 0 when there is none."""
        return self.versions[-1].version if self.versions else 0

    @property
    def shortest(self) -> bool:
        """Whether no time at all allows another cut: the last version and the one before it always stay."""
        return self.latest - 1 <= self.earliest

    def get(self, version: int) -> Catalog | None:
        """The retained version of this number."""
        if not self.versions or not self.earliest <= version <= self.latest:
            return None
        return self.versions[version - self.earliest]

    def active(self, at: int) -> Catalog | None:
        """The version to use at hybrid timestamp `at`; None when it was cut."""
        place = bisect_right(self.versions, at, key=_ACTIVATION)
        return self.versions[place - 1] if place else None

    def candidate(self, required: int) -> Catalog | None:
        """The version to make the snapshot when the catalog is needed from `required` on: the one before the version
        active then. None when that is not later than the earliest: nothing would be cut.
        """
        active = self.active(required)
        if active is None:
            return None
        candidate = self.get(active.version - 1)
        return candidate if candidate is not None and candidate.version > self.earliest else None


def history_of(events: Iterable[LogEvent]) -> History:
    """The versions that a recovered log leads to. Raises InapplicableEntryError when events contradict themselves."""
    return History(tuple(one for one in recovered(events) if one.version))
