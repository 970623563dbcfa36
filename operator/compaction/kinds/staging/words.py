"""The words for the reasons of staging areas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.policy.standing import PolicyStanding
from compaction.kinds.kind import PolicyWord
from compaction.kinds.meaning import Meaning
from compaction.kinds.staging.reasons import StagingReason

_EDIT: Final = "kubectl edit cpol {policy} {n}"

POLICY_WORDS: Final[Mapping[str, PolicyWord]] = {
    StagingReason.REPOSITORY_NOT_FOUND: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The key-value store has no repository of this name.",
            "The scan is retried every interval; nothing is planned or deleted until it succeeds.",
            f"Create it (compactor staging repo create), or correct repository, kv or table: {_EDIT}",
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
}

LEFT_OUT_WORDS: Final[Mapping[str, Meaning]] = {
    StagingReason.BRANCH_BUSY: Meaning(
        "The last compaction of the branch lost to a commit, a merge or a reset.",
        "It is planned again a minute after the start of that compaction.",
        f"If the branch is committed all the time, a commit does what a compaction would do; exclude it: {_EDIT}",
    ),
}
