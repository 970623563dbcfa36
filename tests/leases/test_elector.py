"""The elector's thread and the deadman, against a Lease in memory.

Real processes: tests/kube/replica/test_replicas.py.
"""

import itertools
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from compaction.errors import ApiUnavailableError, ConflictError, NotFoundError
from compaction.leases.election import ElectionSettings, ElectionState
from compaction.leases.elector import HARD_EXIT_CODE, Deadman, Elector
from compaction.leases.record import Lease, LeaseRecord

FAST = ElectionSettings(lease_duration=2, renew_deadline=1.0, retry_period=0.05)
STEADY = ElectionSettings(lease_duration=60, renew_deadline=40.0, retry_period=0.05)
"""For whoever must not lose its lease, however long the machine keeps its thread waiting."""
GENEROUS = 60.0


class SharedLease:
    """One Lease for several electors in several threads; `broken` makes every call fail."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lease: Lease | None = None
        self.versions = itertools.count(1)
        self.broken = threading.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["SharedLease"]:
        yield self

    async def get(self) -> Lease:
        with self.lock:
            return self._read()

    async def create(self, record: LeaseRecord) -> Lease:
        with self.lock:
            return self._write(Lease("l", "ns", record))

    async def replace(self, lease: Lease) -> Lease:
        with self.lock:
            if self._read().resource_version != lease.resource_version:
                raise ConflictError("conflict", status=409)
            return self._write(lease)

    def _read(self) -> Lease:
        if self.broken.is_set():
            raise ApiUnavailableError("no connection")
        if self.lease is None:
            raise NotFoundError("no lease", status=404)
        return self.lease

    def _write(self, lease: Lease) -> Lease:
        self.lease = replace(lease, resource_version=str(next(self.versions)))
        return self.lease


class Candidate:
    def __init__(self, shared: SharedLease, identity: str, settings: ElectionSettings = STEADY) -> None:
        self.elected, self.lost = threading.Event(), threading.Event()
        self.renewals: list[bool] = []
        self.elector = Elector(
            shared.open,
            identity=identity,
            settings=settings,
            on_elected=self.elected.set,
            on_lost=self.lost.set,
            on_renewal=lambda seconds, ok: self.renewals.append(ok),
        )
        self.elector.start()


@pytest.fixture
def shared() -> SharedLease:
    return SharedLease()


def test_elected_renews_and_hands_over(shared: SharedLease) -> None:
    one = Candidate(shared, "one")
    assert one.elected.wait(GENEROUS)
    assert one.elector.is_leader()
    assert one.elector.epoch == 0
    two = Candidate(shared, "two")
    while len(one.renewals) < 3:
        time.sleep(0.01)
    assert all(one.renewals)
    assert not two.elected.is_set()
    assert two.elector.seconds_to_takeover() == float("inf")
    assert one.elector.stop(release=True)
    assert not one.lost.is_set(), "handing over is not losing"
    assert not one.elector.is_leader()
    assert two.elected.wait(GENEROUS)
    assert two.elector.epoch == 1
    assert two.elector.holder == "two"
    assert two.elector.stop(release=True)
    assert two.elector.stop(release=True), "stopping twice is no error"


def test_losing_contact_means_losing_the_lease_once_and_for_all(shared: SharedLease) -> None:
    one = Candidate(shared, "one", FAST)
    assert one.elected.wait(GENEROUS)
    shared.broken.set()
    assert one.lost.wait(GENEROUS)
    assert one.elector.standing is ElectionState.LOST
    shared.broken.clear()
    two = Candidate(shared, "two")
    assert two.elected.wait(GENEROUS)
    assert not one.elector.is_leader()
    assert two.elector.stop(release=True)
    assert one.elector.stop(release=True)
    assert shared.lease is not None
    assert shared.lease.record.holder is None
    assert shared.lease.record.transitions == 1


def test_the_watchdog_is_quiet_while_rounds_end(shared: SharedLease) -> None:
    one = Candidate(shared, "one")
    assert one.elected.wait(GENEROUS)
    assert one.elector.stalled_for() is None
    assert one.elector.stop(release=True)
    assert one.elector.stalled_for(tolerance=-STEADY.lease_duration - 1.0) is not None


def test_the_deadman_ends_a_process_that_can_no_longer_renew(shared: SharedLease) -> None:
    one = Candidate(shared, "one", FAST)
    assert one.elected.wait(GENEROUS)
    ended: list[tuple[int, float]] = []
    done = threading.Event()

    def end(code: int) -> None:
        ended.append((code, one.elector.seconds_to_takeover()))
        done.set()

    said: list[str] = []
    deadman = Deadman(one.elector, margin=0.5, end=end, say=said.append)
    deadman.arm()
    shared.broken.set()
    assert done.wait(GENEROUS)
    assert ended[0][0] == HARD_EXIT_CODE
    assert one.lost.is_set()
    (line,) = said
    assert re.fullmatch(r"Lease ns/l was last renewed \d+\.\d s ago and lasts 2 s; last error: no connection", line)


def test_the_last_line_names_who_holds_the_lease_instead(shared: SharedLease) -> None:
    one = Candidate(shared, "one")
    assert one.elected.wait(GENEROUS)
    assert re.fullmatch(r"Lease ns/l was last renewed \d+\.\d s ago and lasts 60 s", one.elector.account())
    with shared.lock:
        assert shared.lease is not None
        shared._write(replace(shared.lease, record=replace(shared.lease.record, holder="thief")))
    assert one.lost.wait(GENEROUS)
    assert one.elector.account().startswith("Lease ns/l is held by thief; ")
    assert one.elector.stop(release=True)


def test_a_log_that_nobody_reads_does_not_keep_a_process_alive(shared: SharedLease) -> None:
    """A full pipe blocks who writes to it, and whoever waits for the lock of the log."""
    one = Candidate(shared, "one", FAST)
    assert one.elected.wait(GENEROUS)
    done, read = threading.Event(), threading.Event()
    Deadman(one.elector, margin=0.5, end=lambda code: done.set(), say=lambda line: read.wait()).arm()
    shared.broken.set()
    assert done.wait(GENEROUS)
    assert not read.is_set()
    read.set()


def test_an_error_in_the_log_does_not_keep_a_process_alive(shared: SharedLease) -> None:
    def fails(line: str) -> None:
        raise OSError(line)

    one = Candidate(shared, "one", FAST)
    assert one.elected.wait(GENEROUS)
    done = threading.Event()
    Deadman(one.elector, margin=0.5, end=lambda code: done.set(), say=fails).arm()
    shared.broken.set()
    assert done.wait(GENEROUS)


def test_the_deadman_ends_a_process_that_hangs_in_stopping(shared: SharedLease) -> None:
    one = Candidate(shared, "one")
    assert one.elected.wait(GENEROUS)
    overdue, done = threading.Event(), threading.Event()
    said: list[str] = []
    deadman = Deadman(one.elector, overdue=overdue.is_set, end=lambda code: done.set(), say=said.append)
    deadman.arm()
    assert not done.is_set()
    overdue.set()
    assert done.wait(GENEROUS)
    assert said[0].startswith("the process was asked to stop and has not ended in time; Lease ns/l was last renewed ")
    assert one.elector.stop(release=True)


def test_a_disarmed_deadman_lets_go(shared: SharedLease) -> None:
    one = Candidate(shared, "one")
    assert one.elected.wait(GENEROUS)
    ended: list[int] = []
    deadman = Deadman(one.elector, end=ended.append)
    deadman.arm()
    deadman.disarm()
    assert one.elector.stop(release=True)
    assert ended == []
