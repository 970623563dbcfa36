"""What attempts at a branch do alike, whether its tokens become part of a base or one token."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from compaction.api.job.report import JobReport
from compaction.api.job.resource import JobReceipt
from compaction.errors import CompactionError, StaleTokenError
from compaction.staging.damage import damaged_source
from compaction.staging.errors import StagingStoreError
from compaction.staging.rewriting.job import MetarangeJob
from compaction.staging.rewriting.report import RewriteFailure, failed, succeeded
from compaction.storage.errors import StorageError
from compaction.worker.attempt import RewriteAttempt


@dataclass(slots=True, kw_only=True)
class BranchAttempt(RewriteAttempt):
    """An attempt at a branch. `monotonic`: seconds."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (StagingStoreError, StorageError, StaleTokenError)

    job: MetarangeJob
    worker: str
    monotonic: Callable[[], float] = time.monotonic
    receipt: JobReceipt | None = None
    failure: RewriteFailure | None = None

    @property
    def job_name(self) -> str:
        return self.job.name

    @abstractmethod
    def _read_identity(self, source: str) -> str:
        """The identity of a damaged source now (`damage.identity_of`). Raises StagingStoreError, StorageError."""

    def _failed(self, error: CompactionError) -> None:
        source = damaged_source(error, self.job.work.tokens)
        identity = "" if source is None else self._identity(source.name)
        self.failure = RewriteFailure.of(error).because_of(source, identity)

    def _identity(self, source: str) -> str:
        """Of what was found damaged; a scan finds it where this attempt cannot."""
        try:
            return self._read_identity(source)
        except (StagingStoreError, StorageError):
            return ""

    def _report(self) -> JobReport:
        if self.receipt is not None:
            return succeeded(self.receipt, token=self.token)
        assert self.failure is not None, "an attempt without a receipt has failed"
        return failed(self.failure, token=self.token)
