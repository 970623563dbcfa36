"""The claims that the adapter of a store answers for: its own, with signs of life, and strays of others."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from compaction.blocks.claims.holders import STRAY_CLAIM, Sign, sign_of
from compaction.blocks.errors import BlockStoreError
from compaction.blocks.index.claims import JobRecord
from compaction.blocks.index.holders import renew, sign_out
from compaction.blocks.store import BlockStore
from compaction.storage.errors import StorageError
from compaction.storage.processes import Holder, ThisProcess

log = structlog.get_logger(__name__)


class BlockClaims:
    """Remembers which jobs were heard of. `here`: the process that claims; None for a cluster's coordinator."""

    def __init__(self, here: ThisProcess | None) -> None:
        self._here = here
        self._known: set[str] = set()

    @property
    def holder(self) -> Holder | None:
        """Who claims."""
        return None if self._here is None else self._here.holder

    def hear_of(self, jobs: Collection[str]) -> None:
        """There are such jobs."""
        self._known.update(jobs)

    def retire_strays(self, store: BlockStore, jobs: Collection[str], *, waited: float) -> None:
        """Give up the claims of jobs that are not among `jobs`: those that were deleted while they had one would keep
        their blocks for ever, and so would those of processes that died. `waited`: microseconds since `jobs` were
        counted. Raises DatabaseError.
        """
        now = store.now()
        claimed = store.open_jobs()
        for record in claimed:
            if record.job not in jobs and self._is_stray(record, age=now - record.changed_at, waited=waited):
                log.warning("the claim of a deleted job is released", job=record.job, token=record.token)
                store.retire(record.job, token=record.token)
        self._known &= {*jobs, *(record.job for record in claimed)}

    def renew(self, store: BlockStore) -> None:
        """A sign of life. Raises DatabaseError."""
        if self._here is not None:
            renew(store.index, self._here.holder.id)

    def sign_out(self, store: BlockStore) -> None:
        """This process claims nothing more; what cannot be written down now is forgotten by housekeeping."""
        if self._here is None:
            return
        try:
            sign_out(store.index, self._here.holder.id)
        except (BlockStoreError, StorageError) as error:
            log.info("the end of this process is not written down", error=str(error))

    def _is_stray(self, record: JobRecord, *, age: int, waited: float) -> bool:
        """Whether no process works on it. A claim younger than the count of jobs belongs to one that was not
        counted.
        """
        if age > waited and record.job in self._known:
            return True
        sign = sign_of(record.holder, self._here)
        # What no process has claimed is a coordinator's: another one may give it up, a local run does not.
        return sign.is_gone or (sign is Sign.UNKNOWN and self._here is None and age > STRAY_CLAIM)
