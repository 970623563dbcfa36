"""Receipts of compactions: who swapped the base of a branch last, and the proof (docs/design/staging-areas.md#claims).

A receipt is written before the swap and counts once the record of the branch names its job and token: so after a lost
answer, or a crash between swap and report, the next attempt finds what was done. Every write of a branch reads its row,
and a receipt may be large: so it lies beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.staging.flows.area import Area
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord


def keep_receipt(area: Area, branch: str, *, job: str, token: int, receipt: str) -> None:
    """Write down what a swap is about to prove. Raises DatabaseError."""
    area.kv.set(area.repository.receipts, _key(branch, job, token), receipt.encode())


def receipt_of(area: Area, record: BranchRecord, job: str) -> str | None:
    """The receipt of the last swap of a branch, "" when it was not kept; None when that was not for the job. Raises
    DatabaseError.
    """
    if not job or record.compacted_job != job:
        return None
    row = area.kv.get(area.repository.receipts, _key(record.id, job, record.compacted_token))
    return "" if row is None else row.decode(errors="replace")


def forget_receipts(area: Area, branch: str) -> None:
    """Delete the receipts of a branch that its record does not need, now or when its claim commits. Raises
    DatabaseError.
    """
    begin = branch.encode() + b"\0"
    keys = [key for page in area.kv.scan(area.repository.receipts, begin, begin[:-1] + b"\1") for key, _ in page]
    found = area.branches.find(branch)
    _forget(area, keys, [] if found is None else [found])


def sweep_receipts(area: Area) -> int:
    """Delete the receipts that no branch needs: those of attempts that never committed, and of branches that are gone.
    How many there were. Raises DatabaseError.
    """
    keys = [key for page in area.kv.scan(area.repository.receipts) for key, _ in page]
    return _forget(area, keys, area.branches.every())


def _forget(area: Area, keys: list[bytes], branches: Iterable[Branch]) -> int:
    """A claim is there before its attempt writes a receipt, so branches are read after the receipts."""
    needed = set()
    for branch in branches if keys else ():
        record = branch.record
        needed.add(_key(branch.name, record.compacted_job, record.compacted_token))
        needed.add(_key(branch.name, record.claim_job, record.claim_token))
    unneeded = [key for key in keys if key not in needed]
    area.kv.delete_many(area.repository.receipts, unneeded)
    return len(unneeded)


def _key(branch: str, job: str, token: int) -> bytes:
    return f"{branch}\0{job}.{token}".encode()
