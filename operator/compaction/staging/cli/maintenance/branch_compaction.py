"""A compaction of one branch in this process: claim, rewrite, proof, swap (docs/design/staging-areas.md#compaction)."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from compaction.errors import CompactionError
from compaction.staging.compaction.claims import claim, retire, swap_base
from compaction.staging.compaction.rewriting import Rewritten, rewrite
from compaction.staging.compaction.work import BranchWork, work_on
from compaction.staging.errors import BranchClaimedError
from compaction.staging.flows.area import Area

TOKEN: Final = 1
"""A job of the command line has one attempt."""


@dataclass(frozen=True, slots=True)
class CompactedBranch:
    """What became of a branch."""

    job: str
    work: BranchWork
    rewritten: Rewritten


def compact_branch(area: Area, name: str, *, take_over: bool = False) -> CompactedBranch | None:
    """Compact all that a branch has staged; None when there is nothing.

    A branch that another job has claimed is refused, unless it is taken over: that job commits nothing then. After an
    error the claim is retired, and the branch shows what it did.

    Raises UnknownRefError, BranchClaimedError, RepositoryReadOnlyError, WorkOutdatedError, StaleTokenError,
    OutputSweptError, TooManyTriesError, and as `rewrite`.
    """
    area.repository.check_writable()
    record = area.branches.get(name).record
    work = work_on(area.repository.name, record, staged=area.tokens.has_rows(record.staging_token))
    if not work.tokens:
        return None
    if record.claim_job and not take_over:
        raise BranchClaimedError(name, record.claim_job)
    job = f"cli-{socket.gethostname()[:40]}-{os.getpid()}-{uuid4().hex[:12]}"
    with ExitStack() as undo:
        undo.callback(_retire, area, name, job)
        claim(area, work, job=job, token=TOKEN)
        rewritten = rewrite(area, work)
        written = (rewritten.tree, *(one.id for one in rewritten.applied.written))
        swap_base(area, work, rewritten.tree, job=job, token=TOKEN, written=written)
        undo.pop_all()
    return CompactedBranch(job, work, rewritten)


def _retire(area: Area, name: str, job: str) -> None:
    # What went wrong before is the error to report.
    with suppress(CompactionError):
        retire(area, name, job)
