"""A job's claim in its store: the token of the next attempt. Blocking; run it in a thread."""

from __future__ import annotations

from compaction.api.enums import WaitReason
from compaction.exceptions import ClaimRefusal, ClaimRefusedError, CompactionError, StaleTokenError
from compaction.leases.tokens import next_token
from compaction.reconcile.actions import AssignJob
from compaction.reconcile.jobs.claims import Refused
from compaction.reconcile.jobs.job import token_of
from compaction.stores.adapter import StoreAdapter

_WAITS = {
    ClaimRefusal.BUSY: WaitReason.TARGET_BUSY,
    ClaimRefusal.GONE: WaitReason.STORE_ERROR,
    ClaimRefusal.ERROR: WaitReason.STORE_ERROR,
}


def claim(store: StoreAdapter, action: AssignJob) -> int | Refused | None:
    """The new token, accepted by the store; why the store refused; or None when another replica claimed in between."""
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
