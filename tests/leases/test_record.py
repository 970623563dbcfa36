"""Lease bodies: what is read, what is written, what is refused."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import MalformedLeaseError
from compaction.leases.record import Lease, LeaseRecord, format_micro_time, parse_micro_time

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
