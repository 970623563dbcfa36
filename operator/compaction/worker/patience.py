"""How long the heartbeat waits for answers, derived from the duration of a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from compaction.worker.errors import PortUnavailableError
from compaction.worker.held import Clock

T = TypeVar("T")

SILENCE_LIMIT = 4
"""Lease durations without any answer after which a worker gives up: by then its jobs belong to other workers."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds for requests about leases of `lease_seconds`, on a monotonic clock."""

    lease_seconds: float
    clock: Clock

    @property
    def retry_seconds(self) -> float:
        """Pause before another try."""
        return min(1.0, self.lease_seconds / 15)

    async def pause(self) -> None:
        """Wait before another try."""
        await asyncio.sleep(self.retry_seconds)

    async def answered(self, call: Awaitable[T]) -> T:
        """One request, bounded by a third of the lease: a hung connection must leave time for another try."""
        limit = self.lease_seconds / 3
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError as error:
            raise PortUnavailableError(f"no answer within {limit:.1f} s") from error

    async def until_answered(self, call: Callable[[], Awaitable[T]], *, leases: float = 1) -> T:
        """Repeat a request for so many lease durations; then the last PortUnavailableError is raised."""
        give_up_at = self.clock() + leases * self.lease_seconds
        while True:
            try:
                return await self.answered(call())
            except PortUnavailableError:
                if self.clock() >= give_up_at:
                    raise
                await self.pause()
