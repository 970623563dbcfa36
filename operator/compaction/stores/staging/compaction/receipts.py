"""Receipts of the swaps of bases, beside the rows of branches: every write of a branch reads its row, and a receipt may
be large (docs/design/staging-areas.md#claims).

A receipt is written before its swap, under the job and its fencing token: it counts when the branch says that this very
attempt has swapped the base.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.refs.branches import Branch
from compaction.stores.staging.staged.tokens import after_prefix


def keep_receipt(area: Area, branch: str, job: str, token: int, receipt: str) -> None:
    """Write down what an attempt is about to commit."""
    area.kv.set(_partition(area), _key(branch, job, token), receipt.encode())


def last_receipt(area: Area, branch: Branch) -> str | None:
    """The receipt of the last swap of the base; None: there was none, or it was not kept."""
    record = branch.record
    row = area.kv.get(_partition(area), _key(branch.name, record.compacted_job, record.compacted_token))
    return None if row is None else row.decode(errors="replace")


def drop_receipts(area: Area, branch: str) -> None:
    """Delete the receipts of a branch that its record does not need, now or when its claim commits."""
    prefix = _prefix(branch)
    keys = [key for page in area.kv.scan(_partition(area), prefix, after_prefix(prefix)) for key, _ in page]
    found = area.branches.find(branch)
    _drop(area, keys, [] if found is None else [found])


def sweep_receipts(area: Area) -> int:
    """Delete the receipts that no branch needs: those of attempts that never committed, and of branches that are gone.
    How many there were.
    """
    keys = [key for page in area.kv.scan(_partition(area)) for key, _ in page]
    return _drop(area, keys, area.branches.every())


def _drop(area: Area, keys: list[bytes], branches: Iterable[Branch]) -> int:
    """A claim is there before its attempt writes a receipt, so branches are read after the receipts."""
    if not keys:
        return 0
    needed = set()
    for branch in branches:
        record = branch.record
        needed.add(_key(branch.name, record.compacted_job, record.compacted_token))
        needed.add(_key(branch.name, record.claim_job, record.claim_token))
    unneeded = [key for key in keys if key not in needed]
    area.kv.delete_many(_partition(area), unneeded)
    return len(unneeded)


def _partition(area: Area) -> str:
    return f"{area.repository.partition}:receipts"


def _prefix(branch: str) -> bytes:
    """Names of branches have no slash."""
    return f"{branch}/".encode()


def _key(branch: str, job: str, token: int) -> bytes:
    return _prefix(branch) + f"{job}/{token}".encode()
