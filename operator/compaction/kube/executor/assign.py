"""The steps that assign a job to a worker, in the order that makes every crash harmless.

Token, claim in the store, Lease, status. A crash after the claim costs a token; one after the Lease is adopted by the
next reconcile, because the Lease's token is larger than the status knows; and the store takes commits of the last
claim only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from compaction.api.enums import WaitReason
from compaction.core.reconcile.actions import AssignJob
from compaction.core.reconcile.jobs.claims import Refused
from compaction.core.reconcile.jobs.job import assigned, token_of
from compaction.core.reconcile.observations import Moment
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError, StaleTokenError
from compaction.kube.executor.outcome import ExecutionResult
from compaction.kube.executor.ports import PolicyObjects
from compaction.leases.tokens import next_token
from compaction.storage.adapter import StoreAdapter

log = structlog.get_logger(__name__)

_WAITS = {
    ClaimRefusal.BUSY: WaitReason.TARGET_BUSY,
    ClaimRefusal.GONE: WaitReason.STORE_ERROR,
    ClaimRefusal.ERROR: WaitReason.STORE_ERROR,
}


class AssignmentSteps:
    """Assigns the jobs of one policy."""

    def __init__(
        self,
        objects: PolicyObjects,
        *,
        store_of: Callable[[], StoreAdapter | None],
        now: Moment,
        outcome: ExecutionResult,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._objects = objects
        self._store_of = store_of
        self._now = now
        self._in_thread = in_thread
        self._outcome = outcome

    async def assign(self, action: AssignJob) -> None:
        """Token, claim, Lease, status; stops where the world has moved on, with the reason in the outcome."""
        if not await self._steps(action):
            self._outcome.failed_jobs.add(action.job.name)

    async def _steps(self, action: AssignJob) -> bool:
        if not await self._objects.holds(action.premise, action.job):
            return False
        if not self._objects.serves(action.worker):
            # It has left since the snapshot was taken, as idle workers do: another one gets the job, with this token.
            self._outcome.stale = True
            return False
        token = await self._claim(action)
        if token is None or not await self._put_lease(action, token):
            return False
        status = assigned(
            action.status,
            token=token,
            worker=action.worker,
            now=self._now,
            generation=action.generation,
            bytes_per_second=action.bytes_per_second,
        )
        # Should this write fail, the Lease's larger token tells the next reconcile that the job is assigned.
        if not await self._objects.write_job_status(action.job, status):
            return False
        log.info("job assigned", job=action.job.name, token=token, worker=action.worker)
        return True

    async def _claim(self, action: AssignJob) -> int | None:
        """The new token, accepted by the store; None when the store refused, with the reason in the outcome."""
        store, name = self._store_of(), action.job.name
        if store is None:
            return None
        answer = await self._in_thread(claim, store, action)
        if isinstance(answer, Refused):
            self._outcome.claims[name] = answer
            return None
        if answer is None:
            self._outcome.stale = True  # another coordinator was here between the two calls
            return None
        self._outcome.claimed.add(name)
        return int(answer)

    async def _put_lease(self, action: AssignJob, token: int) -> bool:
        answer = await self._objects.put_lease(action, token, self._now)
        if isinstance(answer, Refused):
            self._outcome.claimed.discard(action.job.name)
            self._outcome.claims[action.job.name] = answer
            return False
        return answer


def claim(store: StoreAdapter, action: AssignJob) -> int | Refused | None:
    """The new token, accepted by the store; why the store refused; or None when another replica claimed in between.
    Blocks.
    """
    name = action.job.name
    try:
        known = store.high_water(action.spec.target, name)
        token = next_token(action.lease_token, token_of(action.status), known)
        store.claim(action.spec, job=name, token=token)
    except StaleTokenError:
        return None
    except ClaimRefusedError as error:
        gone = error.refusal is ClaimRefusal.GONE
        return Refused(error.wait or _WAITS[error.refusal], error.message, terminal=gone)
    except CompactionError as error:
        return Refused(WaitReason.STORE_ERROR, str(error))
    return token
