"""Claims of the adapter of a block store: its own, with signs of life, those of others, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from compaction.blocks.errors import BlockClaimError, BlockStoreError
from compaction.blocks.index.claims import STRAY_CLAIM, IndexRefusal, JobRecord, Sign, renew, sign_of, sign_out
from compaction.blocks.store import BlockStore
from compaction.errors import ClaimRefusal, ClaimRefusedError
from compaction.storage.errors import StorageError
from compaction.storage.opened import Holder, ThisProcess

# Refusals of a claim by the index, in the words of every store.


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


# The signs of life of a local run, from a thread of its own.

log = structlog.get_logger(__name__)

RENEW_EVERY: Final = 10.0
"""Seconds; several renewals may fail before the lease is over."""


class HolderHeartbeat:
    """Renews a holder's lease from a thread of its own, from `start` to `stop`.

    Args:
        renew: one sign of life; what it raises of the store is logged, and it is called again.
        every: seconds.
    """

    def __init__(self, renew: Callable[[], None], *, every: float = RENEW_EVERY) -> None:
        self._renew = renew
        self._every = every
        self._ended = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun before."""
        with self._starting:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="holder", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End; returns when no renewal is under way."""
        self._ended.set()
        with self._starting:
            if self._thread is not None:
                self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._renew()
            except (BlockStoreError, StorageError) as error:
                # The claims stand until the lease of the holder is over: the next round tries again before.
                log.warning("no sign of life could be given", error=str(error))


# The claims that the adapter of a store answers for: its own, with signs of life, and strays of others.


class BlockClaims:
    """Remembers which jobs were heard of. `here`: the process that claims; None for a cluster's coordinator."""

    def __init__(self, here: ThisProcess | None) -> None:
        self._here = here
        self._known: set[str] = set()

    @property
    def holder(self) -> Holder | None:
        """The holder that claims jobs; None in a place without processes of its own."""
        return None if self._here is None else self._here.holder

    def hear_of(self, jobs: Collection[str]) -> None:
        """There are such jobs."""
        self._known.update(jobs)

    def retire_strays(self, store: BlockStore, jobs: Collection[str], *, waited: float) -> None:
        """Give up the claims of jobs that are not among `jobs`: those that were deleted while they had one would keep
        their blocks for ever, and so would those of processes that died. `waited`: microseconds since `jobs` were
        counted. Raises DatabaseError.
        """
        now = store.now()
        claimed = store.open_jobs()
        for record in claimed:
            if record.job not in jobs and self._is_stray(record, age=now - record.changed_at, waited=waited):
                log.warning("the claim of a deleted job is released", job=record.job, token=record.token)
                store.retire(record.job, token=record.token)
        self._known &= {*jobs, *(record.job for record in claimed)}

    def renew(self, store: BlockStore) -> None:
        """A sign of life. Raises DatabaseError."""
        if self._here is not None:
            renew(store.index, self._here.holder.id)

    def sign_out(self, store: BlockStore) -> None:
        """This process claims nothing more; what cannot be written down now is forgotten by housekeeping."""
        if self._here is None:
            return
        try:
            sign_out(store.index, self._here.holder.id)
        except (BlockStoreError, StorageError) as error:
            # Other processes see the end without it: by the process that is gone, or by the silence of the holder.
            log.info("the end of this process is not written down", error=str(error))

    def _is_stray(self, record: JobRecord, *, age: int, waited: float) -> bool:
        """Return whether no process works on the job. A claim younger than the count of jobs belongs to a job that was
        not counted.
        """
        if age > waited and record.job in self._known:
            return True
        sign = sign_of(record.holder, self._here)
        # What no process has claimed is a coordinator's: another one may give it up, a local run does not.
        return sign.is_gone or (sign is Sign.UNKNOWN and self._here is None and age > STRAY_CLAIM)
