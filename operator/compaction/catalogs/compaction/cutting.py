"""A cut that was decided is carried out (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations

from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.trimming import trimmed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.entries import Snapshot


def cut(log: UpdateLog, candidate: Catalog, token: int) -> tuple[SnapshotOutcome, Snapshot]:
    """Save the snapshot of `candidate`, without the column sets of tables that no retained version uses. Returned
    whatever the outcome. `token`: claimed before anything was asked that decided the cut. Raises the log's errors.
    """
    snapshot = trimmed(candidate.snapshot())
    return log.save_snapshot(snapshot, token), snapshot
