"""The signs of life of a local run, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from compaction.blocks.errors import BlockStoreError
from compaction.storage.errors import StorageError

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
                log.warning("no sign of life could be given", error=str(error))
