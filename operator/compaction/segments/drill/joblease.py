"""The coordinator's side of the drill: the scratch job's Lease, made, watched, handed on and deleted.

The Lease carries no policy's label, so that no operator takes it for one of its own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from compaction.api.names import COMPONENT_DRILL, LABEL_COMPONENT, LABEL_MANAGED_BY, MANAGED_BY
from compaction.errors import ConflictError, NotFoundError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.resources import LEASES
from compaction.kube.errors import MissingPermissionsError
from compaction.kube.replica.preflight import Permission, missing_permissions
from compaction.leases.observer import LeaseObserver
from compaction.leases.record import Lease, LeaseRecord

VERBS: Final = ("get", "create", "update", "delete")
_LOOKS_PER_LEASE: Final = 20


@dataclass(slots=True)
class DrillLease:
    """One Lease, named like the scratch job."""

    client: ApiClient
    namespace: str
    name: str
    seconds: int

    async def check_permissions(self) -> None:
        """Raises MissingPermissionsError that lists what is missing and how to grant it."""
        needed = tuple(Permission(verb, LEASES, self.namespace) for verb in VERBS)
        missing = await missing_permissions(self.client, needed)
        if missing:
            raise MissingPermissionsError(
                f"this account may not: {'; '.join(map(str, missing))}. The drill needs {', '.join(VERBS)} on leases "
                f"in coordination.k8s.io and nothing else: kubectl create role fencing-drill --namespace="
                f"{self.namespace} --verb={','.join(VERBS)} --resource=leases.coordination.k8s.io, and bind it"
            )

    async def create(self, *, holder: str, token: int) -> None:
        """Give the job to its first attempt."""
        now = datetime.now(UTC)
        lease = Lease(
            name=self.name,
            namespace=self.namespace,
            record=LeaseRecord(holder, self.seconds, token, acquire_time=now, renew_time=now),
            labels={LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_DRILL},
        )
        await self.client.create(LEASES, lease.body())

    async def until_expired(self) -> tuple[Lease, float]:
        """Wait until the holder was silent for its lease, by the coordinator's rule: (Lease, seconds of silence)."""
        observer: LeaseObserver[str] = LeaseObserver()
        while True:
            lease = await self.read()
            observer.observe(self.name, lease.record)
            seen = observer.last(self.name)
            if observer.expired(self.name) and seen is not None:
                return lease, time.monotonic() - seen.changed_at
            await asyncio.sleep(self.seconds / _LOOKS_PER_LEASE)

    async def hand_on(self, lease: Lease, *, holder: str, token: int) -> bool:
        """Give the job to another attempt; False when the Lease has changed since it was read."""
        now = datetime.now(UTC)
        record = lease.record.acquired(holder, transitions=token, duration_seconds=self.seconds, now=now)
        try:
            await self.client.replace(LEASES, lease.with_record(record).body())
        except ConflictError:
            return False
        return True

    async def read(self) -> Lease:
        """The Lease as it is now."""
        return Lease.parse(await self.client.get(LEASES, self.name, namespace=self.namespace))

    async def delete(self) -> None:
        """Delete it if it is there; its name was made for this drill alone."""
        try:
            await self.client.delete(LEASES, self.name, namespace=self.namespace)
        except NotFoundError:
            return
