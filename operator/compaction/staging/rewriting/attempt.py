"""Runs one MetarangeRewrite job: the tokens of a branch become part of its base, in one swap of its record.

Order: look for the receipt of an earlier attempt; check the claim; write the tree and prove it, a part in each task;
swap with this attempt's token (docs/design/staging-areas.md#compaction).

Invariants:

* Nothing is swapped unless the lease is held at that moment and the branch still expects this very token.
* A swap whose answer is lost is repeated until it is known; a second one changes nothing.
* What an attempt has written and does not commit is found by the sweep: a range is named by its content, so another
  attempt may be about to use the very same object.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from compaction.api.job.resource import JobReceipt
from compaction.errors import StaleTokenError
from compaction.staging.compaction.claims import swap_base
from compaction.staging.damage import identity_of
from compaction.staging.errors import TooManyTriesError, WorkOutdatedError
from compaction.staging.flows.area import Area
from compaction.staging.flows.receipts import receipt_of as kept_receipt_of
from compaction.staging.rewriting.branch_attempt import BranchAttempt
from compaction.staging.rewriting.report import receipt_from, receipt_of
from compaction.staging.rewriting.tree import TreeWriter, WrittenTree
from compaction.storage.errors import DatabaseUnavailableError
from compaction.worker.place import ObjectsPlace
from compaction.worker.tasks import LOOK_SECONDS

log = structlog.get_logger(__name__)

COMMIT_PATIENCE: Final = 600.0
"""Seconds for which a swap is repeated while the database is away: to write the tree once more would cost more."""


@dataclass(slots=True, kw_only=True)
class MetarangeAttempt(BranchAttempt):
    """An attempt at a branch. `place`: of its objects, for tasks. `sleep`: seconds."""

    area: Area
    place: ObjectsPlace
    sleep: Callable[[float], None] = time.sleep

    def _work(self) -> None:
        self.lease.ensure_held()
        if self._is_done():
            return
        began = self.monotonic()
        writer = TreeWriter(
            area=self.area,
            place=self.place,
            engine=self.engine,
            lease=self.lease,
            tag=self.tag,
            budget=self.budget,
        )
        work = self.job.work
        written = writer.write(work)
        seconds = self.monotonic() - began
        receipt = receipt_of(
            work, written, token=self.token, worker=self.worker, seconds=seconds, now=self.area.clock()
        )
        self._swap(written, receipt)
        self.receipt = receipt
        log.info("branch compacted", branch=work.branch, changes=written.changes, reused=written.reused)

    def _is_done(self) -> bool:
        """Whether an earlier attempt has committed. Raises StaleTokenError, WorkOutdatedError: this one never can."""
        work = self.job.work
        record = self.area.branches.get(work.branch).record
        kept = kept_receipt_of(self.area, record, self.job.name)
        if kept is not None and record.compacted_token <= self.token:
            self.receipt = receipt_from(kept, work, token=record.compacted_token)
            return True
        target = f"{work.repository}/{work.branch}"
        if (record.claim_job, record.claim_token) != (self.job.name, self.token):
            claimed = record.claim_token if record.claim_job == self.job.name else None
            raise StaleTokenError(target, self.job.name, self.token, claimed)
        if not work.is_sealed_in(record):
            raise WorkOutdatedError(target)
        return False

    def _swap(self, written: WrittenTree, receipt: JobReceipt) -> None:
        """Commit, again and again while it is not known whether it happened; the lease is held each time."""
        text = receipt.model_dump_json(by_alias=True, exclude_defaults=True)
        give_up_at = self.monotonic() + COMMIT_PATIENCE
        while True:
            self.lease.ensure_held()
            try:
                swap_base(
                    self.area,
                    self.job.work,
                    written.tree,
                    job=self.job.name,
                    token=self.token,
                    receipt=text,
                    written=written.objects,
                )
            except (DatabaseUnavailableError, TooManyTriesError) as error:
                if self.monotonic() >= give_up_at:
                    raise
                log.warning("the swap is repeated", error=str(error))
                self.sleep(LOOK_SECONDS)
            else:
                return

    def _read_identity(self, source: str) -> str:
        record = self.area.branches.get(self.job.work.branch).record
        return identity_of(self.area.kv, self.area.ranges, record, source)

    def _clean_up(self) -> None:
        """Nothing: see the module."""
