"""A job's claim in its store: the token of the next attempt. Blocking; run it in a thread."""

from __future__ import annotations

from compaction.api.enums import WaitReason
from compaction.exceptions import (
    ClaimRefusedError,
    CompactionError,
    LockHeldError,
    NotALogDirectoryError,
    OwnerRunningError,
    StaleTokenError,
)
from compaction.leases.tokens import next_token
from compaction.reconcile.actions import AssignJob
from compaction.reconcile.claims import Refused
from compaction.reconcile.job import token_of
from compaction.stores.adapter import StoreAdapter
from compaction.stores.blocks.index.refusals import Refusal


def claim(store: StoreAdapter, action: AssignJob) -> int | Refused | None:
    """The new token, accepted by the store; why the store refused; or None when somebody else claimed in between."""
    name = action.job.name
    try:
        known = store.high_water(action.spec.lane, name)
        token = next_token(action.lease_token, token_of(action.status), known)
        store.claim(action.spec, job=name, token=token)
    except StaleTokenError:
        return None
    except OwnerRunningError as error:
        return Refused(WaitReason.OWNER_RUNNING, str(error))
    except LockHeldError as error:
        return Refused(WaitReason.LOCK_HELD, str(error))
    except ClaimRefusedError as error:
        busy = error.reason in (Refusal.SOURCE_CLAIMED, Refusal.JOB_HELD)  # until that job has ended
        return Refused(WaitReason.LOG_BUSY if busy else WaitReason.STORE_ERROR, str(error), terminal=not busy)
    except NotALogDirectoryError as error:
        return Refused(WaitReason.STORE_ERROR, str(error), terminal=True)
    except CompactionError as error:
        return Refused(WaitReason.STORE_ERROR, str(error))
    return token
