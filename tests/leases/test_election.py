"""The election algorithm against an in-memory Lease: no two leaders, exact deadlines, lost answers."""

import asyncio
import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.errors import AlreadyExistsError, ApiUnavailableError, ConflictError, NotFoundError
from compaction.leases.election import Election, ElectionSettings, ElectionState, make_identity
from compaction.leases.record import Lease, LeaseRecord
from support.timing import examples

SETTINGS = ElectionSettings()
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LeaseInMemory:
    """One Lease with compare-and-set, as the API server keeps it; calls may fail before or after they took effect."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lease: Lease | None = None
        self.versions = itertools.count(1)
        self.fail: str | None = None  # "before", "after" or None
        self.call_takes = 0.0
        self.writes: list[LeaseRecord] = []

    async def get(self) -> Lease:
        self._enter()
        if self.lease is None:
            raise NotFoundError("no lease", status=404)
        return self.lease

    async def create(self, record: LeaseRecord) -> Lease:
        self._enter()
        if self.lease is not None:
            raise AlreadyExistsError("exists", status=409)
        return self._store(Lease("compaction-coordinator", "ns", record, uid="u"))

    async def replace(self, lease: Lease) -> Lease:
        self._enter()
        if self.lease is None:
            raise NotFoundError("no lease", status=404)
        if lease.resource_version != self.lease.resource_version:
            raise ConflictError("conflict", status=409)
        return self._store(lease)

    def _store(self, lease: Lease) -> Lease:
        self.lease = replace(lease, resource_version=str(next(self.versions)))
        self.writes.append(self.lease.record)
        if self.fail == "after":
            raise ApiUnavailableError("the answer got lost")
        return self.lease

    def _enter(self) -> None:
        self.clock.now += self.call_takes
        if self.fail == "before":
            raise ApiUnavailableError("no connection")


def candidate(port: LeaseInMemory, identity: str, clock: Clock) -> Election:
    return Election(
        port,
        identity=identity,
        settings=SETTINGS,
        clock=clock,
        observer_clock=clock,
        now=lambda: datetime.fromtimestamp(START.timestamp() + clock.now, UTC),
        rng=random.Random(1),
    )


def step(election: Election) -> float:
    return asyncio.run(election.step())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def port(clock: Clock) -> LeaseInMemory:
    return LeaseInMemory(clock)


def test_the_first_one_creates_the_lease_with_no_transition(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    assert one.is_leader()
    assert one.epoch == 0
    assert port.lease is not None
    assert port.lease.record.holder == "one"


def test_a_follower_waits_one_whole_duration_of_silence_then_takes_over(port: LeaseInMemory, clock: Clock) -> None:
    one, two = candidate(port, "one", clock), candidate(port, "two", clock)
    step(one)
    clock.now += 1.0
    step(two)  # sees the record for the first time: the measure starts here
    clock.now += 14.999
    step(two)
    assert not two.is_leader()
    clock.now += 0.001
    step(two)
    assert two.is_leader()
    assert two.epoch == 1
    assert one.standing is ElectionState.LOST


def test_renewals_keep_transitions_and_acquire_time(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    acquired = port.writes[0]
    for _ in range(20):
        clock.now += 2.0
        step(one)
    assert one.is_leader()
    assert {record.transitions for record in port.writes} == {0}
    assert {record.acquire_time for record in port.writes} == {acquired.acquire_time}
    assert len({record.renew_time for record in port.writes}) == 21


def test_the_deadline_counts_from_the_moment_of_sending(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    port.call_takes = 3.0  # GET answers at +3 (404); the create is sent then, and answers at +6
    step(one)
    assert clock.now == 1006.0
    assert one.deadline == 1003.0 + SETTINGS.renew_deadline
    assert one.takeover_at == 1003.0 + SETTINGS.lease_duration


def test_a_renewal_counts_from_its_sending_as_well(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    clock.now += 2.0
    port.call_takes = 3.0  # sent at +2, answered at +5
    step(one)
    assert clock.now == 1005.0
    assert one.deadline == 1002.0 + SETTINGS.renew_deadline
    assert one.takeover_at == 1002.0 + SETTINGS.lease_duration


def test_leadership_ends_at_the_deadline_even_if_nobody_is_awake(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    clock.now = one.deadline - 0.001
    assert one.is_leader()
    clock.now = one.deadline
    assert one.standing is ElectionState.LOST


def test_after_the_deadline_nothing_is_renewed_and_the_loss_is_final(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    clock.now += 3600.0  # stopped for an hour, and nobody else ran
    writes = len(port.writes)
    step(one)
    step(one)
    assert len(port.writes) == writes
    assert one.standing is ElectionState.LOST
    assert asyncio.run(one.release()) is False
    assert len(port.writes) == writes


def test_api_errors_are_survived_until_the_deadline(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    port.fail = "before"
    for _ in range(4):
        clock.now += 2.0
        step(one)
        assert one.is_leader()
    port.fail = None
    step(one)
    assert one.deadline == clock.now + SETTINGS.renew_deadline
    port.fail = "before"
    clock.now += 10.0
    step(one)
    assert one.standing is ElectionState.LOST


def test_a_call_that_was_cut_off_is_repeated_at_once_so_that_three_fit_into_the_deadline(
    port: LeaseInMemory, clock: Clock
) -> None:
    one = candidate(port, "one", clock)
    clock.now += step(one)
    port.fail, port.call_takes = "before", SETTINGS.call_deadline
    tries = []
    while one.is_leader():
        pause = step(one)
        tries.append(one.tried_at - (one.deadline - SETTINGS.renew_deadline))
        clock.now += pause
    assert tries == pytest.approx([2.0, 2.0 + 10 / 3, 2.0 + 20 / 3])


def test_a_call_that_fails_at_once_is_repeated_after_a_period(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    clock.now += step(one)
    port.fail = "before"
    assert step(one) == SETTINGS.retry_period
    assert one.trouble == "no connection"
    port.fail = None
    clock.now += SETTINGS.retry_period
    port.call_takes = 3.0
    assert step(one) == SETTINGS.retry_period, "a server that is slow is not asked all the time"
    assert one.trouble == ""


def test_a_renewal_whose_answer_got_lost_is_recognised_and_continued(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    port.fail = "after"
    clock.now += 2.0
    step(one)
    port.fail = None
    clock.now += 2.0
    step(one)  # conflicts with our own write, reads, renews in the same step
    assert one.is_leader()
    assert one.deadline == clock.now + SETTINGS.renew_deadline


def test_a_takeover_whose_answer_got_lost_begins_a_known_term(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    port.fail = "after"
    step(one)
    assert not one.is_leader()
    port.fail = None
    clock.now += 2.0
    step(one)
    assert one.is_leader()
    assert one.deadline == clock.now + SETTINGS.renew_deadline
    assert one.epoch == 0


def test_another_holder_means_lost_at_once(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    assert port.lease is not None
    stolen = port.lease.record.acquired("thief", transitions=1, duration_seconds=15, now=START)
    asyncio.run(port.replace(port.lease.with_record(stolen)))
    clock.now += 2.0
    step(one)
    assert one.standing is ElectionState.LOST


def test_a_deleted_lease_means_lost(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    port.lease = None
    clock.now += 2.0
    step(one)
    assert one.standing is ElectionState.LOST


def test_a_released_lease_is_taken_at_the_next_look_with_one_more_transition(port: LeaseInMemory, clock: Clock) -> None:
    one, two = candidate(port, "one", clock), candidate(port, "two", clock)
    step(one)
    step(two)
    assert asyncio.run(one.release()) is True
    assert not one.is_leader()
    clock.now += 0.1
    step(two)
    assert two.is_leader()
    assert two.epoch == 1


def test_release_survives_a_conflict_but_never_touches_anothers_lease(port: LeaseInMemory, clock: Clock) -> None:
    one = candidate(port, "one", clock)
    step(one)
    assert port.lease is not None
    asyncio.run(port.replace(port.lease.annotate({"bystander": "1"})))
    assert asyncio.run(one.release()) is True

    two = candidate(port, "two", clock)
    step(two)
    stolen = port.lease.record.acquired("thief", transitions=9, duration_seconds=15, now=START)
    asyncio.run(port.replace(port.lease.with_record(stolen)))
    assert asyncio.run(two.release()) is False
    assert port.lease.record.holder == "thief"


@pytest.mark.parametrize(
    ("lease", "renew", "retry"), [(10, 10.0, 2.0), (15, 2.4, 2.0), (15, 10.0, 0.0), (15, 16.0, 2.0)]
)
def test_unsafe_times_are_refused(lease: int, renew: float, retry: float) -> None:
    with pytest.raises(ValueError, match="lease duration > renew deadline"):
        ElectionSettings(lease_duration=lease, renew_deadline=renew, retry_period=retry)


def test_identities_are_unique_per_process_start() -> None:
    assert make_identity() != make_identity()


@settings(max_examples=examples(200))
@given(
    schedule=st.lists(
        st.tuples(
            st.integers(0, 2),  # who acts
            st.floats(0.0, 8.0),  # how long after the last one
            st.sampled_from([None, None, None, "before", "after"]),
            st.sampled_from([0.0, 0.0, 0.5, 3.0]),  # how long each call takes
        ),
        max_size=60,
    )
)
def test_never_two_leaders(schedule: list[tuple[int, float, str | None, float]]) -> None:
    """Whatever pauses, losses and delays: at every moment at most one candidate believes it leads."""
    clock = Clock()
    port = LeaseInMemory(clock)
    candidates = [candidate(port, f"c{n}", clock) for n in range(3)]
    epochs: list[int] = []
    for who, pause, fail, call_takes in schedule:
        clock.now += pause
        port.fail, port.call_takes = fail, call_takes
        was = candidates[who].epoch
        step(candidates[who])
        if candidates[who].epoch != was:
            epochs.append(candidates[who].epoch)
        assert sum(election.is_leader() for election in candidates) <= 1
        if candidates[who].standing is ElectionState.LOST:
            candidates[who] = candidate(port, f"c{who}-{len(epochs)}", clock)  # it would be restarted
    assert epochs == sorted(set(epochs))
