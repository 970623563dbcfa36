"""The election in a thread of its own: own event loop, own connections, and a deadman that ends the process in time.

The main loop may stall for seconds while it reconciles; that must not cost the lease
(docs/design/control-plane-traps.md#the-electors-thread). So nothing here shares anything with it but a few atomically
read numbers and the callbacks, which run in the elector's thread and must return at once (`loop.call_soon_threadsafe`,
`Event.set`).
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

import structlog

from compaction.errors import ApiError
from compaction.leases.election import Election, ElectionPort, ElectionSettings, ElectionState, leader_clock

HARD_EXIT_CODE: Final = 70
_LAST_LINE: Final = 0.2
"""Seconds that a process whose time is over may spend on saying so."""


class Elector:
    """Runs for one Lease until elected, then renews until lost or stopped. One life: it never runs a second time."""

    def __init__(
        self,
        open_port: Callable[[], AbstractAsyncContextManager[ElectionPort]],
        *,
        identity: str,
        settings: ElectionSettings,
        on_elected: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        on_renewal: Callable[[float, bool], None] = lambda seconds, ok: None,
        on_sent: Callable[[float], None] = lambda late: None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self._open_port = open_port
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._on_renewal = on_renewal
        self._on_sent = on_sent
        self._due_at = float("inf")  # on the leader's clock
        self._election: Election | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._release = False
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._main, name="elector", daemon=True)
        self._stepped_at = time.monotonic()

    def start(self) -> None:
        """Begin to run for office."""
        self._thread.start()
        self._running.wait()

    def stop(self, *, release: bool, seconds: float = 10.0) -> bool:
        """End the thread; `release` gives the Lease up first, which only a process whose guarded work is over may ask.

        Returns False when the thread did not end in time (it is a daemon: it cannot keep the process alive).
        """
        if not self._thread.is_alive():
            return True
        self._release = release
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):  # the loop has closed meanwhile: that is what was asked for
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def is_leader(self) -> bool:
        """True while no other replica can have been elected. Cheap; from any thread; ask before every side effect."""
        return self._election is not None and self._election.is_leader()

    @property
    def standing(self) -> ElectionState:
        """Follower, leader, or a leader no more."""
        return self._election.standing if self._election is not None else ElectionState.FOLLOWER

    @property
    def epoch(self) -> int:
        """`leaseTransitions` of our term; -1 before the first."""
        return self._election.epoch if self._election is not None else -1

    @property
    def holder(self) -> str | None:
        """The holder of the coordinator's Lease, as last seen."""
        return self._election.holder if self._election is not None else None

    def seconds_to_takeover(self) -> float:
        """Return the seconds until another replica may lead; infinite before our first term."""
        if self._election is None or self._election.epoch < 0:
            return float("inf")
        return self._election.takeover_at - leader_clock()

    def account(self) -> str:
        """Say what is known of the Lease, in words for the last line of a process that held it."""
        election = self._election
        if election is None or election.epoch < 0:
            return "no Lease was held"
        held = f"Lease {election.lease_name}"
        renewed = f"was last renewed {election.unrenewed_for:.1f} s ago and lasts {self.settings.lease_duration} s"
        if election.holder != self.identity:
            held += f" is held by {election.holder or 'nobody'}; it"
        return f"{held} {renewed}" + (f"; last error: {election.trouble}" if election.trouble else "")

    def stalled_for(self, *, tolerance: float = 5.0) -> float | None:
        """The watchdog: seconds since the last finished round when that is longer than lease + tolerance, else None."""
        silence = time.monotonic() - self._stepped_at
        return silence if silence > self.settings.lease_duration + tolerance else None

    def _main(self) -> None:
        try:
            asyncio.run(self._campaign())
        finally:
            self._running.set()
            # Also after an error nobody foresaw: a leader that renews no longer must not look like one for long.
            if self.epoch >= 0 and not self._release:
                self._on_lost()

    async def _campaign(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        async with self._open_port() as port:
            election = Election(port, identity=self.identity, settings=self.settings)
            self._election = election
            while not self._stopping.is_set():
                pause = await self._step(election)
                if election.standing is ElectionState.LOST:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
            if self._release:
                # Failing to release only delays the successor by what is left of the lease.
                with suppress(ApiError):
                    await election.release()

    async def _step(self, election: Election) -> float:
        before, was_leader, started = election.deadline, election.epoch >= 0, time.monotonic()
        due_at, tried_at = self._due_at, election.tried_at
        pause = await election.step()
        self._stepped_at = time.monotonic()
        self._due_at = leader_clock() + pause
        if was_leader:
            if election.tried_at > tried_at:
                self._on_sent(max(0.0, election.tried_at - due_at))
            self._on_renewal(self._stepped_at - started, election.deadline > before)
        elif election.is_leader():
            self._on_elected()
        return pause


class Deadman:
    """Ends the process before anybody can take over, whatever the main thread is doing (docs/control-plane.md §3).

    Armed at election, disarmed once all guarded work has ended. A process stopped (SIGSTOP) for longer than its lease
    ends in the first instant after it continues. `overdue` is a second reason: a process that was asked to stop and
    hangs would otherwise renew its lease for ever and never let a successor in.
    """

    def __init__(
        self,
        elector: Elector,
        *,
        margin: float = 1.0,
        overdue: Callable[[], bool] = lambda: False,
        end: Callable[[int], object] = os._exit,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._elector = elector
        self._margin = margin
        self._overdue = overdue
        self._end = end
        self._say = say or _log_why
        self._disarmed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadman", daemon=True)

    def arm(self) -> None:
        """Start to watch."""
        self._thread.start()

    def disarm(self) -> None:
        """All guarded work is over."""
        self._disarmed.set()

    def _watch(self) -> None:
        while not self._disarmed.is_set():
            left = self._elector.seconds_to_takeover() - self._margin
            if left <= 0 or self._overdue():
                self._say_why(asked=left > 0)
                self._end(HARD_EXIT_CODE)
                return
            self._disarmed.wait(min(left, 1.0))

    def _say_why(self, *, asked: bool) -> None:
        """The last line of the log. The thread that hangs may hold the log's lock, so the wait for it is short."""
        overdue = "the process was asked to stop and has not ended in time; " if asked else ""
        why = overdue + self._elector.account()
        # Also when no thread can be started any more.
        with suppress(Exception):
            line = threading.Thread(target=self._write, args=(why,), name="last line", daemon=True)
            line.start()
            line.join(max(_LAST_LINE, min(self._elector.seconds_to_takeover() - self._margin / 2, self._margin)))

    def _write(self, why: str) -> None:
        with suppress(Exception):
            self._say(why)


def _log_why(why: str) -> None:
    _log.error("the process ends at once, before another replica may lead", why=why, code=HARD_EXIT_CODE)


_log = structlog.get_logger(__name__)
