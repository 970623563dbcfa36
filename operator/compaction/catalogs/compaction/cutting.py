"""A cut that was decided is carried out (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations

from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.trimming import trimmed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.entries import Snapshot


def cut(log: UpdateLog, candidate: Catalog, token: int) -> tuple[SnapshotOutcome, Snapshot]:
    """Claim the log, then save the snapshot of `candidate`, without the column sets of tables that no retained version
    uses; the snapshot is returned whatever the outcome. Raises the log's errors.
    """
    snapshot = trimmed(candidate.snapshot())
    if not log.claim(token):
        return SnapshotOutcome.FENCED, snapshot
    return log.save_snapshot(snapshot, token), snapshot
