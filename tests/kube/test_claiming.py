"""What a store's answer to a claim means for the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from compaction.api.enums import WaitReason
from compaction.api.job import CompactionJob, CompactionJobSpec, CompactionJobStatus
from compaction.exceptions import (
    ClaimRefusedError,
    CompactionError,
    IndexUnavailableError,
    LockHeldError,
    NotALogDirectoryError,
    OwnerRunningError,
    StaleTokenError,
)
from compaction.kube.claiming import claim
from compaction.reconcile.actions import AssignJob
from compaction.reconcile.claims import Refused
from compaction.reconcile.observations import Identity
from compaction.stores.adapter import StoreAdapter
from compaction.stores.blocks.index.refusals import Refusal
from support.cluster.manifests import block_job_object

SPEC = CompactionJob.from_object(block_job_object(level=1)).spec


@dataclass
class Store:
    """Knows token 6 of the job, and answers a claim with an error or not at all."""

    error: CompactionError | None = None
    claimed: list[tuple[str, int]] = field(default_factory=list)

    def high_water(self, lane: str, job: str) -> int:
        assert (lane, job) == (SPEC.lane, "job-1")
        return 6

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        if self.error is not None:
            raise self.error
        self.claimed.append((spec.lane, token))


def answer(error: CompactionError | None = None, *, lease: int = 0, status: int = 0) -> int | Refused | None:
    known = CompactionJobStatus(fencing_token=status)
    action = AssignJob(Identity("job-1", "uid", "7"), "w-1", SPEC, known, 1, None, lease, 15)
    return claim(cast(StoreAdapter, Store(error)), action)


def refused(reason: Refusal) -> ClaimRefusedError:
    return ClaimRefusedError("job-1", reason, "why")


@pytest.mark.parametrize(("lease", "status", "token"), [(0, 0, 7), (9, 0, 10), (0, 8, 9)])
def test_the_token_is_larger_than_any_that_is_known(lease: int, status: int, token: int) -> None:
    assert answer(lease=lease, status=status) == token


def test_a_larger_token_in_the_store_means_that_somebody_else_was_here() -> None:
    assert answer(StaleTokenError("index", "job-1", 7, 9)) is None


@pytest.mark.parametrize("reason", sorted(set(Refusal) - {Refusal.SOURCE_CLAIMED, Refusal.JOB_HELD}))
def test_what_the_index_refuses_is_refused_for_ever(reason: Refusal) -> None:
    found = answer(refused(reason))
    assert isinstance(found, Refused)
    assert (found.reason, found.terminal) == (WaitReason.STORE_ERROR, True)


def test_a_log_whose_owner_runs_is_waited_for_under_its_own_reason() -> None:
    found = answer(OwnerRunningError("/ra/a", "the log's owner runs"))
    assert isinstance(found, Refused)
    assert (found.reason, found.terminal) == (WaitReason.OWNER_RUNNING, False)


@pytest.mark.parametrize("reason", [Refusal.SOURCE_CLAIMED, Refusal.JOB_HELD])
def test_blocks_of_another_job_are_waited_for(reason: Refusal) -> None:
    found = answer(refused(reason))
    assert isinstance(found, Refused)
    assert (found.reason, found.terminal) == (WaitReason.LOG_BUSY, False)


@pytest.mark.parametrize(
    ("error", "reason", "terminal"),
    [
        (IndexUnavailableError("index", "gone for a minute"), WaitReason.STORE_ERROR, False),
        (LockHeldError("/ra/a", "somebody", 1), WaitReason.LOCK_HELD, False),
        (NotALogDirectoryError("/ra/a", "no segments"), WaitReason.STORE_ERROR, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_errors(error: CompactionError, reason: WaitReason, terminal: bool) -> None:
    found = answer(error)
    assert isinstance(found, Refused)
    assert (found.reason, found.terminal) == (reason, terminal)
