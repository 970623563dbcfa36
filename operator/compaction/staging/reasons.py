"""The reasons that staging areas add to those of the core."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.core.fate import Fate


class StagingReason(StrEnum):
    """Reasons in plans, waits, the condition Ready, and attempts."""

    BRANCH_BUSY = "BranchBusy"  # the last compaction lost to a commit: the branch is left alone for a minute
    REPOSITORY_NOT_FOUND = "RepositoryNotFound"  # the key-value store has no such repository
    FOREIGN_REPOSITORY = "ForeignRepository"  # a server of lakeFS keeps it: its branches have no compacted bases
    LIVE_STORE_REFUSED = "LiveStoreRefused"  # a live lakeFS is not as this version knows it: nothing is touched
    BRANCH_ACTIVE = "BranchActive"  # servers of lakeFS have changed the branch a short time ago
    DRY_RUN = "DryRun"  # lakefs.dryRun: what would be merged is reported only
    MERGING_STOPPED = "MergingStopped"  # the kill switch is on


FATES: Final[Mapping[str, Fate]] = MappingProxyType(
    {StagingReason.BRANCH_ACTIVE: Fate.RETRY, StagingReason.DRY_RUN: Fate.PARK}
)
