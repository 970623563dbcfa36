"""Receipts of compactions: who swapped the base of a branch last, and the proof (docs/design/staging-areas.md#claims).

A receipt is written before the swap and counts once the record of the branch names its job and token: so after a lost
answer, or a crash between swap and report, the next attempt finds what was done. The row of a branch stays small.
"""

from __future__ import annotations

from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.refs.records import BranchRecord


def keep_receipt(area: Area, branch: str, *, job: str, token: int, receipt: str) -> None:
    """Write down what a swap is about to prove. Raises DatabaseError."""
    area.kv.set(area.repository.receipts, _key(branch, job, token), receipt.encode())


def receipt_of(area: Area, record: BranchRecord, job: str) -> str | None:
    """The receipt of the last swap of a branch; None when that was not for the job. Raises DatabaseError."""
    if not job or record.compacted_job != job:
        return None
    row = area.kv.get(area.repository.receipts, _key(record.id, job, record.compacted_token))
    return "" if row is None else row.decode()


def forget_receipts(area: Area, branch: str, *, but: tuple[str, int] | None = None) -> None:
    """Delete the receipts of a branch; `but`: job and token of the one to keep. Raises DatabaseError."""
    kept = None if but is None else _key(branch, *but)
    begin = branch.encode() + b"\0"
    keys = [key for page in area.kv.scan(area.repository.receipts, begin, begin[:-1] + b"\1") for key, _ in page]
    area.kv.delete_many(area.repository.receipts, [key for key in keys if key != kept])


def _key(branch: str, job: str, token: int) -> bytes:
    return f"{branch}\0{job}.{token}".encode()
