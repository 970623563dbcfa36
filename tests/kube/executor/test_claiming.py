"""What a store's answer to a claim means for the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import cast

import pytest

from compaction.api.enums import WaitReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec, CompactionJobStatus
from compaction.blocks.claiming import claiming as of_blocks
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import IndexRefusal
from compaction.core.reconcile.actions import AssignJob
from compaction.core.reconcile.jobs.job import ClaimRefused
from compaction.core.reconcile.observations import OperatorIdentity
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError, StaleTokenError, TokenExhaustedError
from compaction.kube.executor.executor import claim
from compaction.segments.adapter import claiming as of_logs
from compaction.segments.errors import (
    LockHeldError,
    LogPathError,
    NotALogDirectoryError,
    OwnerRunningError,
    StaleLogTokenError,
)
from compaction.storage.adapter import StoreAdapter
from compaction.storage.errors import DatabaseUnavailableError, SecretError
from support.cluster.manifests import block_job_object

SPEC = CompactionJob.from_object(block_job_object(level=1)).spec


@dataclass
class Store:
    """Knows token 6 of the job, and answers a claim with an error or not at all."""

    error: CompactionError | None = None
    claimed: list[tuple[str, int]] = field(default_factory=list)

    def high_water(self, target: str, job: str) -> int:
        assert (target, job) == (SPEC.target, "job-1")
        return 6

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        if self.error is not None:
            raise self.error
        self.claimed.append((spec.target, token))


def answer(error: CompactionError | None = None, *, lease: int = 0, status: int = 0) -> int | ClaimRefused | None:
    known = CompactionJobStatus(fencing_token=status)
    action = AssignJob(OperatorIdentity("job-1", "uid", "7"), "w-1", SPEC, known, 1, None, lease, 15)
    return claim(cast(StoreAdapter, Store(error)), action)


def refused(refusal: ClaimRefusal, *, wait: str = "") -> ClaimRefusedError:
    return ClaimRefusedError(refusal, "why", wait)


@pytest.mark.parametrize(("lease", "status", "token"), [(0, 0, 7), (9, 0, 10), (0, 8, 9)])
def test_the_token_is_larger_than_any_that_is_known(lease: int, status: int, token: int) -> None:
    assert answer(lease=lease, status=status) == token


def test_a_larger_token_in_the_store_means_that_somebody_else_was_here() -> None:
    assert answer(StaleTokenError("index", "job-1", 7, 9)) is None


@pytest.mark.parametrize(
    ("refusal", "reason", "terminal"),
    [
        (ClaimRefusal.BUSY, WaitReason.TARGET_BUSY, False),
        (ClaimRefusal.GONE, WaitReason.STORE_ERROR, True),
        (ClaimRefusal.ERROR, WaitReason.STORE_ERROR, False),
    ],
)
def test_what_a_refusal_means_for_the_job(refusal: ClaimRefusal, reason: WaitReason, terminal: bool) -> None:
    found = answer(refused(refusal))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.message, found.terminal) == (reason, "why", terminal)


def test_a_kind_may_have_a_word_of_its_own_for_the_wait() -> None:
    found = answer(refused(ClaimRefusal.BUSY, wait="LockHeld"))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.terminal) == ("LockHeld", False)


def test_any_other_error_is_tried_again() -> None:
    found = answer(TokenExhaustedError("the job has had every token there is"))
    assert isinstance(found, ClaimRefused)
    assert (found.reason, found.terminal) == (WaitReason.STORE_ERROR, False)


# --- what the adapters say -------------------------------------------------------------------------------------------


def said(claiming: Callable[[], AbstractContextManager[None]], error: CompactionError) -> ClaimRefusedError:
    with pytest.raises(ClaimRefusedError) as caught, claiming():
        raise error
    return caught.value


@pytest.mark.parametrize(
    "reason",
    sorted(set(IndexRefusal) - {IndexRefusal.SOURCE_CLAIMED, IndexRefusal.JOB_HELD, IndexRefusal.JOB_COMMITTED}),
)
def test_what_the_index_refuses_is_refused_for_ever(reason: IndexRefusal) -> None:
    assert said(of_blocks, BlockClaimError("job-1", reason, "why")).refusal is ClaimRefusal.GONE


def test_a_committed_job_is_claimed_no_more_and_that_is_no_error() -> None:
    with of_blocks():
        raise BlockClaimError("job-1", IndexRefusal.JOB_COMMITTED, "why")


@pytest.mark.parametrize("reason", [IndexRefusal.SOURCE_CLAIMED, IndexRefusal.JOB_HELD])
def test_blocks_of_another_job_are_waited_for(reason: IndexRefusal) -> None:
    assert said(of_blocks, BlockClaimError("job-1", reason, "why")).refusal is ClaimRefusal.BUSY


@pytest.mark.parametrize(
    ("claiming", "error", "refusal", "wait"),
    [
        (of_blocks, DatabaseUnavailableError("index", "gone"), ClaimRefusal.ERROR, ""),
        (of_blocks, SecretError("s", "", "gone"), ClaimRefusal.ERROR, ""),
        (of_logs, OwnerRunningError("/a", "runs"), ClaimRefusal.BUSY, "OwnerRunning"),
        (of_logs, LockHeldError("/a", "b", 1), ClaimRefusal.BUSY, "LockHeld"),
        (of_logs, NotALogDirectoryError("/a", "none"), ClaimRefusal.GONE, ""),
        (of_logs, LogPathError("/a", "no space"), ClaimRefusal.ERROR, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_errors(
    claiming: Callable[[], AbstractContextManager[None]],
    error: CompactionError,
    refusal: ClaimRefusal,
    wait: str,
) -> None:
    found = said(claiming, error)
    assert (found.refusal, found.wait, found.message) == (refusal, wait, str(error))


@pytest.mark.parametrize("claiming", [of_blocks, of_logs])
def test_a_stale_token_stays_what_it_is(claiming: Callable[[], AbstractContextManager[None]]) -> None:
    with pytest.raises(StaleTokenError), claiming():
        raise StaleLogTokenError("/ra/a", "job-1", 7, 9)
