"""The steps that give a job to a worker, in the order that makes every crash harmless, and what came of a decision.

Token, claim in the store, Lease, status. A crash after the claim costs a token; one after the Lease is adopted by the
next reconcile, because the Lease's token is larger than the status knows; and the store takes commits of the last
claim only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from compaction.api.enums import WaitReason
from compaction.api.job.resource import CompactionJobStatus
from compaction.api.names import (
    ANNOTATION_BYTES_PER_SECOND,
    API_VERSION,
    COMPONENT_JOB,
    JOB_KIND,
    LABEL_WORKER,
    child_labels,
)
from compaction.exceptions import (
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
)
from compaction.kube.client.resources import COMPACTION_JOBS, LEASES
from compaction.kube.executor.claiming import claim
from compaction.kube.executor.writes import GuardedWrites
from compaction.kube.informer.cache import ObjectKey
from compaction.leases.record import Lease, LeaseRecord
from compaction.reconcile.actions import AssignJob
from compaction.reconcile.jobs.claims import Refused
from compaction.reconcile.jobs.job import assigned
from compaction.reconcile.observations import Identity, Moment
from compaction.stores.adapter import StoreAdapter

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Outcome:
    """What carrying a decision out came to. `stale`: something had changed, decide again at once.

    `claims` are jobs whose claim was refused; `failed_jobs` are jobs whose write did not happen. `launch_errors` are
    messages; `not_launched` are the workers that were certainly not started.
    """

    stale: bool = False
    plan_failed: bool = False
    status_failed: bool = False
    claims: dict[str, Refused] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    launch_errors: list[str] = field(default_factory=list)
    not_launched: set[str] = field(default_factory=set)
    failed_jobs: set[str] = field(default_factory=set)


class AssignmentSteps:
    """Assigns the jobs of one policy."""

    def __init__(
        self,
        api: GuardedWrites,
        key: ObjectKey,
        *,
        store_of: Callable[[], StoreAdapter | None],
        now: Moment,
        outcome: Outcome,
        owners: Callable[[Identity], tuple[str, ...]],
    ) -> None:
        self._api = api
        self._key = key
        self._store_of = store_of
        self._now = now
        self._owners = owners
        self.outcome = outcome

    async def assign(self, action: AssignJob) -> None:
        """Token, claim, Lease, status; stops where the world has moved on, with the reason in the outcome."""
        name = action.job.name
        if not await self._api.holds(action.premise, owners=self._owners(action.job)):
            self.outcome.failed_jobs.add(name)
            return
        if not self._api.serves(action.worker):
            # It has left since the picture was taken, as idle workers do: another one gets the job, with this token.
            self.outcome.stale = True
            self.outcome.failed_jobs.add(name)
            return
        token = await self._claim(action)
        if token is None:
            self.outcome.failed_jobs.add(name)
            return
        if not await self._put_lease(action, token):
            self.outcome.failed_jobs.add(name)
            return
        status = assigned(
            action.status,
            token=token,
            worker=action.worker,
            now=self._now,
            generation=action.generation,
            bytes_per_second=action.bytes_per_second,
        )
        # Should this write fail, the Lease's larger token tells the next reconcile that the job is assigned.
        if await self.write_status(action.job, status):
            log.info("job assigned", job=name, token=token, worker=action.worker)

    async def _claim(self, action: AssignJob) -> int | None:
        """The new token, accepted by the store; None when the store refused, with the reason in the outcome."""
        store, name = self._store_of(), action.job.name
        if store is None:
            return None
        answer = await asyncio.to_thread(claim, store, action)
        if isinstance(answer, Refused):
            self.outcome.claims[name] = answer
            return None
        if answer is None:
            self.outcome.stale = True  # another coordinator was here between the two calls
            return None
        self.outcome.claimed.add(name)
        return answer

    async def _put_lease(self, action: AssignJob, token: int) -> bool:
        now = self._now.time
        known = action.lease
        lease = Lease(
            name=action.job.name,
            namespace=self._key.namespace,
            record=LeaseRecord(action.worker, action.duration, token, acquire_time=now, renew_time=now),
            uid=known.uid if known is not None else None,
            resource_version=known.resource_version if known is not None else None,
            labels={**child_labels(policy=self._key.name, component=COMPONENT_JOB), LABEL_WORKER: action.worker},
            annotations=_granted(action),
            owner_references=(owner(JOB_KIND, action.job.name, action.job.uid),),
        )
        try:
            if known is None:
                answer = await self._api.client.create(LEASES, lease.body())
            else:
                answer = await self._api.client.replace(LEASES, lease.body())
        except AlreadyExistsError:
            await self._name_taken(action)
            return False
        except (ConflictError, NotFoundError):
            await self._api.moved_on(LEASES, action.job.name)
            return False
        except ApiUnavailableError:
            # It may have happened. Unseen, the next decision would claim a larger token under a job that runs.
            await self._api.refresh(LEASES, action.job.name)
            raise
        self._api.take(LEASES, answer)
        return True

    async def _name_taken(self, action: AssignJob) -> None:
        """A Lease of the job's name that the picture did not have: the job's own, or another object's for good."""
        name = action.job.name
        found = await self._api.refresh(LEASES, name)
        if found is None or self._api.is_visible(found):
            self._api.stale = True  # the cache had lagged
        elif await self._api.delete_invisible(found, owners=(action.job.uid,)):
            self._api.stale = True
        else:
            message = f"Lease {name} belongs to something else: delete it, or make the job under another name"
            self.outcome.claimed.discard(name)
            self.outcome.claims[name] = Refused(WaitReason.LEASE_NAME_TAKEN, message)

    async def write_status(self, job: Identity, status: CompactionJobStatus) -> bool:
        """Write a job's status; False when that did not happen."""
        done = await self._api.write_status(COMPACTION_JOBS, job, status.to_object())
        if not done:
            self.outcome.failed_jobs.add(job.name)
        return done


def _granted(action: AssignJob) -> dict[str, str]:
    given = action.bytes_per_second
    return {} if given is None else {ANNOTATION_BYTES_PER_SECOND: str(given)}


def owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    """An ownerReference to the object of ours that manages another."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
