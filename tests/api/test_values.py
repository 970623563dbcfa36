"""Durations, quantities and times: what is read, what is refused, and that writing gives back what was read."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity
from pydantic import TypeAdapter

from compaction.api.base import Timestamp, format_timestamp, timestamp_from_epoch
from compaction.api.text.quantities import MAX_QUANTITY, Duration, Quantity

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
parts = st.tuples(st.integers(0, 99999), st.sampled_from(sorted(UNITS)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("30s", 30),
        ("1m30s", 90),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2h0m0s", 7200),
        ("90d", 7776000),
        ("1d12h", 129600),
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert Duration(text) == seconds
    assert str(Duration(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "5",
        "s",
        "1 m",
        "-1s",
        "+1s",
        "d",
        "1.5d",
        "1h1d",
        "1d1d",
        "99999d",
        "1M",
        "1e3s",
        ".5s",
        "1.s",
        "1s ",
        "\n1s",
        "1s\n",
        "٣s",
        "9" * 7 + "s",
    ],
)
def test_other_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration such as 30s, 10m, 1h30m or 90d"):
        Duration(text)


@given(st.lists(parts, min_size=1, max_size=3))
def test_a_duration_is_the_sum_of_its_parts(written: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in written)
    if len(text) <= 20:
        assert Duration(text) == pytest.approx(sum(count * UNITS[unit] for count, unit in written))


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("512", 512), ("64M", 64_000_000), ("64Mi", 1 << 26), ("1.5Gi", 3 << 29), ("1k", 1000), ("0.5", 1)],
)
def test_quantities_are_bytes_rounded_up(text: str, count: int) -> None:
    assert Quantity(text) == count


@pytest.mark.parametrize(
    "text", ["", "-1", "1B", "1MB", "1K", "1kib", "Gi", "1 Gi", "1e3", "1m", "1Ei", "0x10", "1.Gi", "1_000"]
)
def test_other_quantities_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write bytes as a whole number or with a suffix"):
        Quantity(text)


def test_a_quantity_fits_64_bits() -> None:
    assert Quantity("8388607Ti") < MAX_QUANTITY
    with pytest.raises(ValueError, match="more than 64 bits hold"):
        Quantity("8388608Ti")


@given(
    st.decimals(0, 999_999, places=3, allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
def test_quantities_mean_what_kubernetes_means(number: Decimal, suffix: str) -> None:
    exact = parse_quantity(f"{number}{suffix}")
    assert Decimal(int(Quantity(f"{number}{suffix}"))) - exact < 1
    assert int(Quantity(f"{number}{suffix}")) >= exact


@given(st.integers(0, 10**15 - 1) | st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,3})?(Ki|Mi|M|G)", fullmatch=True))
def test_quantities_are_written_as_they_were_read(written: int | str) -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.dump_python(adapter.validate_python(written), mode="json") == written


def test_values_survive_pickling_with_their_text() -> None:
    for value in (Duration("1.50h"), Quantity("1.50Gi")):
        copy = pickle.loads(pickle.dumps(value))
        assert (copy, copy.text, type(copy)) == (value, value.text, type(value))


def test_times_are_utc_to_the_second() -> None:
    moment = datetime(2026, 3, 1, 14, 0, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert format_timestamp(moment) == "2026-03-01T12:00:05Z"
    adapter: TypeAdapter[datetime] = TypeAdapter(Timestamp)
    read = adapter.validate_python("2026-03-01T12:00:05.25Z")
    assert read == datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
    assert adapter.dump_python(read, mode="json") == "2026-03-01T12:00:05Z"
    assert timestamp_from_epoch(1_772_366_405.9) == read


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="timezone"):
        TypeAdapter(Timestamp).validate_python("2026-03-01T12:00:05")
