"""Cron expressions: what the rules let through can be evaluated, and nothing that cannot is let through."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from compaction.api.policy.cron import Cron

CRON: TypeAdapter[str] = TypeAdapter(Cron)
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


def accepts(text: str) -> bool:
    try:
        CRON.validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("width", [1, 2])
def test_exactly_the_ascending_ranges_are_taken(width: int) -> None:
    for start, end in product(range(60), range(60)):
        text = f"{start:0{width}d}-{end:0{width}d}"
        assert accepts(f"{text} * * * *") is (start <= end), text
        assert accepts(f"0,{text}/5,3 * * * *") is (start <= end), text


@pytest.mark.parametrize(("names", "template"), [(DAYS, "0 0 * * {}"), (MONTHS, "0 0 * {} *")])
def test_exactly_the_ascending_ranges_of_names_are_taken(names: tuple[str, ...], template: str) -> None:
    for (i, start), (j, end) in product(enumerate(names), enumerate(names)):
        assert accepts(template.format(f"{start}-{end.lower()}")) is (i <= j), (start, end)


def _field(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str) | st.integers(low, high).map("{:02d}".format)
    value = number | st.sampled_from(names) if names else number
    item = st.just("*") | value | st.tuples(value, value).map("-".join)
    stepped = item | st.tuples(item, st.integers(1, 99).map(str)).map("/".join)
    return st.lists(stepped, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    _field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12, MONTHS), _field(0, 7, DAYS)
).map(" ".join)  # fmt: skip


@given(EXPRESSIONS | st.text("0123456789*/,- JANSU#L?@", max_size=24))
def test_what_is_taken_can_be_evaluated_and_comes(text: str) -> None:
    if accepts(text):
        assert next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))) > datetime(2026, 1, 1, tzinfo=UTC)


@given(EXPRESSIONS)
def test_what_can_be_evaluated_is_taken(text: str) -> None:
    try:
        CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError:
        return
    mixed = any(part.count("-") and any(c.isalpha() for c in part) for part in text.replace(" ", ",").split(","))
    assert accepts(text) or mixed or len(text) > 128, "mixed ranges such as MON-5 are refused"
