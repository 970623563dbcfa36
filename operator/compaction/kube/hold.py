"""The hold of an operator, a Lease beside the coordinator's: created by a user, read by the coordinator, deleted to end
it (docs/control-plane.md).

A Lease, because the operator may read it without another permission, because it outlives every replica, and because it
says by itself who holds since when. It exists or it does not: nothing expires, whatever its duration says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from compaction.api.names import (
    ANNOTATION_HOLD_DRAIN,
    ANNOTATION_HOLD_REASON,
    HOLD_LEASE,
    LABEL_COMPONENT,
)
from compaction.api.text.printing import cut, printable
from compaction.core.reconcile.observations import Hold
from compaction.errors import ApiError, MalformedLeaseError, NotFoundError
from compaction.kube.client.api import LEASES, ApiClient
from compaction.kube.client.transport import Obj
from compaction.leases.record import Lease, LeaseRecord

if TYPE_CHECKING:
    from compaction.kube.metrics.registry import Metrics

COMPONENT_HOLD: Final = "hold"
LONGEST_REASON: Final = 512
"""Characters of the reason in a status: room is left for what else the message says."""
READ_EVERY: Final = 2.0
"""Seconds between two reads: so much later at most does the coordinator know of a hold, or of its end."""
_NO_REASON: Final = "no reason is given"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""A Lease without a time may have been there for any time: the alert fires."""


def hold_of(body: Obj) -> Hold:
    """The hold that a Lease of that name is; one that cannot be read holds as well, because it was created to."""
    annotations = body["metadata"].get("annotations") or {}
    reason = cut(printable(str(annotations.get(ANNOTATION_HOLD_REASON) or _NO_REASON)), LONGEST_REASON)
    drain = annotations.get(ANNOTATION_HOLD_DRAIN) == "true"
    try:
        record = Lease.parse(body).record
    except MalformedLeaseError:
        return Hold(reason, drain=drain)
    return Hold(reason, by=cut(printable(record.holder or ""), LONGEST_REASON), since=record.acquire_time, drain=drain)


def lease_of(hold: Hold, namespace: str) -> Lease:
    """The Lease that says it. It has none of the labels by which the operator finds Leases of workers and jobs."""
    annotations = {ANNOTATION_HOLD_REASON: hold.reason} | ({ANNOTATION_HOLD_DRAIN: "true"} if hold.drain else {})
    record = LeaseRecord(hold.by or None, acquire_time=hold.since, renew_time=hold.since)
    labels = {LABEL_COMPONENT: COMPONENT_HOLD}
    return Lease(HOLD_LEASE, namespace, record, labels=labels, annotations=annotations)


async def read_hold(client: ApiClient, namespace: str) -> Hold | None:
    """The hold of the operator in that namespace, None without one. Raises ApiError: no answer is not "no hold"."""
    try:
        return hold_of(await client.get(LEASES, HOLD_LEASE, namespace=namespace))
    except NotFoundError:
        return None


class HoldWatch:
    """The hold as the coordinator knows it. Owned by a term: nothing is decided before it was read once."""

    def __init__(self, client: ApiClient, namespace: str, *, metrics: Metrics) -> None:
        self._client = client
        self._namespace = namespace
        self._metrics = metrics
        self.hold: Hold | None = None
        self.on_change: Callable[[], None] = lambda: None

    async def read(self) -> None:
        """Read it, and tell of a change. Raises ApiError."""
        before, self.hold = self.hold, await read_hold(self._client, self._namespace)
        self._metrics.held_since = None if self.hold is None else self.hold.since or _LONG_AGO
        if self.hold != before:
            _log.warning("the hold has changed", hold=self.hold.said if self.hold is not None else "released")
            self.on_change()

    async def forever(self) -> None:
        """Read it every now and then; while nothing answers the last word stands."""
        failing = False
        while True:
            await asyncio.sleep(READ_EVERY)
            try:
                await self.read()
            except ApiError as error:
                # Said once: an API server that is away is news of the informer, too. A refusal is news of this alone.
                if not failing:
                    _log.warning("the hold cannot be read; what was read last stands", error=str(error))
                failing = True
            else:
                failing = False


_log = structlog.get_logger(__name__)
