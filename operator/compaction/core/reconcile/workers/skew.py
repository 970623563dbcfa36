"""Workers of another version than the operator: said, never acted upon.

An upgrade of the operator meets workers of the version before, which end when they are idle: the condition comes and
goes by itself. It stays when the image of workers was not upgraded as well. Jobs run in either case: what the two
exchange (Leases, receipts) is read by both, and the store refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from compaction.api.conditions import Conditions, get_condition, remove_condition, set_condition
from compaction.api.enums import ConditionType
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.observations import PolicySnapshot, WorkerLease

REASON: Final = "OtherVersion"


def skewed(snapshot: PolicySnapshot) -> tuple[WorkerLease, ...]:
    """The workers that live and say another version; one that says none is not judged."""
    if not snapshot.version:
        return ()
    return tuple(one for one in snapshot.workers if one.is_live and one.version not in {"", snapshot.version})


def with_skew(conditions: Conditions, message: str, *, observed_generation: int, now: datetime) -> Conditions:
    """The conditions with WorkerVersionSkew as long as there is something to say about it."""
    if not message:
        return remove_condition(conditions, ConditionType.WORKER_VERSION_SKEW)
    return set_condition(
        conditions,
        type=ConditionType.WORKER_VERSION_SKEW,
        status=True,
        reason=REASON,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def announced(before: Conditions, after: Conditions) -> Iterable[Announce]:
    """One Event when other versions appear, and when they are others than before."""
    old = get_condition(before, ConditionType.WORKER_VERSION_SKEW)
    new = get_condition(after, ConditionType.WORKER_VERSION_SKEW)
    if new is not None and (old is None or old.message != new.message):
        yield Announce(ConditionType.WORKER_VERSION_SKEW.value, new.message, warning=True)


def skew_of(snapshot: PolicySnapshot) -> str:
    """What to tell about the workers' versions; empty without a difference. The same for any number of workers, so that
    the status is not written again for each that comes or goes.
    """
    versions = ", ".join(sorted({worker.version for worker in skewed(snapshot)}))
    if not versions:
        return ""
    version = snapshot.version
    return (
        f"workers of version {versions} run beside an operator of version {version}: their jobs go on, and they end "
        f"when they are idle. If new ones are of that version as well, set spec.workers.image of the policy, or "
        f"COMPACTION_WORKER_IMAGE of the operator, to the worker image of version {version}"
    )
