"""The reasons that staging areas add to those of the core."""

from __future__ import annotations

from enum import StrEnum


class StagingReason(StrEnum):
    """Reasons in plans, waits and the condition Ready."""

    BRANCH_BUSY = "BranchBusy"  # the last compaction lost to a commit: the branch is left alone for a minute
    REPOSITORY_NOT_FOUND = "RepositoryNotFound"  # the key-value store has no such repository
    FOREIGN_REPOSITORY = "ForeignRepository"  # a server of lakeFS keeps it: its branches have no compacted bases
