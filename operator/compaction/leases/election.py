"""Coordinator election: client-go's semantics on one Lease (docs/design/leases-and-tokens.md#election).

`Election` is the algorithm: one `step()` at a time, against a three-verb port, with both clocks passed in. It holds no
thread and no sleep, so it is tested with a fake clock; `elector.py` runs it in a thread of its own.

Invariants: the deadline counts from the moment a successful write was *sent*; a term that ended is never resumed by the
same object; every takeover increments `leaseTransitions`.
"""

import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

import structlog

from compaction.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from compaction.leases.record import Lease, LeaseObserver, LeaseRecord

_JITTER: Final = 1.2


def leader_clock() -> float:
    """Seconds that go on while the machine sleeps: a leader that slept through its lease must know it on waking."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def make_identity() -> str:
    """`<host>_<pid>_<uuid>`: unique per process, so a restart never looks like the leader it replaces."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Times in seconds. Raises ValueError unless lease > renew deadline > 1.2 x retry period > 0."""

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > _JITTER * self.retry_period > 0:
            raise ValueError(
                f"election times must satisfy lease duration > renew deadline > {_JITTER} x retry period > 0; got "
                f"{self.lease_duration} s, {self.renew_deadline:g} s, {self.retry_period:g} s"
            )

    @property
    def call_deadline(self) -> float:
        """Longest wait for one API call: three tries fit into the renew deadline."""
        return self.renew_deadline / 3


class ElectionPort(Protocol):
    """The part of the API server that an election needs. Every method may raise ApiError."""

    async def get(self) -> Lease:
        """Raises NotFoundError."""
        ...

    async def create(self, record: LeaseRecord) -> Lease:
        """Raises AlreadyExistsError."""
        ...

    async def replace(self, lease: Lease) -> Lease:
        """Compare-and-set on the lease's resourceVersion. Raises ConflictError."""
        ...


class ElectionState(StrEnum):
    """The state of this candidate in the election."""

    FOLLOWER = "Follower"
    LEADER = "Leader"
    LOST = "Lost"  # was leader; final


