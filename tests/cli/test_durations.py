"""Durations as options: as in a policy, or a plain number of seconds."""

from __future__ import annotations

import click
import pytest

from compaction.cli.values import DurationParameter


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1h", 3600),
        ("1h30m", 5400),
        ("600", 600),
        ("90d", 7776000),
        ("0", 0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("1.7999999999999998", 1.8),
    ],
)
def test_durations_are_read_as_in_a_policy_or_as_seconds(written: str, seconds: float) -> None:
    assert DurationParameter().convert(written, None, None) == seconds


@pytest.mark.parametrize("written", ["", "-1", "1 h", "ten", "1e3", "٣", "1000000000"])
def test_what_is_no_duration_is_refused_with_the_form(written: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write a duration such as 30s.*, or seconds as a number"):
        DurationParameter().convert(written, None, None)


def test_bounds_are_named() -> None:
    with pytest.raises(click.BadParameter, match="the shortest is 1s"):
        DurationParameter(least=1).convert("500ms", None, None)
    with pytest.raises(click.BadParameter, match="not a whole number of seconds"):
        DurationParameter(whole=True).convert("1.5", None, None)
