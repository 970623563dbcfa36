"""What one compaction of a branch is about: its tokens, and the trees below them, as they were when it was planned."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.staging.refs.records import BranchRecord
from compaction.staging.work import base_version_of


@dataclass(frozen=True, slots=True)
class BranchWork:
    """`tokens`, the newest first, become part of the base. `base`: the compacted base, "" when that is the commit's."""

    repository: str
    branch: str
    commit_id: str
    base: str
    tokens: tuple[str, ...]

    @property
    def base_version(self) -> str:
        """What the plan was made from: another one means that the plan is outdated."""
        return base_version_of(self.repository, self.branch, self.commit_id, self.base, self.tokens)

    def is_of(self, record: BranchRecord) -> bool:
        """Whether a branch still has the same trees below the same tokens; newer ones may be above them."""
        known = len(self.tokens)
        same_tokens = known > 0 and record.tokens[-known:] == self.tokens
        return same_tokens and (record.commit_id, record.compacted_base) == (self.commit_id, self.base)

    def is_sealed_in(self, record: BranchRecord) -> bool:
        """Whether none of the tokens is the staging token."""
        return self.is_of(record) and record.staging_token not in self.tokens


def work_on(repository: str, record: BranchRecord, *, staged: bool) -> BranchWork:
    """The compaction of all that a branch has; `staged`: there are rows in its staging token."""
    tokens = record.tokens if staged else record.sealed_tokens
    return BranchWork(repository, record.id, record.commit_id, record.compacted_base, tokens)
