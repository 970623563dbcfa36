"""A cut that was decided is carried out (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations

from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.trimming import trimmed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.entries import Snapshot


def cut(log: UpdateLog, candidate: Catalog, token: int, *, trim: bool) -> tuple[SnapshotOutcome, Snapshot]:
    """Save the snapshot of `candidate`, with `trim` without the column sets of tables that no retained version uses.
    Returned whatever the outcome. `token`: claimed before anything was asked that decided the cut. Raises the log's
    errors.
    """
    whole = candidate.snapshot()
    snapshot = trimmed(whole) if trim else whole
    return log.save_snapshot(snapshot, token), snapshot
