"""Claims: which job may swap the base of a branch, with which fencing token (docs/design/staging-areas.md#claims)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum, auto

from compaction.errors import StaleTokenError
from compaction.staging.compaction.work import BranchWork
from compaction.staging.errors import OutputSweptError, WorkOutdatedError
from compaction.staging.flows.area import Area
from compaction.staging.flows.receipts import forget_receipts, keep_receipt
from compaction.staging.flows.swapping import fresh_token, swapped
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord


class Claimed(Enum):
    """What a claim found."""

    CLAIMED = auto()
    COMMITTED = auto()  # the job's base is there already, and nothing was changed


def claim(area: Area, work: BranchWork, *, job: str, token: int) -> Claimed:
    """From now on only `token` may swap the base for `job`.

    The first claim seals the staging token and writes down when the compaction began: one swap for all of it. A later
    attempt changes nothing but the token, so that writers, which give up after three new tokens, are left alone.

    Raises:
        StaleTokenError: the branch has accepted this token, or a larger one, for the job.
        WorkOutdatedError: the branch has other tokens or trees than the work.
        UnknownRefError, TooManyTriesError
    """
    found = Claimed.CLAIMED

    def claimed(branch: Branch) -> BranchRecord | None:
        nonlocal found
        record = branch.record
        if record.compacted_job == job:
            found = Claimed.COMMITTED
            return None
        accepted = high_water_of(record, job)
        if token <= accepted:
            raise StaleTokenError(_path(work), job, token, accepted)
        if not work.is_of(record):
            raise WorkOutdatedError(_path(work))
        if not work.is_sealed_in(record):
            record = replace(record.sealed(fresh_token(area, branch)), compaction_started=int(area.clock() * 1000))
        elif record.claim_job != job:
            record = replace(record, compaction_started=int(area.clock() * 1000))
        if record.claim_job != job:
            record = record.unclaimed()
        return replace(record, claim_job=job, claim_token=token)

    swapped(area, work.branch, "claim it", claimed)
    return found


def retire(area: Area, branch: str, job: str) -> None:
    """No base is swapped for the job any more; what it sealed stays sealed. A later claim for it takes a larger token
    than all that were accepted before.

    Raises UnknownRefError, TooManyTriesError.
    """

    def retired(found: Branch) -> BranchRecord | None:
        if found.record.claim_job != job:
            return None
        return found.record.unclaimed()

    swapped(area, branch, "retire a job", retired)


def high_water_of(record: BranchRecord, job: str) -> int:
    """The largest token that the branch may have accepted for a job; 0: none."""
    return record.high_water(job)


def swap_base(
    area: Area,
    work: BranchWork,
    tree: str,
    *,
    job: str,
    token: int,
    receipt: str = "",
    written: Collection[str] = (),
) -> Branch:
    """The commit of a compaction: `tree` becomes the base, the tokens of the work go, and nothing else changes.

    `tree` holds what the tokens showed over the base: the caller has proved it. Repeated after a lost answer it changes
    nothing. `receipt`: kept for attempts that come later. `written`: the ids of the objects that the attempt has
    written; each must be there still.

    Raises:
        StaleTokenError: another attempt has claimed the branch, or the job was retired.
        WorkOutdatedError: a commit, merge or reset came first: plan again.
        OutputSweptError: a sweep that had begun before the claim has deleted what the attempt wrote again.
        UnknownRefError, TooManyTriesError
    """
    head = area.commits.get(work.commit_id).meta_range_id
    forget_receipts(area, work.branch)
    keep_receipt(area, work.branch, job=job, token=token, receipt=receipt)

    def based(branch: Branch) -> BranchRecord | None:
        record = branch.record
        if (record.compacted_job, record.compacted_token) == (job, token):
            return None
        if (record.claim_job, record.claim_token) != (job, token):
            claimed = record.claim_token if record.claim_job == job else None
            raise StaleTokenError(_path(work), job, token, claimed)
        if not work.is_sealed_in(record):
            raise WorkOutdatedError(_path(work))
        return replace(
            record,
            sealed_tokens=record.sealed_tokens[: -len(work.tokens)],
            compacted_base="" if tree == head else tree,
            claim_job="",
            claim_token=0,
            compacted_job=job,
            compacted_token=token,
        )

    def present() -> None:
        gone = [one for one in written if not area.ranges.exists(one)]
        if gone:
            raise OutputSweptError(_path(work), gone[0])

    return swapped(area, work.branch, "swap its base", based, before_swap=present)


def _path(work: BranchWork) -> str:
    return f"{work.repository}/{work.branch}"
