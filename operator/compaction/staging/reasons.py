"""The reasons that staging areas add to those of the core, and the words for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.policy.store import PolicyStanding
from compaction.core.kind import PolicyWord
from compaction.core.meaning import Fate, Meaning

# The reasons that staging areas add to those of the core.


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


# The words for the reasons of staging areas.

_EDIT: Final = "kubectl edit cpol {policy} {n}"

POLICY_WORDS: Final[Mapping[str, PolicyWord]] = {
    StagingReason.REPOSITORY_NOT_FOUND: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The key-value store has no repository of this name.",
            "The scan is retried every interval; nothing is planned or deleted until it succeeds.",
            f"Create it (compactor staging repo NAME NAMESPACE_URL), or correct repository, kv or table: {_EDIT}",
        ),
    ),
    StagingReason.FOREIGN_REPOSITORY: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "A server of lakeFS keeps the repository; it would drop the compacted base of a branch.",
            "Every scan checks the repository again; nothing is planned.",
            f"To merge the sealed tokens of its branches instead, set spec.store.stagingArea.lakefs: {_EDIT}",
        ),
    ),
    StagingReason.LIVE_STORE_REFUSED: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The store, the repository or its schema is not what this version knows of a live lakeFS.",
            "Every scan checks it again; nothing is read or merged until it is known.",
            "Look what is refused: compactor staging lakefs inspect; without lakeFS servers, remove "
            f"spec.store.stagingArea.lakefs: {_EDIT}",
        ),
    ),
}

LEFT_OUT_WORDS: Final[Mapping[str, Meaning]] = {
    StagingReason.BRANCH_BUSY: Meaning(
        "The last compaction of the branch lost to a commit, a merge or a reset.",
        "It is planned again a minute after the start of that compaction.",
        f"If the branch is committed all the time, a commit does what a compaction would do; exclude it: {_EDIT}",
    ),
    StagingReason.BRANCH_ACTIVE: Meaning(
        "Servers of lakeFS have changed the branch a short time ago, or another merger has it.",
        "It is planned when it has not changed for spec.store.stagingArea.lakefs.idle.",
        f"If the branch is changed all the time, lower idle, or commit it: a commit drops its tokens; {_EDIT}",
    ),
    StagingReason.DRY_RUN: Meaning(
        "spec.store.stagingArea.lakefs.dryRun is true.",
        "What would be merged is measured and reported; no job is created.",
        f"To merge, set dryRun: false: {_EDIT}; what a merge changes: compactor staging lakefs merge without --apply",
    ),
    StagingReason.MERGING_STOPPED: Meaning(
        "The kill switch of the store is on: no sealed tokens are merged.",
        "Every scan looks again; merges that were running have ended with their branches unchanged.",
        "To allow merges again: compactor staging lakefs hold --release",
    ),
}

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    StagingReason.BRANCH_ACTIVE: Meaning(
        "The merge yielded: the branch changed, another merger has it, or merging is stopped.",
        "The branch is unchanged. The job is tried again.",
        f"If the branch is changed all the time, exclude it: {_EDIT}",
    ),
    StagingReason.DRY_RUN: Meaning(
        "The parameters of the job say dryRun: true.",
        "The branch is unchanged. The job is not tried again: its parameters never change.",
        "To merge, create a job whose parameters.metarange.lakefs.dryRun is false.",
    ),
}

WAIT_WORDS: Final[Mapping[str, Meaning]] = {
    StagingReason.DRY_RUN: Meaning(
        "spec.store.stagingArea.lakefs.dryRun of the policy is true.",
        "The job runs once it is false; until then nothing is merged.",
        f"To merge, set dryRun: false: {_EDIT}",
    ),
}
