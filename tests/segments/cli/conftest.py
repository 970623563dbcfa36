"""Runs `compactor segments` in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compaction.segments.cli.commands import group
from support.segments.segment_logs import Run


@pytest.fixture
def run() -> Run:
    def invoke(*args: str | Path) -> Result:
        result = CliRunner().invoke(group, [str(arg) for arg in args])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke
