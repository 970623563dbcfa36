"""Lease bodies: what is read, what is written, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import MalformedLeaseError, TokenExhaustedError
from compaction.leases.record import (
    MAX_TOKEN,
    Lease,
    LeaseObserver,
    LeaseRecord,
    format_micro_time,
    next_token,
    parse_micro_time,
)

NOW = datetime(2026, 3, 4, 5, 6, 7, 0, tzinfo=UTC)


def test_micro_time_always_has_six_digits_and_z() -> None:
    assert format_micro_time(NOW) == "2026-03-04T05:06:07.000000Z"
    assert format_micro_time(NOW.astimezone(timezone(timedelta(hours=5)))) == "2026-03-04T05:06:07.000000Z"


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        format_micro_time(datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("2026-03-04T05:06:07Z", 0),
        ("2026-03-04T05:06:07.5Z", 500_000),
        ("2026-03-04T05:06:07.123456Z", 123_456),
        ("2026-03-04T05:06:07.123456789Z", 123_456),
        ("2026-03-04T07:06:07.000001+02:00", 1),
    ],
)
def test_any_rfc3339_time_is_read(text: str, microseconds: int) -> None:
    assert parse_micro_time(text) == NOW.replace(microsecond=microseconds)


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)))  # noqa: DTZ001
def test_times_survive_the_way_there_and_back(moment: datetime) -> None:
    assert parse_micro_time(format_micro_time(moment)) == moment


RECORDS = st.builds(
    LeaseRecord,
    holder=st.none() | st.text(min_size=1, max_size=20),
    duration_seconds=st.none() | st.integers(1, 1000),
    transitions=st.integers(0, 2**31 - 1),
    acquire_time=st.none() | st.just(NOW),
    renew_time=st.none() | st.just(NOW + timedelta(seconds=1)),
)


@given(RECORDS)
def test_records_survive_the_way_there_and_back(record: LeaseRecord) -> None:
    assert LeaseRecord.parse(record.spec()) == record


def test_a_released_lease_is_nobodys_and_keeps_its_transitions() -> None:
    held = LeaseRecord().acquired("a", transitions=7, duration_seconds=15, now=NOW)
    released = held.released(now=NOW)
    assert released.spec()["holderIdentity"] == ""
    assert (released.holder, released.duration_seconds, released.transitions) == (None, 1, 7)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"holderIdentity": 5}, "holderIdentity"),
        ({"leaseDurationSeconds": "15"}, "leaseDurationSeconds"),
        ({"leaseTransitions": -1}, "leaseTransitions"),
        ({"leaseTransitions": True}, "leaseTransitions"),
        ({"renewTime": "yesterday"}, "renewTime"),
        ({"acquireTime": "2026-03-04T05:06:07"}, "acquireTime"),
        ({"acquireTime": 5}, "acquireTime"),
    ],
)
def test_a_malformed_lease_is_named_with_its_field(spec: dict[str, object], field: str) -> None:
    with pytest.raises(MalformedLeaseError, match=rf"ns/w1: spec\.{field}"):
        Lease.parse({"metadata": {"namespace": "ns", "name": "w1"}, "spec": spec})


def test_a_lease_object_survives_the_way_there_and_back() -> None:
    lease = Lease(
        name="j",
        namespace="ns",
        record=LeaseRecord().acquired("w", transitions=3, duration_seconds=15, now=NOW),
        uid="u",
        resource_version="9",
        labels={"a": "b"},
        annotations={"compaction.dev/progress": "37"},
        owner_references=({"uid": "p"},),
    )
    assert Lease.parse(lease.body()) == lease


def test_annotations_are_set_and_removed_without_touching_the_original() -> None:
    lease = Lease(name="j", namespace="ns", annotations={"keep": "1", "drop": "2"})
    changed = lease.annotate({"drop": None, "new": "3"})
    assert dict(changed.annotations) == {"keep": "1", "new": "3"}
    assert dict(lease.annotations) == {"keep": "1", "drop": "2"}


@pytest.mark.parametrize(
    "time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-21T06:00:00", "9" * 5000, "", 5]
)
def test_a_time_that_is_none_names_the_lease_and_the_field(time: object) -> None:
    with pytest.raises(MalformedLeaseError, match=r"^lease ns/x: spec\.renewTime is not a time") as refusal:
        LeaseRecord.parse({"renewTime": time}, name="ns/x")
    assert len(str(refusal.value)) < 200


def test_the_first_years_have_four_digits_too() -> None:
    assert format_micro_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": []},
        {"metadata": {"name": ["x"], "namespace": "ns"}},
        {"metadata": {"name": "x", "namespace": "ns"}, "spec": "y"},
        {"metadata": {"name": "x", "namespace": "ns", "labels": {"a": 5}}},
        {"metadata": {"name": "x", "namespace": "ns", "ownerReferences": [5]}},
        {"metadata": {"name": "x", "namespace": "ns", "uid": {}}},
    ],
)
def test_an_object_of_another_shape_is_a_malformed_lease(body: dict[str, object]) -> None:
    with pytest.raises(MalformedLeaseError):
        Lease.parse(body)


# Tokens only ever grow, whatever was forgotten.

MEMORY = st.none() | st.integers(0, MAX_TOKEN - 1)


@given(MEMORY, MEMORY, MEMORY)
def test_larger_than_everything_remembered(lease: int | None, status: int | None, store: int | None) -> None:
    token = next_token(lease, status, store)
    assert token >= 1
    assert all(token > known for known in (lease, status, store) if known is not None)
    assert token == max((known for known in (lease, status, store) if known is not None), default=0) + 1


def test_the_store_alone_is_enough_after_the_lease_was_deleted_and_the_cluster_restored() -> None:
    assert next_token(None, None, 41) == 42


def test_the_end_of_int32_is_an_error_with_a_way_out() -> None:
    with pytest.raises(TokenExhaustedError, match="another name"):
        next_token(MAX_TOKEN, None, None)


def test_negative_values_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        next_token(-1, None, None)


# Expiry by local observation: exact to the instant, blind to everybody else's clock.

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def held(*, renewal: int = 0, duration: int | None = 15, skew: timedelta = timedelta()) -> LeaseRecord:
    return LeaseRecord("w", duration, 1, START + skew, START + skew + timedelta(seconds=renewal))


def test_expires_exactly_one_duration_after_the_last_change_was_seen() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    assert observer.observe("j", held())
    clock.now = 114.999
    assert not observer.expired("j")
    clock.now = 115.0
    assert observer.expired("j")


def test_seeing_the_same_record_again_does_not_restart_the_measure() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 110.0
    assert not observer.observe("j", held())
    assert observer.expires_at("j") == 115.0


@pytest.mark.parametrize("renewed", [True, False])
def test_a_renewal_seen_in_the_instant_of_expiry_is_in_time(renewed: bool) -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 115.0
    observer.observe("j", held(renewal=15 if renewed else 0))
    assert observer.expired("j") is not renewed


def test_a_renewal_restarts_it() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 114.0
    assert observer.observe("j", held(renewal=1))
    assert observer.expires_at("j") == 129.0


def test_a_lease_never_seen_is_not_expired_and_a_new_observer_measures_afresh() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    assert not observer.expired("j")
    assert observer.expires_at("j") is None
    observer.observe("j", held(skew=timedelta(days=-365)))  # written by a machine whose clock is a year behind
    assert not observer.expired("j")


def test_a_released_lease_is_free_at_once() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    observer.observe("j", held().released(now=START))
    assert observer.expired("j")


def test_the_duration_of_the_holder_counts_and_the_default_only_fills_a_gap() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(default_duration=7.0, clock=clock)
    observer.observe("long", held(duration=60))
    observer.observe("none", held(duration=None))
    assert observer.expires_at("long") == 160.0
    assert observer.expires_at("none") == 107.0


def test_a_forgotten_lease_is_measured_from_the_start() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    observer.forget("j")
    assert "j" not in observer
    clock.now = 200.0
    observer.observe("j", held())
    assert observer.expires_at("j") == 215.0


@given(
    renewals=st.lists(st.floats(0.0, 20.0), max_size=30),
    skew=st.integers(-(10**6), 10**6),
)
def test_a_holder_that_renews_in_time_never_expires_whatever_its_clock_says(renewals: list[float], skew: int) -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held(skew=timedelta(seconds=skew)))
    for number, pause in enumerate(renewals, start=1):
        clock.now += pause
        assert observer.expired("j") == (pause >= 15.0)
        observer.observe("j", held(renewal=number, skew=timedelta(seconds=skew)))
        assert not observer.expired("j")
