"""Records of branches and repositories: lakeFS's fields, and what a compaction adds to them.

docs/design/staging-areas.md#branch-record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

from compaction.staging.format.messages import NUMBERS, SIGNED, TEXT, TRUTH, BranchData, RepositoryData, wire_at

ENDED_CLAIMS: Final = 8
"""So many jobs whose claims ended without a commit a branch knows by name: every write reads its row."""


@dataclass(frozen=True)
class RepositoryRecord(RepositoryData):
    """The row of a repository. `compactable`: its branches may have compacted bases.

    A server that does not know the field drops it with its first change, as it would drop a branch's compacted base,
    and with it the changes in it: so a repository without the field is not one of ours.
    """

    NAME: ClassVar[str] = "RepositoryData"
    compactable: bool = field(default=False, metadata=wire_at(101, TRUTH))


@dataclass(frozen=True)
class BranchRecord(BranchData):
    """The row of a branch. A change swaps it for the exact bytes that were read.

    compacted_base: the metarange below the tokens; empty: that of the commit. It holds what was in tokens that a
        compaction removed, so it is nothing without them being gone, and a commit starts from it and clears it.
    compaction_started: milliseconds since 1970; the cooldown runs from it. 0: never.
    claim_job, claim_token: the job that may swap the base, and its fencing token.
    compacted_job, compacted_token: who swapped the base last: proof that the job has committed.
    deleted: the branch is being deleted, and no swap of its row succeeds any more.
    ended_claims: of the jobs that were retired last, the largest token that was accepted for each, the oldest first.
    ended_token: the largest token of those before them, which are not known by name any more.
    """

    NAME: ClassVar[str] = "BranchData"
    compacted_base: str = field(default="", metadata=wire_at(101, TEXT))
    compaction_started: int = field(default=0, metadata=wire_at(102, SIGNED))
    claim_job: str = field(default="", metadata=wire_at(103, TEXT))
    claim_token: int = field(default=0, metadata=wire_at(104, SIGNED))
    compacted_job: str = field(default="", metadata=wire_at(105, TEXT))
    compacted_token: int = field(default=0, metadata=wire_at(106, SIGNED))
    deleted: bool = field(default=False, metadata=wire_at(107, TRUTH))
    ended_claims: Mapping[str, int] = field(default_factory=dict, metadata=wire_at(108, NUMBERS))
    ended_token: int = field(default=0, metadata=wire_at(109, SIGNED))

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens, the newest first: a change in one hides those of the same key behind it."""
        return (self.staging_token, *self.sealed_tokens)

    def high_water(self, job: str) -> int:
        """The largest token that may have been accepted for a job; 0: none."""
        claimed = self.claim_token if self.claim_job == job else 0
        compacted = self.compacted_token if self.compacted_job == job else 0
        return max(claimed, compacted, self.ended_claims.get(job, self.ended_token))

    def unclaimed(self) -> Self:
        """Without a claim. The tokens that were accepted for its job stay known."""
        if not self.claim_job:
            return self
        known = {job: token for job, token in self.ended_claims.items() if job != self.claim_job}
        known[self.claim_job] = self.high_water(self.claim_job)
        forgotten = [known.pop(next(iter(known))) for _ in range(len(known) - ENDED_CLAIMS)]
        return replace(
            self, claim_job="", claim_token=0, ended_claims=known, ended_token=max(self.ended_token, *forgotten, 0)
        )

    def sealed(self, fresh: str) -> BranchRecord:
        """The same content with the staging token sealed, and `fresh` as the new one."""
        return replace(self, staging_token=fresh, sealed_tokens=self.tokens)

    def cleared(self, commit_id: str) -> BranchRecord:
        """On a commit that holds what the sealed tokens and the compacted base held."""
        return replace(self, commit_id=commit_id, sealed_tokens=(), compacted_base="")

    def emptied(self, fresh: str) -> BranchRecord:
        """On the same commit with nothing uncommitted; `fresh` is the new staging token."""
        return replace(self, staging_token=fresh, sealed_tokens=(), compacted_base="")
