"""What the index refuses a claim for, in the words of every store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compaction.blocks.errors import BlockClaimError, BlockStoreError
from compaction.blocks.index.refusals import IndexRefusal
from compaction.errors import ClaimRefusal, ClaimRefusedError
from compaction.storage.errors import StorageError


@contextmanager
def claiming() -> Iterator[None]:
    """The errors of a claim in the words of every store. A job that was committed is no error: see `StoreAdapter`."""
    try:
        yield
    except BlockClaimError as error:
        if error.reason == IndexRefusal.JOB_COMMITTED:
            return
        # Those end with the job that has it; anything else will never be the job's.
        busy = error.reason in (IndexRefusal.SOURCE_CLAIMED, IndexRefusal.JOB_HELD)
        refusal = ClaimRefusal.BUSY if busy else ClaimRefusal.GONE
        raise ClaimRefusedError(refusal, str(error)) from error
    except (BlockStoreError, StorageError) as error:
        raise ClaimRefusedError(ClaimRefusal.ERROR, str(error)) from error
