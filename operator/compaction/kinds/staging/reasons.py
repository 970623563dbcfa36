"""The reasons that staging areas add to those of the core."""

from __future__ import annotations

from enum import StrEnum


class StagingReason(StrEnum):
    """Reasons in plans, waits and the condition Ready."""

    BRANCH_BUSY = "BranchBusy"  # the last compaction lost to a commit, merge or reset: the branch rests
    NOTHING_STAGED = "NothingStaged"  # the branch has neither sealed tokens nor changes in its staging token
    REPOSITORY_NOT_FOUND = "RepositoryNotFound"  # the key-value store has no such repository
    FOREIGN_REPOSITORY = "ForeignRepository"  # a server of lakeFS keeps it: its branches have no compacted bases
