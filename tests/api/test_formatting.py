"""Bytes and ages for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.text.printing import format_age, format_bytes, format_work, plural


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (10_187, "9.9Ki"),
        (10_189, "10Ki"),
        (163 << 20, "163Mi"),
        ((1 << 30) - 1, "1Gi"),
        (3 << 29, "1.5Gi"),
        (1 << 60, "1Ei"),
        (2**63 - 1, "8Ei"),
        (-2048, "-2Ki"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_short_and_close(count: int) -> None:
    text = format_bytes(count)
    number = text.rstrip("KMGTPEi")
    power = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei").index(text[len(number) :])
    assert len(text) <= 6
    assert abs(float(number) * 1024**power - count) <= max(0.06 * count, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (130, "2m10s"),
        (599, "9m59s"),
        (601, "10m"),
        (3600, "1h"),
        (11_100, "3h5m"),
        (47 * 3600, "47h"),
        (52 * 3600, "2d4h"),
        (40 * 86_400 + 5, "40d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_plural() -> None:
    assert [plural(count, "group") for count in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]


def test_work_says_what_comes_back_where_it_is_known() -> None:
    assert format_work(48 << 20, 149 << 20) == "copy 48Mi, reclaim 149Mi"
    assert format_work(48 << 20, 0) == "copy 48Mi"
