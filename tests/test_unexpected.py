"""What is said of an exception that nothing expects: kind and place to users, everything to the log."""

from __future__ import annotations

import logging

import pytest

from compaction.blocks.model import block_path
from compaction.errors import CompactionError
from compaction.unexpected import defect


def test_users_read_the_place_and_the_log_has_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    try:
        block_path("t", None, "secret")  # type: ignore[arg-type]
    except TypeError as error:
        said = defect(error, "a/b.parquet")
    assert said.startswith("an unexpected TypeError at blocks/model.py:")
    assert "NoneType" not in said
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "unexpected failure of a/b.parquet")
    assert "Traceback" in caplog.text


def test_errors_of_ours_say_themselves(caplog: pytest.LogCaptureFixture) -> None:
    assert defect(CompactionError("no such log: create it"), "a") == "no such log: create it"
    assert caplog.records == []


def test_without_any_log_nothing_is_written_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        defect(KeyError("x"), "a") == "an unexpected KeyError at an unknown place; this is a defect: please report it"
    )
    assert capfd.readouterr().err == ""
