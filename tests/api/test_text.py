"""Text from outside, made safe to print."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.text.safe import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/ra/log-1", "/data/ra/log-1"),
        ("größe 日本 👩‍💻", "größe 日本 👩‍💻"),
        ("a\nb\tc\x1b[31m\x7f", "a\\nb\\tc\\x1b[31m\\x7f"),
        ("gpj.\u202etxt", "gpj.\\u202etxt"),
        (os.fsdecode(b"log-\xff"), "log-\\xff"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.text(alphabet=st.characters()) | st.binary().map(os.fsdecode))
def test_the_result_is_utf8_on_one_line_and_stays_as_it_is(text: str) -> None:
    safe = printable(text)
    assert safe.encode().decode() == safe
    assert len(safe.splitlines()) <= 1
    assert printable(safe) == safe
