"""Claims on branches of a live lakeFS: which job may merge a branch, with which fencing token.

The row of a branch is the servers': they would drop what they do not know. So a claim is a row beside it. The swap of
the branch, the step of the journal and the end of the claim are one transaction (docs/design/staging.md#live-lakefs).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from compaction.errors import StaleTokenError
from compaction.staging.compaction.work import BranchWork
from compaction.staging.errors import PredicateFailedError, TooManyTriesError, WorkOutdatedError
from compaction.staging.format.messages import TEXT, wire_at
from compaction.staging.kv.port import Expected, Presence
from compaction.staging.lakefs.branch_rows import BranchRow
from compaction.staging.lakefs.journal import MERGE_PARTITION
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.refs.records import BranchRecord

TRIES: Final = 5
_CLAIMS: Final = "claim/"


@dataclass(frozen=True)
class LiveClaim(BranchRecord):
    """What a branch record of this project says of claims (`BranchRecord`), and the receipt of the last merge."""

    NAME: ClassVar[str] = "LiveClaim"
    receipt: str = field(default="", metadata=wire_at(120, TEXT))


def read_claim(live: LiveRepository, branch: str) -> tuple[LiveClaim, Expected]:
    """The claim on a branch, and the row for the next swap of it. Raises CorruptMessageError, DatabaseError."""
    raw = live.kv.get(MERGE_PARTITION, _key(live, branch))
    if raw is None:
        return LiveClaim(), Presence.ABSENT
    return LiveClaim.decode(raw, name=f"claim on branch {branch}"), raw


def record_of(row: BranchRow) -> BranchRecord:
    """The row of a server as a record of this project, which has no compacted base."""
    data = row.data
    return BranchRecord(
        id=data.id, commit_id=data.commit_id, staging_token=data.staging_token, sealed_tokens=data.sealed_tokens
    )


def claim_branch(live: LiveRepository, work: BranchWork, *, job: str, token: int) -> None:
    """From now on only `token` may merge the branch for `job`; nothing of the branch itself changes. A job that has
    merged needs no claim.

    Raises:
        StaleTokenError: this token, or a larger one, was accepted for the job.
        WorkOutdatedError: the branch has other tokens, or another commit, than the work.
        UnknownRefError, LiveStoreRefusedError, CorruptMessageError, TooManyTriesError, DatabaseError
    """
    for _ in range(TRIES):
        found, expected = read_claim(live, work.branch)
        if found.compacted_job == job:
            return
        accepted = found.high_water(job)
        if token <= accepted:
            raise StaleTokenError(_path(live, work.branch), job, token, accepted)
        if not work.is_of(record_of(live.branch(work.branch))):
            raise WorkOutdatedError(_path(live, work.branch))
        if found.claim_job != job:
            found = replace(found.unclaimed(), compaction_started=int(live.clock() * 1000))
        if _swapped(live, work.branch, replace(found, claim_job=job, claim_token=token), expected):
            return
    raise TooManyTriesError(work.branch, "claim it", TRIES)


def retire_job(live: LiveRepository, branch: str, job: str) -> None:
    """No merge is swapped in for the job any more. Raises CorruptMessageError, TooManyTriesError, DatabaseError."""
    for _ in range(TRIES):
        found, expected = read_claim(live, branch)
        if found.claim_job != job or _swapped(live, branch, found.unclaimed(), expected):
            return
    raise TooManyTriesError(branch, "retire a job", TRIES)


def forget_claims(live: LiveRepository, gone: set[str]) -> None:
    """Delete the claims on branches that are gone. Raises DatabaseError."""
    for branch in gone:
        live.kv.delete(MERGE_PARTITION, _key(live, branch))


def claimed_branches(live: LiveRepository) -> set[str]:
    """Names of branches that have a claim, or had one. Raises DatabaseError."""
    prefix = _key(live, "")
    pages = live.kv.scan(MERGE_PARTITION, prefix, prefix[:-1] + b"0")
    return {key.decode(errors="replace").removeprefix(prefix.decode()) for page in pages for key, _ in page}


@dataclass(frozen=True, slots=True)
class MergeWarrant:
    """The right of one attempt of a job to merge exactly these tokens of a branch, the newest first."""

    job: str
    token: int
    tokens: tuple[str, ...]

    @property
    def holder(self) -> str:
        """Name of the attempt in the lease of the branch."""
        return f"{self.job}/{self.token}"

    def ensure(self, live: LiveRepository, branch: str) -> tuple[LiveClaim, Expected]:
        """The claim of this attempt as it is now. Raises StaleTokenError: another one has it, or none."""
        found, expected = read_claim(live, branch)
        if (found.claim_job, found.claim_token) != (self.job, self.token):
            claimed = found.claim_token if found.claim_job == self.job else None
            raise StaleTokenError(_path(live, branch), self.job, self.token, claimed)
        return found, expected

    def ended(self, live: LiveRepository, branch: str, receipt: str) -> tuple[str, bytes, bytes, Expected]:
        """The row with which the swap of the branch ends the claim. Raises StaleTokenError."""
        found, expected = self.ensure(live, branch)
        ended = replace(
            found, claim_job="", claim_token=0, compacted_job=self.job, compacted_token=self.token, receipt=receipt
        )
        return MERGE_PARTITION, _key(live, branch), ended.encode(), expected


def _swapped(live: LiveRepository, branch: str, claim: LiveClaim, expected: Expected) -> bool:
    try:
        live.kv.set_if(MERGE_PARTITION, _key(live, branch), claim.encode(), expected)
    except PredicateFailedError:
        return False
    return True


def _key(live: LiveRepository, branch: str) -> bytes:
    return f"{_CLAIMS}{live.partition}/{branch}".encode()


def _path(live: LiveRepository, branch: str) -> str:
    return f"{live.name}/{branch}"