class Election:
    """One candidate's run for one Lease. `step()` from one task only; `is_leader()` and the rest from any thread."""

    def __init__(
        self,
        port: ElectionPort,
        *,
        identity: str,
        settings: ElectionSettings,
        clock: Callable[[], float] = leader_clock,
        observer_clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self._port = port
        self._clock = clock
        self._now = now
        self._rng = rng or random.Random()
        self._observer: LeaseObserver[str] = LeaseObserver(
            default_duration=settings.lease_duration, clock=observer_clock
        )
        self._lease: Lease | None = None  # as of our last read or write
        self._standing = ElectionState.FOLLOWER
        self._sent_at = float("-inf")  # when the last successful renewal was sent, on `clock`
        self.stepped_at = clock()  # for the watchdog
        self.tried_at = float("-inf")  # when a renewal was sent last, whatever became of it
        self.trouble = ""  # why the last request failed; empty since one succeeded
        self.epoch = -1

    # -- asked from any thread ----------------------------------------------------------------------------------------

    @property
    def standing(self) -> ElectionState:
        """Leader only while the deadline holds, whether or not anybody was awake to notice."""
        if self._standing is ElectionState.LEADER and self._clock() >= self.deadline:
            return ElectionState.LOST
        return self._standing

    def is_leader(self) -> bool:
        """True while no other replica can have been elected."""
        return self.standing is ElectionState.LEADER

    @property
    def deadline(self) -> float:
        """Leadership ends here unless renewed (on the leader's clock)."""
        return self._sent_at + self.settings.renew_deadline

    @property
    def takeover_at(self) -> float:
        """The earliest moment at which another replica may lead (on the leader's clock)."""
        return self._sent_at + self.settings.lease_duration

    @property
    def holder(self) -> str | None:
        """The holder of the coordinator's Lease, as last seen."""
        return self._lease.record.holder if self._lease is not None else None

    @property
    def unrenewed_for(self) -> float:
        """Seconds since the last successful renewal was sent."""
        return self._clock() - self._sent_at

    @property
    def lease_name(self) -> str:
        """Namespace and name of the Lease; empty before it was seen."""
        return f"{self._lease.namespace}/{self._lease.name}" if self._lease is not None else ""

    # -- the algorithm ------------------------------------------------------------------------------------------------

    async def step(self) -> float:
        """One read or one renewal; returns the seconds to sleep before the next. API errors are logged, not raised."""
        try:
            if self._standing is ElectionState.LEADER:
                await self._renew()
            elif self._standing is ElectionState.FOLLOWER:
                await self._try_acquire()
        except ApiError as error:
            # No reason to end a term: only the deadline below is, whatever keeps the renewals from getting through.
            self.trouble = str(error)
            _log.warning("election: the request to the API server failed", error=str(error), standing=self.standing)
        if self._standing is ElectionState.LEADER and self._clock() >= self.deadline:
            trouble = f"; last error: {self.trouble}" if self.trouble else ""
            self._lose(f"not renewed for {self.unrenewed_for:.1f} s, the renew deadline passed{trouble}")
        self.stepped_at = self._clock()
        return self._pause()

    async def release(self) -> bool:
        """Give the Lease up for others to take at once; True when that was written. Only after all guarded work."""
        if self._standing is not ElectionState.LEADER or self._lease is None:
            return False
        self._standing = ElectionState.LOST  # first: from here on nothing may believe it leads
        lease = self._lease
        # A conflict is most likely our own renewal whose answer was lost: read, and release what is there if it is
        # ours.
        for _ in range(3):
            try:
                await self._port.replace(lease.with_record(lease.record.released(now=self._now())))
            except ConflictError:
                lease = await self._port.get()
                if lease.record.holder != self.identity:
                    return False
            else:
                return True
        return False

    async def _try_acquire(self) -> None:
        try:
            lease = await self._port.get()
        except NotFoundError:
            await self._create()
            return
        self._lease = lease
        self._observer.observe("lease", lease.record)
        if lease.record.holder == self.identity:
            # Our own earlier write whose answer got lost. It was sent before this read, but how long before is unknown:
            # renewing it now starts a term with a known beginning.
            await self._take(lease, lease.record.transitions)
            return
        if not self._observer.expired("lease"):
            return
        # Its holder may be alive and late: then its renewal changes the version, and this takeover is a conflict.
        await self._take(lease, lease.record.transitions + 1)

    async def _create(self) -> None:
        sent_at = self._clock()
        try:
            lease = await self._port.create(self._term(0))
        except AlreadyExistsError:
            # A rival was faster: the next step reads its Lease, and observes it from then on.
            return
        self._win(lease, sent_at)

    async def _take(self, lease: Lease, transitions: int) -> None:
        sent_at = self._clock()
        try:
            taken = await self._port.replace(lease.with_record(self._term(transitions)))
        except (ConflictError, NotFoundError):
            # Renewed, taken by a rival or deleted since it was read: the next step reads it again.
            return
        self._win(taken, sent_at)

    def _term(self, transitions: int) -> LeaseRecord:
        return LeaseRecord().acquired(
            self.identity,
            transitions=transitions,
            duration_seconds=self.settings.lease_duration,
            now=self._now(),
        )

    async def _renew(self) -> None:
        if await self._put_renewal():
            return
        # The write conflicted with an earlier one of ours whose answer got lost, with a bystander's, or with a rival's.
        try:
            self._lease = await self._port.get()
        except NotFoundError:
            # Never created again by a leader: a rival may do so at the same time, and both would lead.
            self._lose("the Lease was deleted")
            return
        if self._lease.record.holder != self.identity:
            self._lose(f"{self._lease.record.holder or 'nobody'} holds the Lease")
            return
        await self._put_renewal()

    async def _put_renewal(self) -> bool:
        """True unless the write conflicted; nothing is sent when it would come too late."""
        assert self._lease is not None, "a leader knows its Lease"
        sent_at = self._clock()
        if sent_at >= self.deadline:
            return True  # the term is over; a renewal now would pretend otherwise
        self.tried_at = sent_at
        try:
            renewed = await self._port.replace(self._lease.with_record(self._lease.record.renewed(now=self._now())))
        except (ConflictError, NotFoundError):
            return False
        self._sent_at, self._lease = sent_at, renewed
        self.trouble = ""
        return True

    def _win(self, lease: Lease, sent_at: float) -> None:
        self._lease, self._sent_at, self.epoch = lease, sent_at, lease.record.transitions
        self._standing, self.trouble = ElectionState.LEADER, ""
        _log.info("elected", identity=self.identity, epoch=self.epoch)

    def _lose(self, why: str) -> None:
        self._standing = ElectionState.LOST
        _log.error("leadership lost", lease=self.lease_name, identity=self.identity, epoch=self.epoch, why=why)

    def _pause(self) -> float:
        period = self.settings.retry_period
        if self._standing is ElectionState.LEADER:
            now = self._clock()
            # A call that was cut off has taken longer than the period: the next is due, or fewer fit in the deadline.
            due = self.tried_at + period if self.trouble else now + period
            return max(0.0, min(due, self.deadline) - now)
        # Spread followers out, so that they do not all meet on the server in the moment a leader goes away.
        return period * (1.0 + self._rng.uniform(0.0, _JITTER))


_log = structlog.get_logger(__name__)
