"""What was written: each version with its activation time and a digest of its descriptors, recorded at write time; and
where history may begin, computed from that alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Lock

from compaction.catalogs.codec import canonical
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Table

_ACTIVATION = attrgetter("activation")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One version. `activation`: hybrid timestamp; `digest`: of all descriptors."""

    version: int
    activation: int
    digest: str


@dataclass
class Model:
    """All versions that were written, in order. Safe for threads."""

    _lock: Lock = field(default_factory=Lock)
    _recorded: list[Recorded] = field(default_factory=list)

    def record(self, catalog: Catalog) -> Recorded:
        """The version that was written last."""
        one = Recorded(catalog.version, catalog.activation_time, digest(catalog))
        with self._lock:
            self._recorded.append(one)
        return one

    def all(self) -> tuple[Recorded, ...]:
        """Those of this instant."""
        with self._lock:
            return tuple(self._recorded)

    def active(self, at: int) -> Recorded:
        """The version that is active at a hybrid timestamp, at or after the first one."""
        recorded = self.all()
        return recorded[bisect_right(recorded, at, key=_ACTIVATION) - 1]

    def first_kept(self, required: int) -> int:
        """The version that history begins with when it is needed from `required` on: the one before the version active
        then, and never the last one.
        """
        return max(1, self.active(required).version - 1)


def digest(catalog: Catalog) -> str:
    """Of everything that a reader of the version sees. Column sets that a table had before are no part of it: those
    that no kept version reaches are trimmed with the history.
    """
    seen = {
        "version": catalog.version,
        "activation": catalog.activation_time,
        "default": catalog.default_zone_id,
        "zones": [canonical.zone(one) for _, one in sorted(catalog.zones.items())],
        "schemas": [[one.id, one.name] for _, one in sorted(catalog.schemas.items())],
        "tables": [_table(one) for _, one in sorted(catalog.tables.items())],
        "indexes": [canonical.index(one) for _, one in sorted(catalog.indexes.items())],
    }
    return hashlib.sha256(canonical.text(seen).encode("ascii")).hexdigest()


def _table(one: Table) -> list[object]:
    keys = [one.id, one.name, one.schema_id, one.zone_id, one.pk_index_id, list(one.pk_column_ids)]
    return [*keys, [canonical.column(each) for each in one.columns]]
